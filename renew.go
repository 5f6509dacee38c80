package locker

import (
	"context"
	"errors"
	"time"

	"github.com/leasekit/locker/driver"
)

// renew renews a batch of leases. Each result counts as soon as it is there; a batch that hangs delays only its own
// leases' next attempt, and not their end, which is the schedule's.
func (e *engine) renew(leases []*lease) {
	defer e.work.Done()
	holds := make([]driver.Hold, len(leases))
	bound := e.ttl / 6
	began := e.now()
	e.mu.Lock()
	if e.trip > e.ttl/12 {
		bound = e.ttl / 3
	}
	e.mu.Unlock()
	for i, l := range leases {
		holds[i] = l.hold
		if l.backoff > 0 {
			bound = e.ttl / 3
		}
	}
	reported := make([]bool, len(leases)) // guarded by e.mu, as what renewed changes is
	e.callRenew(holds, bound, func(i int, r driver.Renewal) {
		e.mu.Lock()
		if i < 0 || i >= len(leases) || reported[i] {
			e.mu.Unlock()
			return
		}
		reported[i] = true
		e.renewed(leases[i], r, began) // unlocks
	})
	for i, l := range leases {
		e.mu.Lock()
		if reported[i] {
			e.mu.Unlock()
			continue
		}
		reported[i] = true
		e.renewed(l, driver.Renewal{Err: errors.New("no result of its renewal")}, began)
	}
}

// callRenew calls the driver's Renew, bounded by a sixth of the TTL, so that until the deadline there is time for more
// attempts; by a third where half a sixth was too little before, since an attempt that is cut short on a slow network
// proves nothing; and by a third after one that failed, since a driver that has closed its connection for it needs
// several round trips for the next.
func (e *engine) callRenew(holds []driver.Hold, bound time.Duration, report func(int, driver.Renewal)) {
	e.beat.renewing(e.now())
	ctx, stop := context.WithTimeout(e.ctx, max(bound, 10*time.Millisecond))
	defer stop()
	e.beat.noted(e.conn.Renew(ctx, holds, report))
}

// renewed takes the result of a renewal that began at some time into account. It is called with e.mu held and unlocks it.
func (e *engine) renewed(l *lease, r driver.Renewal, began driver.Instant) {
	l.renewing = false
	if l.index < 0 { // it was released or has ended meanwhile
		e.mu.Unlock()
		return
	}
	now := e.now()
	if l.overdue(now) != nil { // a reply that comes too late revives nothing
		e.schedule.remove(l)
		e.mu.Unlock()
		l.check()
		e.ended(l)
		return
	}
	if errors.Is(r.Err, driver.ErrNotHeld) {
		e.schedule.remove(l)
		e.mu.Unlock()
		l.end(&Error{"hold", e.info.Backend, l.name, lost("found gone by its renewal", r.Err)})
		e.ended(l)
		return
	}
	hook := e.hooks.Renewed
	if r.Err == nil {
		e.trip = now.Sub(r.Sent)
		l.mu.Lock()
		if d := r.Sent.Add(r.TTL - e.margin); l.deadline.Before(d) {
			l.deadline, l.ttl = d, r.TTL
		}
		l.failed = nil
		l.mu.Unlock()
		l.backoff = 0
		// Sent may lie back, where a backend confirms what it heard before. Don't ask more often for that, nor less
		// often because the answer took long.
		l.renewAt = began.Add(e.interval())
	} else {
		hook = e.hooks.RenewalFailed
		l.mu.Lock()
		l.failed = r.Err
		l.mu.Unlock()
		l.backoff = min(max(2*l.backoff, e.ttl/60), e.ttl/6)
		l.renewAt = now.Add(l.backoff)
		e.log.WarnContext(e.ctx, "renewal failed", "name", l.name, "token", uint64(l.token), "err", r.Err)
	}
	e.schedule.fix(l)
	e.schedule.arm(now)
	e.mu.Unlock()
	if hook != nil {
		var err error
		if r.Err != nil {
			err = &Error{"hold", e.info.Backend, l.name, unavailable(r.Err)}
		}
		e.report(hook, l.Context(), l, err)
	}
}

// ended does what is left to do when a lease has ended without Release: its entry must not stay.
func (e *engine) ended(l *lease) {
	cause := l.ending()
	after := time.Duration(0)
	if cause == ErrMaxHold {
		after = l.TTL() // its work may still be running
	}
	e.log.WarnContext(e.ctx, "lease ended", "name", l.name, "token", uint64(l.token), "cause", cause)
	e.mu.Lock()
	e.sweep.add(&sweepItem{name: l.name, free: l.hold.Release, lease: l}, after)
	e.mu.Unlock()
	e.report(e.hooks.Lost, l.Context(), l, cause)
}

// heartbeat calls Renew without holds while there is something in the backend that only Renew keeps alive or cleans up,
// and no hold whose renewal would do it.
type heartbeat struct {
	e          *engine
	timer      *time.Timer
	running    bool
	queued     int  // calls of Queuer.Lock under way
	unresolved bool // a call may have left something, or Renew said so
	latest     driver.Instant
}

// renewing notes that a renewal begins.
func (h *heartbeat) renewing(now driver.Instant) {
	h.e.mu.Lock()
	h.latest = now
	h.e.mu.Unlock()
}

// noted takes over what a renewal said about unresolved entries.
func (h *heartbeat) noted(unresolved int) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.unresolved = unresolved > 0
	h.start()
}

// doubt notes that a call may have left something behind.
func (h *heartbeat) doubt() {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.unresolved = true
	h.start()
}

// queue counts the calls of Queuer.Lock under way.
func (h *heartbeat) queue(n int) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.queued += n
	h.start()
}

// start starts the timer if it is needed. It needs the engine's mutex.
func (h *heartbeat) start() {
	if h.running || h.e.closed || h.queued == 0 && !h.unresolved {
		return
	}
	h.running = true
	if h.timer == nil {
		h.timer = time.AfterFunc(h.e.interval(), h.fire)
	} else {
		h.timer.Reset(h.e.interval())
	}
}

func (h *heartbeat) fire() {
	e := h.e
	e.mu.Lock()
	h.running = false
	if e.closed || h.queued == 0 && !h.unresolved {
		e.mu.Unlock()
		return
	}
	due := h.latest.IsZero() || e.now().Sub(h.latest) >= e.interval()/2
	if due {
		e.work.Add(1)
	}
	h.start()
	e.mu.Unlock()
	if due {
		defer e.work.Done()
		e.callRenew(nil, e.ttl/6, func(int, driver.Renewal) {})
	}
}
