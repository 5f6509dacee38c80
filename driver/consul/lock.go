package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

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

// outcome is what an attempt ended with.
type outcome struct {
	hold *hold
	err  error
}

// TryLock returns when ctx ends, and its request goes on: cut short, it would leave it open whether it was applied, and
// would cost its connection. Undo and the next attempt with the same ID wait for it.
func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	if err := c.manners.giveWay(ctx, c.cfg.Now(), req.Name); err != nil {
		return nil, err
	}
	a, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	done := make(chan outcome, 1)
	go func() {
		defer c.work.Done()
		h, err := c.attempt(ctx, a, req)
		c.finish(a, req.ID, h, err)
		done <- outcome{h, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		if c.abandon(a) {
			return nil, fmt.Errorf("consul: %w", ctx.Err())
		}
		o = <-done
	}
	if o.err != nil {
		return nil, o.err
	}
	return o.hold, nil
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

// attempt tries to take the name. It looks before if there is a reason to believe that this saves a transaction, which
// costs the servers more than a look even if it fails.
func (c *conn) attempt(ctx context.Context, a *ask, req driver.Request) (*hold, error) {
	key := c.key(req.Name)
	right := "key:write on " + key
	mine := a.doubt || a.left != nil
	look := mine || c.manners.seemsHeld(c.cfg.Now(), req.Name)
	for range 5 {
		var s *session
		var err error
		if mine {
			// Before the look, since what it finds has to be alive.
			if s, err = c.join(ctx, a.session); err != nil {
				return nil, err
			}
		}
		check := &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key}
		if look {
			entry, offset, err := c.look(ctx, c.grants, key)
			switch {
			case err != nil:
				err = c.explain(err, right)
			case entry == nil:
			case s != nil && entry.Session == s.id && carries(entry, req.ID):
				return c.regain(ctx, a, s, req, entry, offset)
			case entry.Session != "":
				c.manners.lost(c.cfg.Now(), req.Name)
				err = driver.Held(0)
			case entry.Flags != api.LockFlagValue:
				err = fmt.Errorf("%w: consul: the key %q has flags %d and not those of a lock", driver.ErrConflict, key, entry.Flags)
			default: // api.Lock leaves its key there
				check = &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: entry.ModifyIndex}
			}
			if err != nil {
				if s != nil {
					c.leave(s)
				}
				return nil, err
			}
		}
		if s == nil {
			if s, err = c.join(ctx, a.session); err != nil {
				return nil, err
			}
		}
		a.session = s
		began := c.cfg.Now()
		results, no, err := c.txn(ctx, c.grants, check, &api.KVTxnOp{
			Verb:    api.KVLock,
			Key:     key,
			Value:   value(req, time.Now()),
			Flags:   api.LockFlagValue,
			Session: s.id,
		}, c.offsetOp())
		if err == nil && no == nil {
			c.manners.took(c.cfg.Now(), req.Name, c.cfg.Now().Sub(began))
			return c.granted(ctx, s, req, results)
		}
		if err != nil && !unsent(err) {
			c.doubt(a, s, req)
		}
		c.leave(s)
		switch {
		case err != nil:
			return nil, c.explain(err, right)
		case no.says(saysDenied):
			return nil, c.explain(no.err(), right)
		case no.says(saysSession):
			c.forget(s)
		case no.says(saysDelay):
			c.manners.freed(c.cfg.Now(), req.Name)
			return nil, fmt.Errorf("consul: its lock-delay lasts after a session that ended: %w", driver.Held(delayPoll))
		case no.says(saysHeld):
			c.manners.lost(c.cfg.Now(), req.Name)
			return nil, driver.Held(0)
		default:
			look = true
		}
	}
	return nil, driver.Held(0) // it was free and taken each time
}

// delayPoll is the pause between attempts during a lock-delay, whose end isn't told.
const delayPoll = time.Second

// doubt notes that a transaction's outcome isn't known. It may be applied at any time while its session lives, so that
// the session takes no more locks, to end as soon as it has none, and the name is looked at until then.
func (c *conn) doubt(a *ask, s *session, req driver.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.doubt = true
	s.strays[req.ID] = req.Name
	c.retire(s)
}

// regain makes a hold of an entry that an attempt before has made under s.
func (c *conn) regain(ctx context.Context, a *ask, s *session, req driver.Request, entry, offset *api.KVPair) (*hold, error) {
	if h := a.left; h != nil && h.index == entry.ModifyIndex {
		c.leave(s) // the hold is a user already
		c.mu.Lock()
		defer c.mu.Unlock()
		h.grant.Sent = s.sent
		return h, nil
	}
	results := api.TxnResults{{KV: entry}}
	if offset != nil {
		results = append(results, &api.TxnResult{KV: offset})
	}
	return c.granted(ctx, s, req, results)
}

// granted makes a hold of what the grant's transaction returned: the entry, and the offset of tokens if there is one.
func (c *conn) granted(ctx context.Context, s *session, req driver.Request, results api.TxnResults) (*hold, error) {
	h := &hold{c: c, s: s, name: req.Name, id: req.ID, key: c.key(req.Name), lost: req.Lost}
	var offset *api.KVPair
	for _, r := range results {
		switch r.KV.Key {
		case h.key:
			h.index = r.KV.ModifyIndex
		case c.offsetKey():
			offset = r.KV
		}
	}
	token, err := addOffset(h.index, offset)
	if h.index == 0 {
		err = c.explain(errFiltered, "key:read on "+h.key)
	}
	c.mu.Lock()
	s.live[h.id] = h
	h.grant = driver.Grant{Token: token, Renewal: driver.Renewal{Sent: s.sent, TTL: c.cfg.TTL}}
	c.mu.Unlock()
	if err != nil {
		if undone := h.discard(ctx); undone != nil {
			c.doubt(&ask{}, s, req)
		}
		h.over()
		return nil, err
	}
	return h, nil
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
