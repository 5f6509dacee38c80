package consul

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

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

// attempt tries to take the name. It looks before if there is a reason to believe that this saves a transaction, which
// costs the servers more than a look even if it fails.
func (c *conn) attempt(ctx context.Context, a *ask, req driver.Request) (*hold, error) {
	key := c.key(req.Name)
	right := "key:write on " + key
	mine := a.doubt || a.left != nil
	polite := mine || c.manners.follows(c.cfg.Now(), req.Name)
	look := mine || !polite && c.manners.turn(c.cfg.Now(), req.Name, c.watchers.ofName(req.Name)) > 0 || c.manners.seemsHeld(c.cfg.Now(), req.Name)
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
			case entry == nil && !polite: // it is free; others may have waited for longer
				polite = true
				if err := await(ctx, c.manners.turn(c.cfg.Now(), req.Name, c.watchers.ofName(req.Name))); err != nil {
					return nil, err
				}
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
