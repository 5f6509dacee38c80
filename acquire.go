package locker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/leasekit/locker/driver"
)

const (
	tryBound     = 10 * time.Second       // of TryAcquire without a deadline
	tryAttempts  = 3                      // of TryAcquire while the backend doesn't answer
	defaultPoll  = 3 * time.Second        // the longest pause between two looks at a held name
	minBackoff   = 50 * time.Millisecond  // after a failed attempt, doubled each time
	maxBackoff   = 2 * time.Second        //
	maxHintPause = 100 * time.Millisecond // between two looks, however many hints there are
)

func (e *engine) Acquire(ctx context.Context, name string, opts ...AcquireOption) (Lease, error) {
	return e.acquire(ctx, "acquire", name, acquireOptions(opts))
}

func (e *engine) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (Lease, error) {
	o := acquireOptions(opts)
	o.MaxWait = -1
	return e.acquire(ctx, "try", name, o)
}

func acquireOptions(opts []AcquireOption) AcquireOptions {
	if len(opts) == 0 {
		return AcquireOptions{}
	}
	var o AcquireOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

func (e *engine) acquire(ctx context.Context, op, name string, o AcquireOptions) (Lease, error) {
	var began driver.Instant
	if e.hooks.Acquired != nil || e.hooks.AcquireFailed != nil {
		began = e.now()
	}
	l, err := e.enter(ctx, name, o)
	if err == nil {
		defer e.calls.Done()
		l, err = e.await(ctx, l, o)
	}
	if err != nil {
		err = &Error{op, e.info.Backend, name, err}
		if hook := e.hooks.AcquireFailed; hook != nil {
			ev := e.event(name)
			ev.Wait, ev.Err = e.now().Sub(began), err
			hook(ctx, ev)
		}
		return nil, err
	}
	if hook := e.hooks.Acquired; hook != nil {
		ev := e.event(name)
		ev.Token, ev.Wait, ev.Remaining = l.token, e.now().Sub(began), l.Remaining()
		hook(ctx, ev)
	}
	return l, nil
}

// enter checks what can be checked without asking, takes a place in the local queue, and counts the call, so that Close
// waits for it.
func (e *engine) enter(ctx context.Context, name string, o AcquireOptions) (*lease, error) {
	if err := driver.CheckName(name); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, ranOut(ctx, err, e.queues[name].answer)
	}
	l := e.newLease(ctx, name, o)
	if err := e.join(l); err != nil {
		return nil, err
	}
	e.calls.Add(1)
	return l, nil
}

// newLease needs the engine's mutex.
func (e *engine) newLease(ctx context.Context, name string, o AcquireOptions) *lease {
	l := &lease{e: e, name: name, id: e.random.next(), values: values{ctx}, maxHold: e.maxHold, index: -1}
	if o.MaxHold != 0 {
		l.maxHold = o.MaxHold
	}
	l.waiter.try = o.MaxWait < 0
	return l
}

// ranOut returns the error of a wait that ended with the caller's context: both that and what is known of the holder.
func ranOut(ctx context.Context, ctxErr, answer error) error {
	if answer == nil {
		answer = ErrUnavailable // nobody was asked, or nobody has answered
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctxErr) {
		return fmt.Errorf("%w: %w: %w", answer, ctxErr, cause)
	}
	return fmt.Errorf("%w: %w", answer, ctxErr)
}

// await waits for the lease's turn in the local queue, and then for the backend.
func (e *engine) await(ctx context.Context, l *lease, o AcquireOptions) (*lease, error) {
	w := &wait{e: e, ctx: ctx, o: o}
	if o.MaxWait > 0 {
		w.end = time.Now().Add(o.MaxWait)
	} else if o.MaxWait < 0 {
		w.end = time.Now().Add(tryBound)
	}
	if l.waiter.turn == nil {
		return w.contend(l, nil)
	}
	err := w.turn(l.waiter.turn)
	answer := e.answer(l.name)
	if err != nil {
		e.leave(l)
		return nil, w.failed(err, answer)
	}
	return w.contend(l, answer)
}

// wait is one acquisition on its way to a lease.
type wait struct {
	e   *engine
	ctx context.Context
	o   AcquireOptions
	end time.Time // of MaxWait, or of a single attempt; zero if only ctx ends the wait

	hints   <-chan struct{} // nil: not subscribed
	unwatch func()
	looked  time.Time     // at the last hint
	pause   time.Duration // to keep between looks that hints ask for
	backoff time.Duration
}

// errOver says that MaxWait has run out; it stays inside this file.
var errOver = errors.New("maximum wait")

