package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/leasekit/locker"
)

// acquire takes a name that is free or becomes free.
func (e *env) acquire(c *client, name string, opts ...locker.AcquireOption) locker.Lease {
	return e.acquireWithin(e.patience, c, name, opts...)
}

func (e *env) acquireWithin(d time.Duration, c *client, name string, opts ...locker.AcquireOption) locker.Lease {
	ctx, stop := context.WithTimeout(e.ctx, d)
	defer stop()
	l, err := c.Acquire(ctx, name, opts...)
	e.granted(l, err)
	return l
}

// granted sees that an acquisition has succeeded with a lease that can be one.
func (e *env) granted(l locker.Lease, err error) {
	e.NoError(err, "acquire")
	if l == nil {
		e.fail("acquire returned neither a lease nor an error")
	}
	e.Positive(uint64(l.Token()), "a token is never 0")
	e.LessOrEqual(uint64(l.Token()), uint64(1<<63-1), "a token fits into an SQL BIGINT")
}

// refused sees that an acquisition has failed with an error that matches targets, and with no lease.
func (e *env) refused(l locker.Lease, err error, targets ...error) {
	e.Error(err, "acquire returned no error and a lease that is nil: %v", l == nil)
	e.Nil(l, "an error and a lease")
	for _, target := range targets {
		e.ErrorIs(err, target)
	}
	e.NotErrorIs(err, locker.ErrLost, "Acquire never returns ErrLost")
}

// held sees that somebody else holds a name.
func (e *env) held(c *client, name string) {
	l, err := c.TryAcquire(e.ctx, name)
	if err == nil && l != nil {
		e.fail("%q was granted a second time, with token %d", name, l.Token())
	}
	e.refused(l, err, locker.ErrHeld)
}

// heldFor sees that a wait for a held name lasts d at least, and that its error says so. A wait in which the backend gave no
// answer doesn't know of a holder, and says that it is unavailable: then a longer one follows.
func (e *env) heldFor(d time.Duration, c *client, name string) error {
	for {
		w := e.waitFor(d, c, name)
		err := w.refused(d+e.patience, context.DeadlineExceeded)
		e.GreaterOrEqual(w.ended.Sub(w.began), d)
		if d *= 2; !errors.Is(err, locker.ErrUnavailable) || d > e.patience {
			e.ErrorIs(err, locker.ErrHeld)
			return err
		}
	}
}

// free sees that a name can be taken now, without waiting for an entry to expire.
func (e *env) free(c *client, name string) {
	e.release(e.acquire(c, name))
}

func (e *env) release(l locker.Lease) { e.NoError(l.Release(e.ctx), "release") }

// over releases a lease that a case has no more need of and says nothing about: on a busy machine it may be lost by then,
// or the answer late.
func (e *env) over(l locker.Lease) {
	if err := l.Release(e.ctx); err != nil {
		e.True(isUnavailableOrLost(err), "release: %v", err)
	}
}

// alive sees that a lease is one.
func (e *env) alive(l locker.Lease) {
	e.NoError(l.Context().Err(), "the lease has ended: %v", context.Cause(l.Context()))
}

// lost waits until a lease has ended by a loss, and returns why.
func (e *env) lost(l locker.Lease, within time.Duration) error {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-l.Context().Done():
	case <-t.C:
		e.fail("the holder of %q wasn't told within %v that the lease is lost", l.Name(), within)
	}
	cause := context.Cause(l.Context())
	e.ErrorIs(cause, locker.ErrLost)
	e.Error(l.Context().Err())
	e.LessOrEqual(l.Remaining(), time.Duration(0), "an ended lease has nothing remaining")
	return cause
}

// waiting is an Acquire under way.
type waiting struct {
	e     *env
	done  chan struct{}
	stop  context.CancelFunc
	lease locker.Lease
	err   error
	began time.Time
	ended time.Time
}

// wait starts an Acquire with its own goroutine and context.
func (e *env) wait(c *client, name string, opts ...locker.AcquireOption) *waiting {
	began := time.Now()
	ctx, stop := context.WithCancel(e.ctx)
	return e.waitWith(ctx, stop, began, c, name, opts...)
}

func (e *env) waitFor(d time.Duration, c *client, name string, opts ...locker.AcquireOption) *waiting {
	began := time.Now() // before the context's time begins, or the wait could seem too short
	ctx, stop := context.WithTimeout(e.ctx, d)
	return e.waitWith(ctx, stop, began, c, name, opts...)
}

func (e *env) waitWith(ctx context.Context, stop context.CancelFunc, began time.Time, c *client, name string, opts ...locker.AcquireOption) *waiting {
	w := &waiting{e: e, done: make(chan struct{}), stop: stop, began: began}
	e.cleanup(stop)
	e.spawn(func() {
		defer close(w.done)
		w.lease, w.err = c.Acquire(ctx, name, opts...)
		w.ended = time.Now()
	})
	return w
}

// over waits until the call has returned.
func (w *waiting) over(within time.Duration) (locker.Lease, error) {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-w.done:
	case <-t.C:
		w.e.fail("Acquire hasn't returned within %v", within)
	}
	return w.lease, w.err
}

// granted waits until the call has returned a lease.
func (w *waiting) granted(within time.Duration) locker.Lease {
	l, err := w.over(within)
	w.e.granted(l, err)
	return l
}

// refused waits until the call has failed.
func (w *waiting) refused(within time.Duration, targets ...error) error {
	l, err := w.over(within)
	w.e.refused(l, err, targets...)
	return err
}

// still sees that the call hasn't returned.
func (w *waiting) still() {
	select {
	case <-w.done:
		w.e.fail("Acquire has returned while it should wait: lease %v, error %v", w.lease != nil, w.err)
	default:
	}
}

func matches(err, target error) bool { return errors.Is(err, target) }

// isTimeout reports whether an error is what a wait with a context ends with.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
