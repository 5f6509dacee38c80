package locker

import (
	"context"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

// lease is the one implementation of Lease. It is made when its acquisition begins, becomes live when the engine admits
// the driver's hold, and ends once, for one cause.
//
// Two locks guard it, taken in this order: the engine's, for what the schedule needs, and its own, for what the lease's
// context needs. Neither is held while the context is cancelled.
type lease struct {
	e    *engine
	name string
	id   string

	// Set before the lease is visible, and fixed from then on.
	hold     driver.Hold
	token    Token
	acquired driver.Instant
	maxHold  time.Duration // <= 0: no limit
	values   values

	mu          sync.Mutex
	inner       context.Context // behind the lease's context; nil until somebody asks for it
	cancelInner context.CancelCauseFunc
	cause       error          // why it has ended; nil while it is live
	deadline    driver.Instant // when it ends unless it is renewed
	ttl         time.Duration
	failed      error // of the newest renewal, until one succeeds
	release     releaseState
	waiting     chan struct{} // closed when the release is done; made by the first caller that has to wait for it
	result      error         // of the release
	gone        bool          // the entry is known to be gone

	// Guarded by the engine's mutex.
	index    int            // in the schedule; -1 if it isn't there
	at       time.Duration  // when the schedule looks at it
	renewAt  driver.Instant // when renewal is due
	backoff  time.Duration  // between attempts while renewal fails
	renewing bool           // a renewal is under way
	inDo     bool           // Do releases it

	call    callContext // bounds the first attempt to acquire it
	free    callContext // bounds the release
	freeing values      // of Release's context
	waiter  waiter      // in the local queue
}

type releaseState uint8

const (
	unreleased releaseState = iota
	releasing
	released
)

func (l *lease) Name() string { return l.name }
func (l *lease) Token() Token { return l.token }
func (l *lease) Kind() Kind   { return l.e.kind }

// Context makes the context when it is asked for first: who holds a name for a moment never needs it.
func (l *lease) Context() context.Context {
	l.mu.Lock()
	if l.inner != nil {
		l.mu.Unlock()
		return (*leaseContext)(l)
	}
	inner, cancel := context.WithCancelCause(&l.values)
	if l.maxHold > 0 {
		cancelInner, stop := cancel, context.CancelFunc(nil)
		left := -l.e.now().Sub(l.acquired.Add(l.maxHold))
		inner, stop = context.WithDeadlineCause(inner, time.Now().Add(left), ErrMaxHold)
		cancel = func(cause error) { cancelInner(cause); stop() }
	}
	l.inner, l.cancelInner = inner, cancel
	cause := l.cause
	l.mu.Unlock()
	if cause != nil {
		cancel(cause)
	}
	return (*leaseContext)(l)
}

// cancel cancels the lease's context, if anybody has asked for it. The cause is set before.
func (l *lease) cancel(cause error) {
	l.mu.Lock()
	inner, cancel := l.inner, l.cancelInner
	l.mu.Unlock()
	if inner != nil && inner.Err() == nil {
		cancel(cause)
	}
}

func (l *lease) TTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

func (l *lease) Remaining() time.Duration {
	now := l.e.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	left := -now.Sub(l.deadline)
	if l.maxHold > 0 {
		left = min(left, -now.Sub(l.acquired.Add(l.maxHold)))
	}
	if l.cause != nil {
		return min(left, 0)
	}
	return left
}

// check returns why the lease has ended, or nil. If the clock says that it is over, it ends here and now; the schedule
// does the rest when its timer fires.
func (l *lease) check() error {
	cause := l.overdue(l.e.now())
	if cause != nil {
		l.cancel(cause)
	}
	return cause
}

// cancelOverdue cancels the context of a lease that the schedule has found to be over. After MaxHold it leaves that to the
// context's own timer, which fires at the same time and gives derived contexts the right error, unless the timer is late
// because of a suspend.
func (l *lease) cancelOverdue() {
	l.mu.Lock()
	inner, cause := l.inner, l.cause
	l.mu.Unlock()
	if inner != nil && cause == ErrMaxHold {
		if d, _ := inner.Deadline(); !time.Now().Before(d) {
			return
		}
	}
	l.cancel(cause)
}

// overdue returns the lease's cause after setting it if the lease is past its deadline or its longest hold. The caller
// cancels.
func (l *lease) overdue(now driver.Instant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.overdueLocked(now)
}

// overdueLocked is overdue for those who hold l.mu.
func (l *lease) overdueLocked(now driver.Instant) error {
	if l.cause != nil {
		return l.cause
	}
	switch {
	case !now.Before(l.deadline):
		l.cause = &Error{"hold", l.e.info.Backend, l.name, lost("not renewed in time", l.failed)}
	case l.maxHold > 0 && !now.Before(l.acquired.Add(l.maxHold)):
		l.cause = ErrMaxHold
	}
	return l.cause
}

// end sets the cause unless there is one, and cancels the context. It reports whether it was the first.
func (l *lease) end(cause error) bool {
	l.mu.Lock()
	first := l.cause == nil
	if first {
		l.cause = cause
	}
	cause = l.cause
	l.mu.Unlock()
	l.cancel(cause)
	return first
}

// lostByDriver is Request.Lost. Before the lease is admitted it only leaves its mark.
func (l *lease) lostByDriver(err error) {
	e := l.e
	cause := &Error{"hold", e.info.Backend, l.name, lost("the backend says so", err)}
	e.mu.Lock()
	live := l.index >= 0
	if live {
		e.schedule.remove(l)
	} else if l.hold == nil {
		l.mu.Lock()
		if l.cause == nil {
			l.cause = cause
		}
		l.mu.Unlock()
	}
	e.mu.Unlock()
	if live {
		l.end(cause)
		e.ended(l)
	}
}

func (l *lease) Release(ctx context.Context) error {
	e := l.e
	now := e.now()
	e.mu.Lock()
	l.mu.Lock()
	if l.release != unreleased {
		e.mu.Unlock()
		return l.releasedBefore(ctx) // unlocks
	}
	l.release = releasing
	if !e.closed { // otherwise Close releases it, or waits for this
		e.releases.Add(1)
		defer e.releases.Done()
	}
	// Renewal stops before anything is sent.
	scheduled := l.index >= 0
	if scheduled {
		e.schedule.remove(l)
	}
	cause := l.overdueLocked(now)
	if cause == nil {
		l.cause = ErrReleased
	}
	left := -now.Sub(l.deadline) + e.margin
	l.mu.Unlock()
	e.mu.Unlock()

	var result error
	gone := false
	if cause == nil {
		l.cancel(ErrReleased)
		gone, result = e.free(ctx, l, left)
	} else {
		// It had ended before. After a loss its entry is for the sweep; otherwise it is still there.
		l.cancel(cause)
		if scheduled { // its end wasn't noticed by anybody else
			e.ended(l)
		}
		if cause == ErrMaxHold || cause == errClosedLease {
			gone, _ = e.free(ctx, l, left)
		}
		if known, ok := cause.(*Error); ok {
			cause = known.Err
		}
		result = cause
	}
	if result != nil {
		result = &Error{"release", e.info.Backend, l.name, result}
	}
	e.report(e.hooks.Released, ctx, l, result)

	l.mu.Lock()
	l.release, l.result = released, result
	l.gone = l.gone || gone
	if l.waiting != nil {
		close(l.waiting)
	}
	l.mu.Unlock()
	return result
}

// releasedBefore is Release after the first call. It is called with l.mu held and unlocks it.
func (l *lease) releasedBefore(ctx context.Context) error {
	if l.release == released {
		defer l.mu.Unlock()
		return l.result
	}
	if l.waiting == nil {
		l.waiting = make(chan struct{})
	}
	done := l.waiting
	l.mu.Unlock()
	return l.awaitRelease(ctx, done)
}

// ending returns why the lease has ended; nil if it is live as far as anybody has looked.
func (l *lease) ending() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// freed reports whether the entry is known to be gone.
func (l *lease) freed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// awaitRelease waits for the call of Release that came first, no longer than that call may take itself or ctx allows.
func (l *lease) awaitRelease(ctx context.Context, done <-chan struct{}) error {
	bound := callContext{parent: values{ctx}, bound: releaseBound, limit: ahead(ctx)}
	defer bound.end()
	select {
	case <-done:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.result
	case <-bound.Done():
		return &Error{"release", l.e.info.Backend, l.name, unavailable(bound.Err())}
	}
}