// over returns why the wait has to end, or nil.
func (w *wait) over() error {
	if w.e.ctx.Err() != nil {
		return ErrClosed
	}
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if !w.end.IsZero() && !time.Now().Before(w.end) {
		return errOver
	}
	return nil
}

// failed makes the error of a wait out of the reason of its end and the last answer.
func (w *wait) failed(reason, answer error) error {
	switch {
	case reason == ErrClosed, driver.IsPermanent(reason):
		return reason
	case reason == errOver:
		if answer == nil {
			answer = ErrUnavailable
		}
		return answer
	case w.ctx.Err() != nil && errors.Is(reason, w.ctx.Err()):
		return ranOut(w.ctx, w.ctx.Err(), answer)
	}
	return reason // a try was answered behind others
}

// turn waits until it is the first in the local queue, or is answered there.
func (w *wait) turn(turn chan error) error {
	_, err := w.sleep(w.untilEnd(), turn, nil)
	return err
}

// untilEnd returns how long MaxWait still lasts, at most an hour: then it is asked again.
func (w *wait) untilEnd() time.Duration {
	if w.end.IsZero() {
		return never
	}
	return time.Until(w.end)
}

// sleep waits for d to pass, a turn in the local queue, a hint, or the end of the wait. hinted is false when hints were
// closed.
func (w *wait) sleep(d time.Duration, turn <-chan error, hints <-chan struct{}) (hinted bool, err error) {
	if left := w.untilEnd(); left < d {
		d = left
	}
	var fired <-chan time.Time
	if d != never {
		t := time.NewTimer(d)
		defer t.Stop()
		fired = t.C
	}
	select {
	case err := <-turn:
		return false, err
	case _, ok := <-hints:
		return ok, nil
	case <-fired:
		if turn != nil {
			return false, errOver // there is no other reason to wake up
		}
		return true, nil
	case <-w.ctx.Done():
		return false, w.ctx.Err()
	case <-w.e.ctx.Done():
		return false, ErrClosed
	}
}

// contend asks the backend until it grants the name or the wait ends. l is the head of its local queue, and answer what
// the backend said to the head before it.
func (w *wait) contend(l *lease, answer error) (*lease, error) {
	e := w.e
	defer func() {
		if w.unwatch != nil {
			w.unwatch()
		}
	}()
	call := &l.call
	doubt := false // an attempt's outcome isn't known
	queue := false // the backend's own queue is next
	for attempt := 1; ; attempt++ {
		hold, err := w.ask(l, call, queue)
		if err == nil {
			granted, problem := e.admit(w, l, hold)
			if granted {
				return l, nil
			}
			// The hold is on the sweep list; a new identity asks again.
			doubt = false
			if over := w.over(); over != nil {
				e.leave(l)
				return nil, w.failed(over, e.answer(l.name))
			}
			l = e.renamed(l, w)
			err = problem
		} else if !driver.IsAnswer(err) {
			doubt = true
		}
		call = &callContext{}

		reason := w.over()
		switch {
		case driver.IsPermanent(err):
			reason, answer = err, err
		case errors.Is(err, driver.ErrHeld):
			w.backoff, answer = 0, ErrHeld
		case reason == nil || answer == nil: // an attempt that was cut short leaves the answer before it standing
			answer = unavailable(err)
		}
		e.answered(l.name, answer)

		switch {
		case reason != nil:
		case w.o.MaxWait < 0 && (answer == ErrHeld || attempt == tryAttempts):
			reason = errOver
		case answer == ErrHeld && e.queuer != nil && !queue:
			queue = true
			continue
		case answer == ErrHeld:
			reason = w.untilFree(l.name, driver.HeldFor(err))
		default:
			w.backoff = min(max(2*w.backoff, minBackoff), maxBackoff)
			_, reason = w.sleep(jitter(w.backoff), nil, nil)
			if reason == nil {
				reason = w.over()
			}
		}
		if reason == nil {
			continue
		}
		e.leave(l)
		if doubt || queue {
			e.giveUp(l)
		}
		return nil, w.failed(reason, answer)
	}
}

// ask calls the driver once: TryLock, or the queue of the backend.
func (w *wait) ask(l *lease, call *callContext, queue bool) (driver.Hold, error) {
	e := w.e
	req := driver.Request{Name: l.name, ID: l.id, Owner: e.owner, Lost: l.lostByDriver}
	call.parent, call.closing, call.limit = w.ctx, e, w.end
	defer call.end()
	var hold driver.Hold
	var err error
	if queue {
		e.beat.queue(1)
		hold, err = e.queuer.Lock(call, req)
		e.beat.queue(-1)
	} else {
		call.bound = e.attempt()
		hold, err = e.conn.TryLock(call, req)
	}
	if err != nil && !driver.IsAnswer(err) {
		e.beat.doubt()
	}
	return hold, err
}

