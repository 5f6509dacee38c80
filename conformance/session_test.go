package conformance_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// sessionStore is a backend whose entries live as long as the session of their Conn, and stand in a queue whose first one
// holds the name: what etcd and ZooKeeper do. Its flaws are what goes wrong with such backends.
type sessionStore struct {
	flaws flaws

	mu      sync.Mutex
	queues  map[string][]*sessionEntry
	last    uint64
	changed chan struct{} // closed and replaced
}

type flaws struct {
	acquireIsRenewal bool // the deadline counts from the acquisition, and not from the session's last renewal
	leaksPlace       bool // a place in the queue stays when its waiter gives up
	keepsDeadPlaces  bool // a place in the queue stays when its waiter's session has ended
	grantsDeadPlace  bool // a waiter whose predecessors have gone holds the name, whether its own place is there or not
}

type session struct{ sent, expires driver.Instant }

type sessionEntry struct {
	session *session
	id      string
	token   uint64
	granted bool
}

func newSessionStore(f flaws) *sessionStore {
	return &sessionStore{flaws: f, queues: make(map[string][]*sessionEntry), changed: make(chan struct{})}
}

func (s *sessionStore) Info() driver.Info {
	return driver.Info{Backend: "sessions", Correctness: true, SharedSession: true, MonotonicOnly: true}
}

func (s *sessionStore) Connect(_ context.Context, cfg driver.Config) (driver.Conn, error) {
	return &sessionConn{s: s, ttl: cfg.TTL, now: cfg.Now}, nil
}

// queue returns the entries of a name whose sessions live. It needs the mutex.
func (s *sessionStore) queue(name string, now driver.Instant) []*sessionEntry {
	q := slices.DeleteFunc(s.queues[name], func(e *sessionEntry) bool {
		return !now.Before(e.session.expires) && (e.granted || !s.flaws.keepsDeadPlaces)
	})
	s.put(name, q)
	return q
}

func (s *sessionStore) put(name string, q []*sessionEntry) {
	if len(q) == 0 {
		delete(s.queues, name)
	} else {
		s.queues[name] = q
	}
}

// remove takes entries out of a queue and wakes those who wait.
func (s *sessionStore) remove(name string, gone func(i int, e *sessionEntry) bool) (removed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []*sessionEntry
	for i, e := range s.queue(name, clock.Monotonic()) {
		if gone(i, e) {
			removed++
		} else {
			rest = append(rest, e)
		}
	}
	s.put(name, rest)
	close(s.changed)
	s.changed = make(chan struct{})
	return removed
}

type sessionConn struct {
	s   *sessionStore
	ttl time.Duration
	now func() driver.Instant
	ses *session // guarded by the store's mutex
}

// live returns a session with at least half of its TTL left. It needs the mutex.
func (c *sessionConn) live(now driver.Instant) *session {
	if c.ses == nil || !now.Before(c.ses.expires) {
		c.ses = &session{now, now.Add(c.ttl)}
	} else if now.Sub(c.ses.sent) > c.ttl/2 {
		c.ses.sent, c.ses.expires = now, now.Add(c.ttl)
	}
	return c.ses
}

func (c *sessionConn) hold(name string, e *sessionEntry, now driver.Instant) driver.Hold {
	e.granted = true
	sent := e.session.sent
	if c.s.flaws.acquireIsRenewal {
		sent = now
	}
	return &sessionHold{c, name, e, driver.Grant{Token: e.token, Renewal: driver.Renewal{Sent: sent, TTL: c.ttl}}}
}

func (c *sessionConn) enqueue(req driver.Request, ses *session) *sessionEntry {
	c.s.last = max(c.s.last+1, uint64(time.Now().UnixMicro()))
	e := &sessionEntry{session: ses, id: req.ID, token: c.s.last}
	c.s.queues[req.Name] = append(c.s.queues[req.Name], e)
	return e
}

func (c *sessionConn) TryLock(_ context.Context, req driver.Request) (driver.Hold, error) {
	now := c.now()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	ses := c.live(now)
	q := c.s.queue(req.Name, now)
	switch {
	case len(q) == 0:
		return c.hold(req.Name, c.enqueue(req, ses), now), nil
	case q[0].id == req.ID && q[0].session == ses:
		return c.hold(req.Name, q[0], now), nil
	}
	return nil, driver.ErrHeld
}

