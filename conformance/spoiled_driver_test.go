package conformance_test

import (
	"context"

	"github.com/leasekit/locker/driver"
)

// spoiled is a driver around another one, each of whose methods a test can replace.
type spoiled struct {
	driver.Connector
	info  func(*driver.Info)
	spoil func(*spoiledConn)
	queue bool // it has the other one's queue
}

func (s spoiled) Info() driver.Info {
	i := s.Connector.Info()
	if s.info != nil {
		s.info(&i)
	}
	return i
}

func (s spoiled) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	inner, err := s.Connector.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := &spoiledConn{Conn: inner, cfg: cfg, tryLock: inner.TryLock, undo: inner.Undo, renew: inner.Renew, close: inner.Close}
	c.lock = func(ctx context.Context, req driver.Request) (driver.Hold, error) {
		return inner.(driver.Queuer).Lock(ctx, req)
	}
	if s.spoil != nil {
		s.spoil(c)
	}
	switch {
	case s.queue:
		return queuingConn{c}, nil
	case c.watch != nil:
		return watchingConn{c}, nil
	}
	return c, nil
}

type spoiledConn struct {
	driver.Conn
	cfg     driver.Config
	tryLock func(context.Context, driver.Request) (driver.Hold, error)
	lock    func(context.Context, driver.Request) (driver.Hold, error)
	undo    func(context.Context, driver.Request) error
	renew   func(context.Context, []driver.Hold, func(int, driver.Renewal)) int
	watch   func(context.Context, string) (<-chan struct{}, func(), error)
	close   func() error
}

func (c *spoiledConn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	return c.tryLock(ctx, req)
}
func (c *spoiledConn) Undo(ctx context.Context, req driver.Request) error { return c.undo(ctx, req) }
func (c *spoiledConn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	return c.renew(ctx, holds, report)
}
func (c *spoiledConn) Close() error { return c.close() }

type queuingConn struct{ *spoiledConn }

func (c queuingConn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	return c.lock(ctx, req)
}

type watchingConn struct{ *spoiledConn }

func (c watchingConn) Watch(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	return c.watch(ctx, name)
}

// granting replaces both ways to be granted a name.
func (c *spoiledConn) granting(f func(next func() (driver.Hold, error), req driver.Request) (driver.Hold, error)) {
	tryLock, lock := c.tryLock, c.lock
	c.tryLock = func(ctx context.Context, req driver.Request) (driver.Hold, error) {
		return f(func() (driver.Hold, error) { return tryLock(ctx, req) }, req)
	}
	c.lock = func(ctx context.Context, req driver.Request) (driver.Hold, error) {
		return f(func() (driver.Hold, error) { return lock(ctx, req) }, req)
	}
}

// mapped gives the inner driver another request.
func (c *spoiledConn) mapped(f func(driver.Request) driver.Request) {
	tryLock, lock, undo := c.tryLock, c.lock, c.undo
	c.tryLock = func(ctx context.Context, req driver.Request) (driver.Hold, error) { return tryLock(ctx, f(req)) }
	c.lock = func(ctx context.Context, req driver.Request) (driver.Hold, error) { return lock(ctx, f(req)) }
	c.undo = func(ctx context.Context, req driver.Request) error { return undo(ctx, f(req)) }
}

// deaf keeps losses from being notified, so that only renewals find them.
func (c *spoiledConn) deaf() {
	c.mapped(func(req driver.Request) driver.Request { req.Lost = nil; return req })
}

// spoiledHold is a hold with another grant or release. The wrapper of a Conn that makes them unwraps them for Renew.
type spoiledHold struct {
	driver.Hold
	grant   func(driver.Grant) driver.Grant
	release func(context.Context) error
}

func (h spoiledHold) Grant() driver.Grant {
	if h.grant == nil {
		return h.Hold.Grant()
	}
	return h.grant(h.Hold.Grant())
}

func (h spoiledHold) Release(ctx context.Context) error {
	if h.release == nil {
		return h.Hold.Release(ctx)
	}
	return h.release(ctx)
}

// holding wraps the holds that a Conn grants.
func (c *spoiledConn) holding(f func(driver.Request, driver.Hold) spoiledHold) {
	c.granting(func(next func() (driver.Hold, error), req driver.Request) (driver.Hold, error) {
		h, err := next()
		if err != nil {
			return h, err
		}
		return f(req, h), nil
	})
	renew := c.renew
	c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
		inner := make([]driver.Hold, len(holds))
		for i, h := range holds {
			inner[i] = h.(spoiledHold).Hold
		}
		return renew(ctx, inner, report)
	}
}
