package consul

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasekit/locker/driver"
)

// ask is an acquisition whose outcome isn't settled. It is guarded by the Conn's mutex.
type ask struct {
	session *session      // the one that its last transaction named
	doubt   bool          // a transaction may have been applied, or may be yet
	left    *hold         // was granted after the caller had gone
	running chan struct{} // closed when the attempt under way is over; nil if there is none
	deaf    bool          // the caller of the attempt under way has gone
}

// begin starts an attempt, once the one before with the same ID is over.
func (c *conn) begin(ctx context.Context, req driver.Request) (*ask, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed
		}
		a := c.asks[req.ID]
		if a == nil {
			a = &ask{}
			c.asks[req.ID] = a
		}
		running := a.running
		if running == nil {
			a.running, a.deaf = make(chan struct{}), false
			c.work.Add(1)
			c.mu.Unlock()
			return a, nil
		}
		c.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, fmt.Errorf("consul: an attempt before is under way: %w", ctx.Err())
		}
	}
}

// finish ends an attempt. The acquisition is settled unless its outcome is in doubt, or nobody is there to take the hold.
// An answer settles it: what a request before may still do is left to Renew.
func (c *conn) finish(a *ask, id string, h *hold, err error) {
	c.mu.Lock()
	close(a.running)
	a.running = nil
	before := a.left
	if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrConflict) {
		a.left = nil
	} else {
		before = nil
	}
	switch {
	case h != nil && a.deaf:
		a.left = h
	case a.left == nil && (!a.doubt || err == nil || driver.IsAnswer(err)):
		delete(c.asks, id)
	}
	c.mu.Unlock()
	if before != nil && before != h {
		before.over()
	}
}

// abandon notes that nobody waits for the attempt under way. It reports false if that is over.
func (c *conn) abandon(a *ask) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.deaf = true
	return a.running != nil
}

// doubt notes that a transaction's outcome isn't known. It may be applied at any time while its session lives, so that
// the session takes no more locks, to end as soon as it has none, and the name is looked at until then.
func (c *conn) doubt(a *ask, s *session, req driver.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.doubt = true
	s.strays[req.ID] = req.Name
	c.retire(s)
}

// Undo waits for an attempt under way and removes what it, or one before, has left. What may still come is under a
// session that takes no more locks: Renew looks for it until that session is destroyed.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	c.mu.Lock()
	a := c.asks[req.ID]
	var running chan struct{}
	if a != nil {
		running = a.running
	}
	c.mu.Unlock()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return fmt.Errorf("consul: an attempt is under way: %w", ctx.Err())
		}
	}
	c.mu.Lock()
	a = c.asks[req.ID]
	c.mu.Unlock()
	if a == nil {
		return nil
	}
	var err error
	switch {
	case a.left != nil:
		if err = a.left.Release(ctx); errors.Is(err, driver.ErrNotHeld) {
			err = nil
		}
	case a.doubt:
		err = c.clear(ctx, a.session, req.Name, req.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && a.doubt && a.left == nil && a.session.users == 0 && c.cfg.Now().Sub(a.session.sent) >= c.cfg.TTL {
		err = nil // nobody keeps that session alive
	}
	if err == nil {
		delete(c.asks, req.ID)
	}
	return err
}

// clear removes the entry of an ID under a session, if it is there.
func (c *conn) clear(ctx context.Context, s *session, name, id string) error {
	key := c.key(name)
	right := "key:write on " + key
	entry, _, err := c.look(ctx, c.upkeep, key)
	if err != nil {
		return c.explain(err, right)
	}
	if entry == nil || entry.Session != s.id || !carries(entry, id) {
		return nil
	}
	_, no, err := c.txn(ctx, c.upkeep, removal(key, entry.ModifyIndex)...)
	if err == nil && no != nil && no.says(saysDenied) {
		err = no.err()
	}
	return c.explain(err, right) // any other refusal says that it has changed: it isn't changed by its ID any more
}
