package locker

import (
	"context"
	"errors"
	"time"
)

// Do calls fn while it holds a name. ctx bounds the wait and the work; opts bound the wait alone.
//
// The context that fn is given ends when ctx or the lease ends, whichever is first, and is what the given lease's Context
// returns. The name is released after fn has returned, also after a panic.
//
// What the error says:
//
//   - nil: fn ran and returned nil, and the name was held until it returned.
//   - ErrLost: fn ran, and the lease ended under it. Whatever fn returned is in the chain too. Somebody else may have
//     done the same work meanwhile; if all that fn wrote was refused for a stale [Token], trust what was committed.
//   - anything else: fn's own error, or the reason why fn didn't run.
//
// Test for ErrLost before context.Canceled, as a function that was told to stop often returns the latter. A release that
// couldn't be confirmed isn't returned, since it would look like "didn't run": it is logged, given to Hooks.Released and
// goes on in the background.
//
// Do holds the name while fn runs; it doesn't remember that fn ran. A job that must run once per night also needs a mark
// that it is done, checked and written under the lock.
func Do(ctx context.Context, l Locker, name string, fn func(ctx context.Context, lease Lease) error, opts ...AcquireOption) error {
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	if doing, ok := lease.(interface{ enterDo() func() }); ok {
		defer doing.enterDo()()
	}
	fnErr, heldErr := run(ctx, lease, fn)
	if heldErr == nil {
		return fnErr
	}
	backend := ""
	if known, ok := errors.AsType[*Error](heldErr); ok {
		backend, heldErr = known.Backend, known.Err
	}
	if fnErr != nil {
		heldErr = &didWork{lost: heldErr, work: fnErr}
	}
	return &Error{"do", backend, name, heldErr}
}

// run calls fn and releases the lease. heldErr matches ErrLost if the lease wasn't held until fn returned.
func run(ctx context.Context, lease Lease, fn func(context.Context, Lease) error) (fnErr, heldErr error) {
	work := newDoContext(ctx, lease.Context())
	defer func() {
		heldErr = lostUnder(lease)
		work.cancel(context.Canceled)
		work.detach()
		if err := lease.Release(ctx); heldErr == nil && errors.Is(err, ErrLost) {
			heldErr = err
		}
	}()
	return fn(work, doLease{lease, work}), nil
}

// lostUnder returns why the lease has ended if that matches ErrLost. A function that released the lease itself meant to.
func lostUnder(lease Lease) error {
	if lease.Context().Err() == nil {
		return nil
	}
	if cause := context.Cause(lease.Context()); errors.Is(cause, ErrLost) {
		return cause
	}
	return nil
}

// didWork is the loss of a lease under a function that returned an error as well.
type didWork struct{ lost, work error }

func (e *didWork) Error() string   { return e.lost.Error() + "; the work returned: " + e.work.Error() }
func (e *didWork) Unwrap() []error { return []error{e.lost, e.work} }

// doLease is the lease that the function of Do sees.
type doLease struct {
	Lease
	ctx context.Context
}

func (l doLease) Context() context.Context { return l.ctx }

// doContext ends with the lease or with the context that was given to Do. Like the lease's own, it asks both when it is
// asked itself, so that it is exact after a pause.
type doContext struct {
	context.Context // derived from the lease's
	lease, caller   context.Context
	cancel          context.CancelCauseFunc
	detach          func() bool
}

func newDoContext(caller, lease context.Context) *doContext {
	c := &doContext{lease: lease, caller: caller}
	c.Context, c.cancel = context.WithCancelCause(lease)
	if d, ok := caller.Deadline(); ok {
		cancel, stop := c.cancel, context.CancelFunc(nil)
		c.Context, stop = context.WithDeadline(c.Context, d)
		c.cancel = func(cause error) { cancel(cause); stop() }
	}
	c.detach = context.AfterFunc(caller, func() {
		if caller.Err() != context.DeadlineExceeded { // that is the inner context's own deadline
			c.cancel(context.Cause(caller))
		}
	})
	return c
}

// ask makes the context notice what has happened.
func (c *doContext) ask() {
	if c.lease.Err() == nil && c.caller.Err() != nil {
		c.cancel(context.Cause(c.caller))
	}
}

func (c *doContext) Deadline() (time.Time, bool) { return c.Context.Deadline() }

func (c *doContext) Done() <-chan struct{} {
	c.ask()
	return c.Context.Done()
}

func (c *doContext) Err() error {
	c.ask()
	if err := c.Context.Err(); err == nil || c.lease.Err() != nil || c.caller.Err() == nil {
		return err
	}
	return c.caller.Err()
}

func (c *doContext) Value(key any) any {
	c.ask()
	return c.Context.Value(key)
}

// enterDo tells Close to wait for Do. The returned function tells it that Do has released the lease.
func (l *lease) enterDo() (leave func()) {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return func() {}
	}
	l.inDo = true
	e.doing.Add(1)
	return e.doing.Done
}
