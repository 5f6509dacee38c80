package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

const (
	maxOps    = 64 // that a transaction may have
	maxChecks = 4  // transactions of one renewal at a time
)

// Renew renews each session and looks whether the entries still have the index of their grant: nobody has touched them,
// so that they are locked by the session still. Both are asked for at once, since a renewal has to fit into a sixth of
// the TTL. The look is consistent: it is that of a leader which has made sure that it is one, at a time after Sent.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	bySession := make(map[*session][]int)
	for i, h := range holds {
		s := h.(*hold).s
		bySession[s] = append(bySession[s], i)
	}
	c.mu.Lock()
	for s := range c.sessions {
		if _, ok := bySession[s]; !ok {
			bySession[s] = nil
		}
	}
	c.mu.Unlock()

	var all sync.WaitGroup
	for s, mine := range bySession {
		all.Go(func() {
			c.renewHolds(ctx, s, holds, mine, report)
			c.tidy(ctx, s)
		})
	}
	all.Wait()

	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		unresolved += len(s.strays)
		if s.retired && len(s.strays) == 0 {
			unresolved++ // it has to be destroyed
		}
	}
	return unresolved
}

// renewHolds renews s and looks at those of its holds that are listed in mine.
func (c *conn) renewHolds(ctx context.Context, s *session, holds []driver.Hold, mine []int, report func(int, driver.Renewal)) {
	fail := func(err error) {
		for _, i := range mine {
			report(i, driver.Renewal{Err: err})
		}
	}
	c.mu.Lock()
	over := c.cfg.Now().Sub(s.sent) >= c.cfg.TTL
	idle := s.users == 0
	if over {
		c.retire(s)
	}
	c.mu.Unlock()
	switch {
	case over:
		fail(fmt.Errorf("%w: consul: the session's TTL has passed without a renewal", driver.ErrNotHeld))
		return
	case idle && len(mine) == 0:
		return // a lock that is taken under it renews it
	}
	renewal := driver.Renewal{Sent: c.cfg.Now(), TTL: c.cfg.TTL}
	renewed := make(chan struct{})
	var asked sync.WaitGroup
	asked.Go(func() {
		defer close(renewed)
		if renewal.Err = c.renew(ctx, c.upkeep, s); errors.Is(renewal.Err, errGone) {
			renewal.Err = errSessionGone
		}
	})
	slots := make(chan struct{}, maxChecks)
	for chunk := range slices.Chunk(mine, maxOps) {
		slots <- struct{}{}
		asked.Go(func() {
			errs := c.check(ctx, holds, chunk)
			<-slots
			<-renewed
			for n, i := range chunk {
				switch {
				case renewal.Err != nil && !errors.Is(errs[n], driver.ErrNotHeld):
					report(i, driver.Renewal{Err: renewal.Err})
				case errs[n] != nil:
					report(i, driver.Renewal{Err: errs[n]})
				default:
					report(i, renewal)
				}
			}
		})
	}
	asked.Wait()
}

// check looks whether entries are as they were granted, and returns what is wrong with each.
func (c *conn) check(ctx context.Context, holds []driver.Hold, chunk []int) []error {
	ops := make([]*api.KVTxnOp, len(chunk))
	for n, i := range chunk {
		h := holds[i].(*hold)
		ops[n] = &api.KVTxnOp{Verb: api.KVCheckIndex, Key: h.key, Index: h.index}
	}
	_, no, err := c.txn(ctx, c.upkeep, ops...)
	if err != nil {
		err = c.explain(err, "key:read on its keys")
	}
	errs := make([]error, len(chunk))
	for n, i := range chunk {
		errs[n] = err
		if no != nil {
			errs[n] = c.lost(*no, n, holds[i].(*hold))
		}
	}
	return errs
}

// lost returns what a refused look says about operation n.
func (c *conn) lost(no refusal, n int, h *hold) error {
	what := no.of(n)
	switch {
	case what == "" && no.says(saysDenied):
		return errors.New("consul: not looked at, as another key of the transaction may not be read")
	case what == "":
		return nil
	case no.denied(n):
		return c.explain(errors.New(what), "key:read on "+h.key)
	}
	return fmt.Errorf("%w: consul: %s", driver.ErrNotHeld, c.redact(what))
}

// tidy removes what requests that arrived late have made under s, and destroys s when it is retired and not used.
func (c *conn) tidy(ctx context.Context, s *session) {
	c.mu.Lock()
	strays := make(map[string]string)
	for id, name := range s.strays {
		if s.live[id] == nil && c.asks[id] == nil {
			strays[id] = name
		}
	}
	c.mu.Unlock()
	for id, name := range strays {
		if err := c.clear(ctx, s, name, id); err != nil {
			c.cfg.Logger.DebugContext(ctx, "clean-up failed", "name", name, "err", err)
		}
	}

	c.mu.Lock()
	destroy := s.retired && s.users == 0
	if _, known := c.sessions[s]; !known {
		destroy = false
	}
	s.ending = s.ending || destroy
	c.mu.Unlock()
	if !destroy {
		return
	}
	if err := c.destroy(ctx, s); err != nil {
		c.cfg.Logger.DebugContext(ctx, "the session isn't destroyed yet", "err", err)
		return
	}
	c.forget(s)
}
