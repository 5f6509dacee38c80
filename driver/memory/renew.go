package memory

import (
	"context"

	"github.com/leasekit/locker/driver"
)

func (c *conn) Renew(_ context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	for i, h := range holds {
		report(i, c.renew(h.(*hold)))
	}
	return 0
}

func (c *conn) renew(h *hold) driver.Renewal {
	now := c.now()
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.holder(h.req.Name, now)
	if current == nil || current.req.ID != h.req.ID {
		return driver.Renewal{Err: driver.ErrNotHeld}
	}
	current.expires = now.Add(c.ttl)
	return driver.Renewal{Sent: now, TTL: c.ttl}
}
