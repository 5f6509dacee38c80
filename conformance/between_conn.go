package conformance

import (
	"context"
	"sync"

	"github.com/leasekit/locker/driver"
)

// wrap puts l in front of a driver.
func (l *between) wrap(c driver.Connector) driver.Connector { return betweenConnector{c, l} }

type betweenConnector struct {
	driver.Connector
	link *between
}

func (c betweenConnector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.link.set(func() { c.link.conns++ })
	base := &betweenConn{inner: inner, link: c.link}
	w, watches := inner.(driver.Waiter)
	q, queues := inner.(driver.Queuer)
	switch {
	case watches && queues:
		return struct {
			*betweenConn
			betweenWaiter
			betweenQueuer
		}{base, betweenWaiter{w, c.link}, betweenQueuer{q, c.link}}, nil
	case watches:
		return struct {
			*betweenConn
			betweenWaiter
		}{base, betweenWaiter{w, c.link}}, nil
	case queues:
		return struct {
			*betweenConn
			betweenQueuer
		}{base, betweenQueuer{q, c.link}}, nil
	}
	return base, nil
}

type betweenConn struct {
	inner driver.Conn
	link  *between
	once  sync.Once
}

type betweenHold struct {
	driver.Hold
	link *between
	name string
}

func (h betweenHold) Release(ctx context.Context) error {
	if h.link.frees && h.link.broken() {
		return h.Hold.Release(ctx)
	}
	_, err := call(ctx, h.link, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, h.Hold.Release(ctx)
	}, h.name)
	return err
}

// notify wraps Request.Lost: a notification needs a connection.
func (l *between) notify(req driver.Request) driver.Request {
	lost := req.Lost
	if lost != nil {
		req.Lost = func(err error) {
			if !l.down() {
				lost(err)
			}
		}
	}
	return req
}

func (l *between) hold(h driver.Hold, err error, name string) (driver.Hold, error) {
	if h == nil {
		return nil, err
	}
	return betweenHold{h, l, name}, err
}

func (c *betweenConn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	h, err := call(ctx, c.link, func(ctx context.Context) (driver.Hold, error) {
		return c.inner.TryLock(ctx, c.link.notify(req))
	}, req.Name)
	return c.link.hold(h, err, req.Name)
}

func (c *betweenConn) Undo(ctx context.Context, req driver.Request) error {
	if c.link.frees && c.link.broken() {
		return c.inner.Undo(ctx, req)
	}
	_, err := call(ctx, c.link, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.inner.Undo(ctx, req)
	}, req.Name)
	return err
}

type renewals struct {
	results    map[int]driver.Renewal
	unresolved int
}

func (c *betweenConn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	inner := make([]driver.Hold, len(holds))
	names := make([]string, len(holds))
	for i, h := range holds {
		b := h.(betweenHold)
		inner[i], names[i] = b.Hold, b.name
	}
	r, err := call(ctx, c.link, func(ctx context.Context) (renewals, error) {
		r := renewals{results: make(map[int]driver.Renewal)}
		var mu sync.Mutex
		r.unresolved = c.inner.Renew(ctx, inner, func(i int, result driver.Renewal) {
			mu.Lock()
			defer mu.Unlock()
			r.results[i] = result
		})
		return r, nil
	}, names...)
	if err != nil {
		for i := range holds {
			report(i, driver.Renewal{Err: err})
		}
		return 1 // nobody could look
	}
	for i, result := range r.results {
		report(i, result)
	}
	return r.unresolved
}

func (c *betweenConn) Close() error {
	c.once.Do(func() { c.link.set(func() { c.link.conns-- }) })
	return c.inner.Close()
}

type betweenQueuer struct {
	inner driver.Queuer
	link  *between
}

func (q betweenQueuer) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	h, err := call(ctx, q.link, func(ctx context.Context) (driver.Hold, error) {
		inner, stop := context.WithCancel(ctx)
		defer stop()
		cut := q.link.cut()
		done := make(chan answer[driver.Hold], 1)
		go func() {
			h, err := q.inner.Lock(inner, q.link.notify(req))
			done <- answer[driver.Hold]{h, err}
		}()
		select {
		case a := <-done:
			return a.value, a.err
		case <-cut:
			stop()
			<-done // what it was granted, nobody learns
			return nil, errCut
		}
	}, req.Name)
	return q.link.hold(h, err, req.Name)
}

type betweenWaiter struct {
	inner driver.Waiter
	link  *between
}

func (w betweenWaiter) Watch(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	type watch struct {
		hints <-chan struct{}
		stop  func()
	}
	cut := w.link.cut()
	inner, err := call(ctx, w.link, func(ctx context.Context) (watch, error) {
		hints, stop, err := w.inner.Watch(ctx, name)
		return watch{hints, stop}, err
	}, name)
	if err != nil {
		return nil, nil, err
	}
	hints, done := make(chan struct{}, 1), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		defer close(hints)
		for {
			select {
			case _, ok := <-inner.hints:
				if !ok {
					return
				}
				if !w.link.down() {
					select {
					case hints <- struct{}{}:
					default:
					}
				}
			case <-cut:
				return
			case <-done:
				return
			}
		}
	})
	return hints, func() {
		close(done)
		running.Wait()
		inner.stop()
	}, nil
}
