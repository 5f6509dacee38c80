package migrate

import (
	"context"
	"errors"
	"sync"

	"github.com/leasekit/locker/driver"
)

// TryLock implements driver.Conn. What isn't known to be undone is left to the engine, which asks again with the same ID
// or calls Undo: both sides are idempotent for the ID, so the pair is.
func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	asks, err := c.requests(ctx, req)
	if err != nil {
		return nil, err
	}
	old, err := c.sides[from].conn.TryLock(ctx, asks[from])
	if err != nil {
		return nil, c.sides[from].failed(err)
	}
	new, err := c.sides[to].conn.TryLock(ctx, asks[to])
	if err != nil {
		return nil, c.without(ctx, req, old, err)
	}
	return c.pair(ctx, req, old, new, old.Grant().Renewal)
}

// failed makes an error of a side one of the pair. ErrNotHeld would be an answer to a question that wasn't asked.
func (s *side) failed(err error) error {
	if errors.Is(err, driver.ErrNotHeld) {
		return s.unknown(err)
	}
	return s.said(err)
}

// without returns the error of an attempt that has the old side and not the new one. After an answer nobody asks again for
// what is left, so the old side is given back first.
func (c *conn) without(ctx context.Context, req driver.Request, old driver.Hold, err error) error {
	if driver.IsAnswer(err) {
		if unknown := c.giveBack(ctx, req, from, old); unknown != nil {
			return unknown
		}
	}
	return c.sides[to].failed(err)
}

// pair raises both sides to the larger token and makes one hold of two. renewed is the latest renewal of the old one.
func (c *conn) pair(ctx context.Context, req driver.Request, old, new driver.Hold, renewed driver.Renewal) (driver.Hold, error) {
	h := &hold{conn: c, name: req.Name, parts: [2]driver.Hold{old, new}}
	h.grant = driver.Grant{
		Token:   max(old.Grant().Token, new.Grant().Token),
		Renewal: earlier(renewed, new.Grant().Renewal),
	}
	for i, part := range h.parts {
		if part.Grant().Token == h.grant.Token {
			continue // whoever is next on this side has a larger one anyway
		}
		err := c.sides[i].advancer.Advance(ctx, part, h.grant.Token)
		switch {
		case err == nil:
		case driver.IsPermanent(err):
			if unknown := errors.Join(c.giveBack(ctx, req, to, new), c.giveBack(ctx, req, from, old)); unknown != nil {
				return nil, unknown
			}
			return nil, c.sides[i].said(err)
		default:
			return nil, c.sides[i].unknown(err)
		}
	}
	c.forget(req)
	return h, nil
}

// earlier returns the renewal that ends earlier.
func earlier(a, b driver.Renewal) driver.Renewal {
	if b.Sent.Add(b.TTL).Before(a.Sent.Add(a.TTL)) {
		return b
	}
	return a
}

// Undo implements driver.Conn, on both sides at once: one that is silent keeps nothing on the other.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	p := c.pastOf(req)
	var wg sync.WaitGroup
	var errs [2]error
	for i, s := range c.sides {
		wg.Go(func() {
			err := s.conn.Undo(ctx, id(req, p.tries[i]))
			if p.unresolved[i] {
				err = errors.Join(err, s.conn.Undo(ctx, id(req, p.tries[i]-1)))
			}
			if err != nil {
				errs[i] = s.unknown(err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	c.forget(req)
	return nil
}

// hold is a hold on both sides.
type hold struct {
	conn  *conn
	name  string
	parts [2]driver.Hold
	grant driver.Grant

	mu    sync.Mutex
	freed [2]bool
	lost  bool // one of them was gone before it was released
}

func (h *hold) Grant() driver.Grant { return h.grant }

// Release gives back the new side first: a waiter of phase both that gets the old one then finds the new one free.
func (h *hold) Release(ctx context.Context) error {
	var unknown error
	for _, i := range []int{to, from} {
		h.mu.Lock()
		freed := h.freed[i]
		h.mu.Unlock()
		if freed {
			continue
		}
		err := h.parts[i].Release(ctx)
		if err != nil && !errors.Is(err, driver.ErrNotHeld) {
			unknown = errors.Join(unknown, h.conn.sides[i].said(err))
			continue
		}
		h.mu.Lock()
		h.freed[i] = true
		h.lost = h.lost || err != nil
		h.mu.Unlock()
	}
	if unknown != nil {
		return unknown
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return driver.ErrNotHeld
	}
	return nil
}
