package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

var (
	_ driver.Conn      = (*conn)(nil)
	_ driver.Queuer    = (*conn)(nil)
	_ driver.Inspector = (*conn)(nil)
	_ driver.Checker   = (*conn)(nil)
)

// from and to are indices of sides. Locks are taken in this order and given back in the other one.
const (
	from = iota
	to
)

// conn locks on both sides.
type conn struct {
	sides   [2]*side
	now     func() driver.Instant
	attempt time.Duration // bounds one request of Lock, whose context has no deadline

	mu      sync.Mutex
	waiting map[*waiting]struct{} // holds on the old side whose new one is waited for: Renew keeps them alive
	past    map[string]*past      // by ID: what was given back without an answer
}

// side is one of the two backends.
type side struct {
	role     string // "from" or "to"
	info     driver.Info
	conn     driver.Conn
	advancer driver.Advancer
	queuer   driver.Queuer // nil if there is none
	waiter   driver.Waiter // nil if there is none
}

// said adds to an error which side it comes from.
func (s *side) said(err error) error { return fmt.Errorf("%s (%s): %w", s.role, s.info.Backend, err) }

// unknown is said for what isn't an answer about the pair, whatever it is one about.
func (s *side) unknown(err error) error {
	return fmt.Errorf("%s (%s): %v", s.role, s.info.Backend, err)
}

// past is what an acquisition has asked before. A request to give an entry back whose reply was lost may arrive at any
// time, so its identity is never asked with again on that side: the next one is derived from it, and is used only once
// nothing of the earlier one is left.
type past struct {
	tries      [2]int  // how many identities were given up on each side
	unresolved [2]bool // the last of them isn't known to be gone
}

// id returns the identity that an acquisition has on a side after some were given up.
func id(req driver.Request, tries int) driver.Request {
	if tries > 0 {
		sum := sha256.Sum256([]byte(req.ID + "/" + strconv.Itoa(tries)))
		req.ID = hex.EncodeToString(sum[:16])
	}
	return req
}

// requests returns what to ask each side, after making sure that nothing is left of identities that were given up.
func (c *conn) requests(ctx context.Context, req driver.Request) (asks [2]driver.Request, err error) {
	p := c.pastOf(req)
	for i, s := range c.sides {
		if p.unresolved[i] {
			if err := s.conn.Undo(ctx, id(req, p.tries[i]-1)); err != nil {
				return asks, s.unknown(err)
			}
			c.change(req, func(p *past) { p.unresolved[i] = false })
		}
		asks[i] = id(req, p.tries[i])
	}
	return asks, nil
}

func (c *conn) pastOf(req driver.Request) past {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.past[req.ID]; p != nil {
		return *p
	}
	return past{}
}

func (c *conn) change(req driver.Request, do func(*past)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.past[req.ID]
	if p == nil {
		p = &past{}
		c.past[req.ID] = p
	}
	do(p)
}

func (c *conn) forget(req driver.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.past, req.ID)
}

// giveBack releases a hold on one side, of an acquisition that goes on. If that isn't confirmed, the identity is given up.
func (c *conn) giveBack(ctx context.Context, req driver.Request, i int, h driver.Hold) error {
	err := h.Release(ctx)
	if err == nil || errors.Is(err, driver.ErrNotHeld) {
		return nil
	}
	c.change(req, func(p *past) {
		p.tries[i]++
		p.unresolved[i] = true
	})
	return c.sides[i].unknown(err)
}

// Close implements driver.Conn.
func (c *conn) Close() error {
	var wg sync.WaitGroup
	var errs [2]error
	for i, s := range c.sides {
		wg.Go(func() {
			if err := s.conn.Close(); err != nil {
				errs[i] = s.said(err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}
