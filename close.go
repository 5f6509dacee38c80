package locker

import (
	"context"
	"sync"
	"time"
)

const (
	closeBound = 5 * time.Second        // of all of Close
	doBound    = 3 * time.Second        // for the functions in Do to return
	connBound  = 500 * time.Millisecond // kept for the driver's Close
)

func (e *engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.done
		return nil
	}
	e.closed = true
	leases := e.schedule.leases
	e.schedule.leases = nil
	for _, l := range leases {
		l.index = -1
	}
	for _, t := range []*time.Timer{e.schedule.timer, e.sweep.timer, e.beat.timer} {
		if t != nil {
			t.Stop()
		}
	}
	e.mu.Unlock()
	defer close(e.done)

	over := time.Now().Add(closeBound - connBound)
	e.cancel()
	for _, l := range leases {
		if l.end(errClosedLease) {
			e.report(e.hooks.Lost, l.Context(), l, errClosedLease)
		}
	}
	waitUntil(over, &e.calls, &e.work)
	unconfirmed := e.releaseAll(leases, over)
	waitUntil(over, &e.releases) // they need the driver

	closed := make(chan error, 1)
	go func() { closed <- e.conn.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			e.log.WarnContext(e.ctx, "closing failed", "err", err)
		}
	case <-time.After(connBound):
		e.log.WarnContext(e.ctx, "closing goes on in the background")
	}
	if unconfirmed > 0 {
		return &Error{Op: "close", Backend: e.info.Backend, Err: ErrUnavailable}
	}
	return nil
}

// releaseAll frees the entries of leases and the sweep list, each in one attempt that ends at over. Leases in Do are left
// to it as long as there is time. It returns how many are not known to be gone.
func (e *engine) releaseAll(leases []*lease, over time.Time) (unconfirmed int) {
	ctx, stop := context.WithDeadline(context.Background(), over)
	defer stop()
	e.mu.Lock()
	items := e.sweep.items
	e.sweep.items = nil
	var now, doing []func() bool
	for _, l := range leases {
		release := func() bool {
			if time.Now().Before(over) { // else Release would give itself a bound of its own
				l.Release(ctx)
			}
			return l.freed()
		}
		if l.inDo {
			doing = append(doing, release)
		} else {
			now = append(now, release)
		}
	}
	for _, item := range items {
		now = append(now, func() bool { return e.sweep.try(ctx, item) == nil })
	}
	e.mu.Unlock()
	unconfirmed = inParallel(now)
	if len(doing) > 0 {
		waitUntil(time.Now().Add(min(doBound, time.Until(over))), &e.doing)
		unconfirmed += inParallel(doing)
	}
	return unconfirmed
}

// inParallel calls functions, a few at a time, and returns how many returned false.
func inParallel(fns []func() bool) (failed int) {
	const atOnce = 32
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		next int
	)
	for range min(atOnce, len(fns)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(fns) {
					return
				}
				if !fns[i]() {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// waitUntil waits for groups, but not beyond a time.
func waitUntil(t time.Time, groups ...*sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, g := range groups {
			g.Wait()
		}
	}()
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
