package memory

import (
	"context"

	"github.com/leasekit/locker/driver"
)

func (c *conn) Inspect(_ context.Context, name string) (driver.Entry, error) {
	now := c.now()
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entry(name, now), nil
}

func (c *conn) List(_ context.Context, yield func(driver.Entry) bool) error {
	now := c.now()
	s := c.store
	s.mu.Lock()
	var held []driver.Entry
	for name := range s.names {
		if e := s.entry(name, now); e.Held {
			held = append(held, e)
		}
	}
	s.mu.Unlock()
	for _, e := range held {
		if !yield(e) {
			break
		}
	}
	return nil
}

// entry describes a name. It needs the mutex.
func (s *Store) entry(name string, now driver.Instant) driver.Entry {
	h := s.holder(name, now)
	e := driver.Entry{Name: name, Waiters: len(s.queues[name])}
	if h == nil {
		return e
	}
	e.Held, e.Owner, e.ID, e.Since, e.Token = true, h.req.Owner, h.req.ID, h.since, h.token
	e.Remaining = -now.Sub(h.expires)
	return e
}

func (c *conn) Advance(_ context.Context, h driver.Hold, floor uint64) error {
	now := c.now()
	mine := h.(*hold)
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if current := s.holder(mine.req.Name, now); current == nil || current.req.ID != mine.req.ID {
		return driver.ErrNotHeld
	}
	s.last = max(s.last, floor)
	return nil
}
