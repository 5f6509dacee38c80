package memory

import (
	"context"
	"time"

	"github.com/leasekit/locker/driver"
)

// spot is a place in the queue of a name.
type spot struct {
	conn    *conn
	req     driver.Request
	granted chan *hold // has room for the one hold
}

func (c *conn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	s := c.store
	w := &spot{conn: c, req: req, granted: make(chan *hold, 1)}
	for queued := false; ; queued = true {
		now := c.now()
		s.mu.Lock()
		holder := s.holder(req.Name, now) // passes the name on if the holder's TTL has passed
		switch {
		case queued:
		case holder == nil:
			h := s.grant(c, req, now)
			s.mu.Unlock()
			return h, nil
		case holder.req.ID == req.ID:
			h := holder.again(now)
			s.mu.Unlock()
			return h, nil
		default:
			s.queues[req.Name] = append(s.queues[req.Name], w)
		}
		expires := time.NewTimer(time.Hour)
		if holder != nil {
			expires.Reset(max(-now.Sub(holder.expires), 0))
		}
		s.mu.Unlock()

		select {
		case h := <-w.granted:
			expires.Stop()
			return h, nil
		case <-expires.C:
			continue
		case <-ctx.Done():
		case <-c.done:
		}
		expires.Stop()
		return c.give(ctx, w)
	}
}

// give gives up a place in the queue, or returns the hold that was granted in the same moment.
func (c *conn) give(ctx context.Context, w *spot) (driver.Hold, error) {
	c.store.mu.Lock()
	c.store.leave(w)
	c.store.mu.Unlock()
	select {
	case h := <-w.granted:
		return h, nil
	default:
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, errClosed
}
