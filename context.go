package locker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// leaseContext is a lease as a context. It wraps the standard library's cancelCtx, which its Done and Value lead to, so
// that contexts derived from it start no goroutine; and it compares the deadline with the clock first, so that a paused
// process isn't told old news.
type leaseContext lease

func (c *leaseContext) Deadline() (time.Time, bool) { return c.inner.Deadline() }

func (c *leaseContext) Done() <-chan struct{} {
	(*lease)(c).check()
	return c.inner.Done()
}

func (c *leaseContext) Err() error {
	switch (*lease)(c).check() {
	case nil:
		return nil
	case ErrMaxHold:
		return context.DeadlineExceeded
	}
	return context.Canceled
}

func (c *leaseContext) Value(key any) any {
	(*lease)(c).check()
	return c.inner.Value(key)
}

// values is a context with the values of another one and nothing else, as context.WithoutCancel makes it; embedded in the
// lease it costs no allocation.
type values struct{ from context.Context }

func (values) Deadline() (time.Time, bool) { return time.Time{}, false }
func (values) Done() <-chan struct{}       { return nil }
func (values) Err() error                  { return nil }
func (v values) Value(key any) any         { return v.from.Value(key) }

// callContext bounds one call of a driver: by a duration, by a point in time, and by the end of up to two contexts, the
// caller's and the engine's. Most calls return before anybody waits for their context, so it makes a real one, with a
// timer, only when Done is asked for; the duration counts from when the deadline is asked for.
type callContext struct {
	parent  context.Context // whose values are used
	closing *engine         // whose Close ends the call; nil: none
	bound   time.Duration   // 0: none
	real    atomic.Pointer[realContext]

	mu    sync.Mutex
	asked bool      // bound counts
	limit time.Time // zero: none; once asked, no later than bound allows
}

type realContext struct {
	context.Context
	stop func()
}

func (c *callContext) Deadline() (time.Time, bool) {
	at := c.ends()
	if d, ok := c.parent.Deadline(); ok && (at.IsZero() || d.Before(at)) {
		return d, true
	}
	return at, !at.IsZero()
}

// ends returns the call's own deadline; the zero time if it has none.
func (c *callContext) ends() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked && c.bound > 0 {
		if d := time.Now().Add(c.bound); c.limit.IsZero() || d.Before(c.limit) {
			c.limit = d
		}
	}
	c.asked = true
	return c.limit
}

func (c *callContext) Done() <-chan struct{} { return c.realize().Done() }

func (c *callContext) Err() error {
	if r := c.real.Load(); r != nil {
		return r.Err()
	}
	if c.closing != nil && c.closing.ctx.Err() != nil {
		return context.Canceled
	}
	if err := c.parent.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.limit.IsZero() && !time.Now().Before(c.limit) {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *callContext) Value(key any) any {
	if r := c.real.Load(); r != nil {
		return r.Value(key)
	}
	return c.parent.Value(key)
}

func (c *callContext) realize() *realContext {
	if r := c.real.Load(); r != nil {
		return r
	}
	deadline := c.ends()
	var r *realContext
	if deadline.IsZero() {
		ctx, cancel := context.WithCancel(c.parent)
		r = &realContext{ctx, cancel}
	} else {
		ctx, cancel := context.WithDeadline(c.parent, deadline)
		r = &realContext{ctx, cancel}
	}
	if c.closing != nil {
		cancel := r.stop
		detach := context.AfterFunc(c.closing.ctx, cancel)
		r.stop = func() { detach(); cancel() }
	}
	if !c.real.CompareAndSwap(nil, r) {
		r.stop()
	}
	return c.real.Load()
}

// end releases what the context uses and cancels those who still look at it.
func (c *callContext) end() {
	if r := c.real.Load(); r != nil {
		r.stop()
	}
}

// over reports whether the call's time is over, or will be after a while.
func (c *callContext) over(after time.Duration) bool {
	d, ok := c.Deadline()
	return c.Err() != nil || ok && !time.Now().Add(after).Before(d)
}
