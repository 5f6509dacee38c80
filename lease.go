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
	inner    context.Context
	cancel   context.CancelCauseFunc

	mu       sync.Mutex
	cause    error          // why it has ended; nil while it is live
	deadline driver.Instant // when it ends unless it is renewed
	ttl      time.Duration
	failed   error // of the newest renewal, until one succeeds
	release  releaseState
	waiting  chan struct{} // closed when the release is done; made by the first caller that has to wait for it
	result   error         // of the release
	gone     bool          // the entry is known to be gone

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

func (l *lease) Name() string             { return l.name }
func (l *lease) Token() Token             { return l.token }
func (l *lease) Kind() Kind               { return l.e.kind }
func (l *lease) Context() context.Context { return (*leaseContext)(l) }

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
	if cause != nil && l.inner.Err() == nil {
		l.cancel(cause)
	}
	return cause
}

// cancelOverdue cancels the context of a lease that the schedule has found to be over. After MaxHold it leaves that to the
// context's own timer, which fires at the same time and gives derived contexts the right error, unless the timer is late
// because of a suspend.
func (l *lease) cancelOverdue() {
	cause := l.ending()
	if d, ok := l.inner.Deadline(); ok && cause == ErrMaxHold && !time.Now().Before(d) {
		return
	}
	l.cancel(cause)
}

// overdue returns the lease's cause after setting it if the lease is past its deadline or its longest hold. The caller
// cancels.
func (l *lease) overdue(now driver.Instant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
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
	if l.inner != nil {
		l.cancel(cause)
	}
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
	l.mu.Lock()
	switch l.release {
	case releasing:
		if l.waiting == nil {
			l.waiting = make(chan struct{})
		}
		done := l.waiting
		l.mu.Unlock()
		return l.awaitRelease(ctx, done)
	case released:
		defer l.mu.Unlock()
		return l.result
	}
	l.release = releasing
	l.mu.Unlock()

	// Renewal stops before anything is sent.
	e := l.e
	now := e.now()
	l.overdue(now)
	e.mu.Lock()
	if l.index >= 0 {
		e.schedule.remove(l)
	}
	e.mu.Unlock()
	var result error
	if l.end(ErrReleased) {
		result = e.free(ctx, l, now)
	} else {
		// It had ended before. After a loss the sweep is at its entry already; otherwise the entry is still there.
		cause := l.ending()
		if cause == ErrMaxHold || cause == errClosedLease {
			e.free(ctx, l, now)
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
	if l.waiting != nil {
		close(l.waiting)
	}
	l.mu.Unlock()
	return result
}

// ending returns why the lease has ended; nil if it is live as far as anybody has looked.
func (l *lease) ending() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// setFreed notes that the entry is known to be gone.
func (l *lease) setFreed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
}

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
