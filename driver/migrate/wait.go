package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

// waiting is a hold on the old side whose new side is waited for. The engine doesn't know of it yet, but calls Renew as
// long as Lock is under way.
type waiting struct {
	hold   driver.Hold
	cancel context.CancelCauseFunc // ends the waiting when the old side is lost

	mu      sync.Mutex
	renewed driver.Renewal // the latest that was confirmed
}

func (w *waiting) report(r driver.Renewal) {
	switch {
	case r.Err == nil:
		w.mu.Lock()
		w.renewed = r
		w.mu.Unlock()
	case errors.Is(r.Err, driver.ErrNotHeld):
		w.cancel(errLostWaiting)
	}
}

var errLostWaiting = errors.New("the old side was lost while the new one was waited for")

// Lock implements driver.Queuer: it waits for the old side, and then, holding that, for the new one. Nobody waits in the
// other order, so nobody waits for each other.
func (c *conn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	bound, stop := context.WithTimeout(ctx, c.attempt)
	asks, err := c.requests(bound, req)
	stop()
	if err != nil {
		return nil, err
	}
	old, err := c.sides[from].lock(ctx, c.attempt, asks[from])
	if err != nil {
		return nil, c.sides[from].failed(err)
	}
	holding, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &waiting{hold: old, cancel: cancel, renewed: old.Grant().Renewal}
	c.keep(w, true)
	new, err := c.sides[to].lock(holding, c.attempt, asks[to])
	c.keep(w, false)

	bound, stop = context.WithTimeout(ctx, c.attempt)
	defer stop()
	switch {
	case context.Cause(holding) == errLostWaiting:
		return nil, c.sides[from].unknown(errLostWaiting) // the same ID asks again
	case err != nil:
		return nil, c.without(bound, req, old, err)
	}
	renewed, err := c.fresh(bound, w)
	if err != nil {
		return nil, err
	}
	return c.pair(bound, req, old, new, renewed)
}

func (c *conn) keep(w *waiting, kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept {
		c.waiting[w] = struct{}{}
	} else {
		delete(c.waiting, w)
	}
}

// fresh returns the latest renewal of the old side, after another one when less than half of its TTL is left.
func (c *conn) fresh(ctx context.Context, w *waiting) (driver.Renewal, error) {
	w.mu.Lock()
	renewed := w.renewed
	w.mu.Unlock()
	if c.now().Sub(renewed.Sent) < renewed.TTL/2 {
		return renewed, nil
	}
	var mu sync.Mutex
	c.sides[from].conn.Renew(ctx, []driver.Hold{w.hold}, func(_ int, r driver.Renewal) {
		mu.Lock()
		renewed = r
		mu.Unlock()
	})
	mu.Lock()
	defer mu.Unlock()
	if renewed.Err != nil {
		return renewed, c.sides[from].unknown(renewed.Err)
	}
	return renewed, nil
}

// lock waits on one side: in its own queue if it has one, otherwise for hints, and looking every few seconds.
func (s *side) lock(ctx context.Context, attempt time.Duration, req driver.Request) (driver.Hold, error) {
	var hints <-chan struct{}
	unwatch := func() {}
	defer func() { unwatch() }()
	for {
		bound, stop := context.WithTimeout(ctx, attempt)
		h, err := s.conn.TryLock(bound, req)
		stop()
		if err == nil || !errors.Is(err, driver.ErrHeld) {
			return h, err
		}
		if s.queuer != nil {
			return s.queuer.Lock(ctx, req)
		}
		if s.waiter != nil && hints == nil {
			bound, stop := context.WithTimeout(ctx, attempt)
			hints, unwatch, err = s.waiter.Watch(bound, req.Name)
			stop()
			if err == nil {
				continue // subscribed: look before sleeping
			}
			hints, unwatch = nil, func() {}
		}
		if !sleep(ctx, s.pause(driver.HeldFor(err)), hints) {
			unwatch()
			hints, unwatch = nil, func() {}
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("waiting: %w", context.Cause(ctx))
		}
	}
}

// pause returns how long to wait for a hint at most.
func (s *side) pause(remaining time.Duration) time.Duration {
	poll := s.info.Poll
	if poll <= 0 {
		poll = 3 * time.Second
	}
	d := poll/2 + rand.N(poll/2+1)
	if remaining > 0 && remaining < d {
		d = remaining + rand.N(10*time.Millisecond)
	}
	return d
}

// sleep waits for a while, a hint, or the end of ctx. It reports false when hints were closed.
func sleep(ctx context.Context, d time.Duration, hints <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case _, ok := <-hints:
		return ok
	}
	return true
}