func (c *sessionConn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	var mine *sessionEntry
	for {
		now := c.now()
		c.s.mu.Lock()
		ses := c.live(now)
		q := c.s.queue(req.Name, now)
		at := slices.IndexFunc(q, func(e *sessionEntry) bool { return e.id == req.ID && e.session == ses })
		if at < 0 && mine != nil && !c.s.flaws.grantsDeadPlace {
			mine = nil // it was removed
		}
		if mine == nil {
			if at < 0 {
				c.enqueue(req, ses)
				q = c.s.queues[req.Name]
				at = len(q) - 1
			}
			mine = q[at]
		}
		before := slices.IndexFunc(q, func(e *sessionEntry) bool { return e.token >= mine.token })
		if at == 0 || c.s.flaws.grantsDeadPlace && (before == 0 || len(q) == 0) {
			defer c.s.mu.Unlock()
			return c.hold(req.Name, mine, now), nil
		}
		changed := c.s.changed
		left := c.ttl
		if len(q) > 0 {
			left = -now.Sub(q[0].session.expires)
		}
		c.s.mu.Unlock()
		t := time.NewTimer(max(left, time.Millisecond))
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		t.Stop()
	}
}

func (c *sessionConn) Undo(_ context.Context, req driver.Request) error {
	c.s.remove(req.Name, func(_ int, e *sessionEntry) bool {
		return e.id == req.ID && (e.granted || !c.s.flaws.leaksPlace)
	})
	return nil
}

func (c *sessionConn) Renew(_ context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	now := c.now()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.ses != nil && now.Before(c.ses.expires) {
		c.ses.sent, c.ses.expires = now, now.Add(c.ttl)
	}
	for i, h := range holds {
		h := h.(*sessionHold)
		if q := c.s.queue(h.name, now); len(q) == 0 || q[0] != h.entry {
			report(i, driver.Renewal{Err: driver.ErrNotHeld})
		} else {
			report(i, driver.Renewal{Sent: h.entry.session.sent, TTL: c.ttl})
		}
	}
	return 0
}

func (c *sessionConn) Close() error {
	c.s.mu.Lock()
	ses := c.ses
	names := make([]string, 0, len(c.s.queues))
	for name := range c.s.queues {
		names = append(names, name)
	}
	c.s.mu.Unlock()
	for _, name := range names {
		c.s.remove(name, func(_ int, e *sessionEntry) bool { return e.session == ses })
	}
	return nil
}

type sessionHold struct {
	c     *sessionConn
	name  string
	entry *sessionEntry
	grant driver.Grant
}

func (h *sessionHold) Grant() driver.Grant { return h.grant }

func (h *sessionHold) Release(context.Context) error {
	if h.c.s.remove(h.name, func(_ int, e *sessionEntry) bool { return e == h.entry }) == 0 {
		return driver.ErrNotHeld
	}
	return nil
}

func sessionBackend(f flaws) conformance.Backend {
	s := newSessionStore(f)
	one := func(ok func(i int) bool) func(context.Context, string) error {
		return func(_ context.Context, name string) error {
			if s.remove(name, func(i int, _ *sessionEntry) bool { return ok(i) }) == 0 {
				return errors.New("there is no such entry")
			}
			return nil
		}
	}
	holder, waiter := one(func(i int) bool { return i == 0 }), one(func(i int) bool { return i > 0 })
	return conformance.Backend{
		Name:      "sessions",
		Connector: func([]string) (driver.Connector, error) { return s, nil },
		TTL:       time.Second,
		TakeOver:  time.Second,
		Admin: conformance.Admin{
			Delete:     holder,
			EndSession: func(ctx context.Context, name string) error { return s.endSession(name) },
			DropWaiter: waiter,
			Entries: func(context.Context) (all []string, err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				for name := range s.queues {
					for range s.queue(name, clock.Monotonic()) {
						all = append(all, name)
					}
				}
				return all, nil
			},
		},
	}
}

func (s *sessionStore) endSession(name string) error {
	s.mu.Lock()
	q := s.queue(name, clock.Monotonic())
	if len(q) == 0 {
		s.mu.Unlock()
		return errors.New("it isn't held")
	}
	q[0].session.expires = clock.Monotonic()
	s.mu.Unlock()
	s.remove(name, func(int, *sessionEntry) bool { return false })
	return nil
}
