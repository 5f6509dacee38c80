package memory

import (
	"context"

	"github.com/leasekit/locker/driver"
)

func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.closed() {
		return nil, errClosed
	}
	now := c.now()
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holder(req.Name, now)
	switch {
	case h == nil:
		return s.grant(c, req, now), nil
	case h.req.ID == req.ID:
		return h.again(now), nil
	}
	return nil, driver.Held(-now.Sub(h.expires))
}

// again answers the request that holds the name already: its TTL is set anew, its token stays.
func (h *hold) again(now driver.Instant) *hold {
	renewed := *h
	renewed.sent, renewed.expires = now, now.Add(h.conn.ttl)
	h.conn.store.names[h.req.Name] = &renewed
	return &renewed
}

func (c *conn) Undo(_ context.Context, req driver.Request) error {
	now := c.now()
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.queues[req.Name] {
		if w.req.ID == req.ID {
			s.leave(w)
			break
		}
	}
	if h := s.holder(req.Name, now); h != nil && h.req.ID == req.ID {
		s.pass(req.Name, now)
	}
	return nil
}

func (h *hold) Release(context.Context) error {
	now := h.conn.now()
	s := h.conn.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if current := s.holder(h.req.Name, now); current == nil || current.req.ID != h.req.ID {
		return driver.ErrNotHeld
	}
	s.pass(h.req.Name, now)
	return nil
}