// attempt bounds one attempt: a grant that takes longer than the TTL is worth nothing, but connecting may take a while.
func (e *engine) attempt() time.Duration {
	return min(max(e.ttl/2, 2*time.Second), tryBound/tryAttempts)
}

// admit makes the lease live. If it can't be, because the grant came too late or nobody waits for it any more, the hold
// goes to the sweep list.
func (e *engine) admit(w *wait, l *lease, hold driver.Hold) (ok bool, problem error) {
	grant := hold.Grant()
	now := e.now()
	e.mu.Lock()
	l.hold, l.token, l.acquired = hold, Token(grant.Token), now
	l.mu.Lock()
	l.ttl, l.deadline = grant.TTL, grant.Sent.Add(grant.TTL-e.margin)
	cause := l.cause
	l.mu.Unlock()
	switch {
	case e.closed:
		problem = ErrClosed
	case w.ctx.Err() != nil:
		problem = w.ctx.Err()
	case cause != nil:
		problem = cause
	case grant.Token == 0 || grant.Token > math.MaxInt64:
		problem = fmt.Errorf("the driver granted the invalid token %d", grant.Token)
	case !now.Before(l.deadline):
		problem = errors.New("the grant arrived after its deadline")
	}
	if problem != nil {
		e.sweep.add(&sweepItem{name: l.name, free: hold.Release, lease: l}, 0)
		e.mu.Unlock()
		return false, problem
	}
	l.renewAt = grant.Sent.Add(e.interval())
	if !e.info.SharedSession { // there Sent is of an earlier request
		e.trip = now.Sub(grant.Sent)
	}
	e.schedule.add(l, now)
	q := e.queues[l.name]
	q.answered(ErrHeld)
	e.unqueue(q, l)
	e.mu.Unlock()
	return true, nil
}

// renamed replaces a lease that can't become live by one with another identity, in the same place of the queue.
func (e *engine) renamed(old *lease, w *wait) *lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.newLease(w.ctx, old.name, w.o)
	q := e.queues[l.name]
	l.waiter.next = old.waiter.next
	if q.head = l; q.tail == old {
		q.tail = l
	} else {
		l.waiter.next.waiter.prev = l
	}
	e.queues[l.name] = q
	return l
}

// giveUp removes what an acquisition may have left, in the background.
func (e *engine) giveUp(l *lease) {
	req := driver.Request{Name: l.name, ID: l.id, Owner: e.owner}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweep.add(&sweepItem{name: l.name, free: func(ctx context.Context) error { return e.conn.Undo(ctx, req) }}, 0)
}

// untilFree sleeps until the name may have become free: a hint says so, or the holder's TTL has passed, or it is time to
// look again in case a hint was lost.
func (w *wait) untilFree(name string, remaining time.Duration) error {
	e := w.e
	if e.waiter != nil && w.hints == nil {
		ctx, stop := context.WithTimeout(w.ctx, e.attempt())
		hints, unwatch, err := e.waiter.Watch(ctx, name)
		stop()
		if err == nil {
			w.hints, w.unwatch = hints, unwatch
			return w.over() // subscribed: look before sleeping
		}
		e.log.DebugContext(w.ctx, "no notifications", "name", name, "err", err)
	}
	poll := e.info.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	d := jitter(poll)
	if remaining > 0 && remaining < d {
		d = remaining + jitter(min(remaining/10+time.Millisecond, 20*time.Millisecond))
	}
	slept := time.Now()
	ok, err := w.sleep(d, nil, w.hints)
	if err != nil {
		return err
	}
	if !ok { // the subscription broke
		w.unwatch()
		w.hints, w.unwatch = nil, nil
	}
	if time.Since(slept) >= d {
		w.pause = 0
		return w.over()
	}
	// Hints ask for looks at any rate; the looks keep their distance.
	if w.pause > 0 {
		if soon := w.pause - time.Since(w.looked); soon > 0 {
			if _, err := w.sleep(soon, nil, nil); err != nil {
				return err
			}
		}
	}
	w.pause = min(max(2*w.pause, time.Millisecond), maxHintPause)
	w.looked = time.Now()
	return w.over()
}

// jitter returns a random duration between half of d and d, so that those who wait for the same thing don't ask at the
// same time.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
