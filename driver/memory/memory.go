// Package memory is a driver whose locks live in the memory of one process. It is the reference for the other drivers,
// and what a library author tests with:
//
//	store := memory.New()
//	l, err := locker.New(ctx, store, nil) // several Lockers can share a store, as several processes share a server
//	store.Expire("nightly")               // its holder loses it now
//
// The URL memory:// opens a store of its own each time; memory://NAME one that the whole process shares under that name.
//
// Locks are of kind correctness within the process. Tokens are max(last + 1, wall clock in microseconds), so that a fence
// kept elsewhere survives a restart of the process, unless the clock was stepped back meanwhile. Waiters are served first
// come, first served. An entry ends with its TTL if it isn't renewed: the next one may hold the name one TTL after its
// holder's last renewal.
//
// Time is the monotonic clock alone, so that a store made inside a testing/synctest bubble lives in the bubble's time. Its
// TTLs stand still while the machine is suspended, as its holders do.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

func init() { driver.Register("memory", parse) }

// Store holds locks. It is a driver.Connector: each Conn that it makes is a client of its own. It is safe for concurrent
// use.
type Store struct {
	mu     sync.Mutex
	names  map[string]*hold   // those held, or held until their TTL passed unnoticed
	queues map[string][]*spot // those who wait, first come first
	last   uint64             // the last token
}

// New returns an empty store.
func New() *Store {
	return &Store{names: make(map[string]*hold), queues: make(map[string][]*spot)}
}

// Info describes the driver.
func (s *Store) Info() driver.Info {
	return driver.Info{Backend: "memory", Correctness: true, MonotonicOnly: true}
}

// Connect returns a client of the store.
func (s *Store) Connect(_ context.Context, cfg driver.Config) (driver.Conn, error) {
	return &conn{store: s, ttl: cfg.TTL, now: cfg.Now, done: make(chan struct{})}, nil
}

// Expire takes a name away from its holder, as a server does that loses its data: the holder is told, and the next waiter
// gets the name. It reports whether the name was held.
func (s *Store) Expire(name string) bool {
	s.mu.Lock()
	h := s.holder(name, clock.Monotonic())
	if h != nil {
		s.pass(name, clock.Monotonic())
	}
	s.mu.Unlock()
	if h == nil {
		return false
	}
	if h.req.Lost != nil {
		h.req.Lost(driver.ErrNotHeld)
	}
	return true
}

// holder returns who holds a name, after passing it on if the TTL of the one before has passed. It needs the mutex, as all
// methods below do.
func (s *Store) holder(name string, now driver.Instant) *hold {
	for {
		h := s.names[name]
		if h == nil || now.Before(h.expires) {
			return h
		}
		s.pass(name, now)
	}
}

// pass takes a name from its holder and grants it to the first who waits for it.
func (s *Store) pass(name string, now driver.Instant) {
	delete(s.names, name)
	queue := s.queues[name]
	if len(queue) == 0 {
		return
	}
	first := queue[0]
	s.leave(first)
	first.granted <- s.grant(first.conn, first.req, now)
}

// grant makes req the holder of its name.
func (s *Store) grant(c *conn, req driver.Request, now driver.Instant) *hold {
	since := time.Now()
	s.last = max(s.last+1, uint64(since.UnixMicro()))
	h := &hold{conn: c, req: req, since: since, token: s.last, sent: now, expires: now.Add(c.ttl)}
	s.names[req.Name] = h
	return h
}

// leave takes a spot out of its queue, if it is still there.
func (s *Store) leave(w *spot) {
	queue := s.queues[w.req.Name]
	for i, other := range queue {
		if other == w {
			queue = append(queue[:i:i], queue[i+1:]...)
			break
		}
	}
	if len(queue) == 0 {
		delete(s.queues, w.req.Name)
	} else {
		s.queues[w.req.Name] = queue
	}
}
