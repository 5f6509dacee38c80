package locker

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/leasekit/locker/internal/clock"
)

// link is a driver that reaches a memory store over a network which the test breaks: the server is right, what is between
// is not. Everything happens in virtual time.
type link struct {
	store *memory.Store
	info  driver.Info

	mu      sync.Mutex
	mode    mode
	latency time.Duration // of each direction, at most; random
	steady  bool          // each direction takes all of latency
	fault   func(op string, name string) mode
	calls   []call
	inside  map[string]int // calls of TryLock and Lock under way, by name
	crowd   int            // the largest of them
	session func() driver.Instant
	conn    *linkConn
	hidden  bool // no Queuer
}

type call struct {
	op, name, id string
	at           time.Time
	holds        int
}

type mode int

const (
	up        mode = iota
	refuse         // fails at once, not applied
	blackHole      // not applied, no answer
	dropReply      // applied, no answer
)

var errRefused = errors.New("connection refused")

func newLink(store *memory.Store) *link {
	return &link{store: store, info: store.Info(), inside: make(map[string]int)}
}

func (n *link) set(m mode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mode = m
}

// count returns how many calls there were.
func (n *link) count(op string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := 0
	for _, call := range n.calls {
		if call.op == op {
			c++
		}
	}
	return c
}

func (n *link) all(op string) []call {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.calls), func(c call) bool { return c.op != op })
}

func (n *link) Info() driver.Info { return n.info }

func (n *link) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	c, err := n.store.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	n.conn = &linkConn{link: n, conn: c, now: cfg.Now, ttl: cfg.TTL}
	if n.hidden {
		return struct{ driver.Conn }{n.conn}, nil
	}
	return n.conn, nil
}

// over carries one request over the link.
func (n *link) over(ctx context.Context, op string, req driver.Request, apply func()) error {
	n.mu.Lock()
	m := n.mode
	if m == up && n.fault != nil {
		m = n.fault(op, req.Name)
	}
	n.calls = append(n.calls, call{op: op, name: req.Name, id: req.ID, at: time.Now()})
	latency, way := n.latency, time.Duration(0)
	if latency > 0 {
		way = rand.N(latency)
	}
	if n.steady {
		way = latency
	}
	n.mu.Unlock()
	trip := func() error {
		if latency == 0 {
			return ctx.Err()
		}
		select {
		case <-time.After(way):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch m {
	case refuse:
		return errRefused
	case blackHole:
		<-ctx.Done()
		return ctx.Err()
	}
	if latency > 0 {
		// What was sent arrives, whether or not the caller still waits for it.
		arrived := make(chan struct{})
		go func() {
			time.Sleep(way)
			apply()
			close(arrived)
		}()
		select {
		case <-arrived:
		case <-ctx.Done():
			return ctx.Err()
		}
	} else {
		apply()
	}
	if m == dropReply {
		<-ctx.Done()
		return ctx.Err()
	}
	return trip()
}

type linkConn struct {
	link *link
	conn driver.Conn
	now  func() driver.Instant
	ttl  time.Duration
}

type linkHold struct {
	c    *linkConn
	h    driver.Hold
	req  driver.Request
	sent driver.Instant
}

func (h *linkHold) Grant() driver.Grant {
	g := h.h.Grant()
	g.Sent = h.sent
	return g
}

func (h *linkHold) Release(ctx context.Context) error {
	var err error
	if lost := h.c.link.over(ctx, "release", h.req, func() { err = h.h.Release(context.WithoutCancel(ctx)) }); lost != nil {
		return lost
	}
	return err
}

func (c *linkConn) enter(name string) func() {
	n := c.link
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inside[name]++
	n.crowd = max(n.crowd, n.inside[name])
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.inside[name]--
	}
}

func (c *linkConn) hold(h driver.Hold, req driver.Request, sent driver.Instant) driver.Hold {
	if c.link.session != nil {
		sent = c.link.session()
	}
	return &linkHold{c, h, req, sent}
}

func (c *linkConn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	defer c.enter(req.Name)()
	sent := c.now()
	var h driver.Hold
	var err error
	if lost := c.link.over(ctx, "try", req, func() { h, err = c.conn.TryLock(context.WithoutCancel(ctx), req) }); lost != nil {
		return nil, lost
	}
	if err != nil {
		return nil, err
	}
	return c.hold(h, req, sent), nil
}

func (c *linkConn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	defer c.enter(req.Name)()
	if err := c.link.over(ctx, "lock", req, func() {}); err != nil {
		return nil, err
	}
	h, err := c.conn.(driver.Queuer).Lock(ctx, req)
	if err != nil {
		return nil, err
	}
	return c.hold(h, req, h.Grant().Sent), nil
}

func (c *linkConn) Undo(ctx context.Context, req driver.Request) error {
	var err error
	if lost := c.link.over(ctx, "undo", req, func() { err = c.conn.Undo(context.WithoutCancel(ctx), req) }); lost != nil {
		return lost
	}
	return err
}

// Renew sends a request for each hold, as to servers that have nothing to do with each other.
func (c *linkConn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	c.link.mu.Lock()
	c.link.calls = append(c.link.calls, call{op: "batch", at: time.Now(), holds: len(holds)})
	c.link.mu.Unlock()
	var wg sync.WaitGroup
	for i, h := range holds {
		wg.Go(func() {
			h := h.(*linkHold)
			sent := c.now()
			var r driver.Renewal
			lost := c.link.over(ctx, "renew", h.req, func() {
				c.conn.Renew(context.WithoutCancel(ctx), []driver.Hold{h.h}, func(_ int, got driver.Renewal) { r = got })
			})
			if lost != nil {
				report(i, driver.Renewal{Err: lost})
				return
			}
			r.Sent = sent
			report(i, r)
		})
	}
	wg.Wait()
	return 0
}

func (c *linkConn) Close() error { return c.conn.Close() }

// bubble runs f in virtual time and checks that nothing is left running when it has closed its Lockers.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// open returns a Locker over c, which is closed with the test.
func openLink(t *testing.T, c driver.Connector, opts *Options) Locker {
	t.Helper()
	l, err := New(t.Context(), c, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustAcquire(t *testing.T, l Locker, name string, opts ...AcquireOption) Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// held reports whether somebody holds a name in the store, whatever Lockers believe.
func held(t *testing.T, s *memory.Store, name string) bool {
	t.Helper()
	c, err := s.Connect(t.Context(), driver.Config{TTL: time.Second, Now: clock.Monotonic})
	if err != nil {
		t.Fatal(err)
	}
	defer c.(io.Closer).Close()
	e, err := c.(driver.Inspector).Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return e.Held
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v doesn't match %v", err, w)
		}
	}
}

func wantNot(t *testing.T, err error, not ...error) {
	t.Helper()
	for _, w := range not {
		if errors.Is(err, w) {
			t.Errorf("error %v matches %v", err, w)
		}
	}
}

// request returns the request that a lease was acquired with.
func request(name string, l Lease) driver.Request {
	return driver.Request{Name: name, ID: l.(*lease).id}
}
