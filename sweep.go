package locker

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"github.com/leasekit/locker/driver"
)

// sweep is the list of entries that have to go and whose removal isn't confirmed: of leases that ended without Release,
// of releases and acquisitions whose outcome isn't known. It tries each until the backend says that it is gone. A few
// goroutines do it, and none while there is nothing to do. All of it is guarded by the engine's mutex.
type sweep struct {
	e       *engine
	items   sweepHeap
	timer   *time.Timer
	workers int
}

type sweepItem struct {
	name    string
	free    func(context.Context) error
	lease   *lease         // nil for an acquisition that was given up
	at      time.Duration  // of the next attempt, since the engine's start
	expires driver.Instant // when the entry is gone by itself; zero if it never is
	backoff time.Duration
}

// sweepHeap orders items by their next attempt.
type sweepHeap []*sweepItem

func (h sweepHeap) Len() int           { return len(h) }
func (h sweepHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h sweepHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sweepHeap) Push(x any)        { *h = append(*h, x.(*sweepItem)) }
func (h *sweepHeap) Pop() any {
	n := len(*h) - 1
	item := (*h)[n]
	(*h)[n], *h = nil, (*h)[:n]
	return item
}

const (
	maxSweepers  = 8
	sweepAttempt = 5 * time.Second
)

// add puts an item on the list, to be tried after a while.
func (s *sweep) add(item *sweepItem, after time.Duration) {
	now := s.e.now().Add(after)
	item.at = now.Sub(s.e.start)
	if !s.e.info.SharedSession {
		item.expires = now.Add(2 * s.e.ttl)
	}
	heap.Push(&s.items, item)
	s.start()
}

// start lets a worker begin if an item is due, and otherwise sets the timer for the first one.
func (s *sweep) start() {
	if s.e.closed || len(s.items) == 0 {
		return
	}
	switch d := s.items[0].at - s.e.now().Sub(s.e.start); {
	case d <= 0:
		if s.workers < maxSweepers {
			s.workers++
			s.e.work.Add(1)
			go s.run()
		}
	case s.timer == nil:
		s.timer = time.AfterFunc(d, s.wake)
	default:
		s.timer.Reset(d)
	}
}

func (s *sweep) wake() {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.start()
}

// run tries items until none is due.
func (s *sweep) run() {
	e := s.e
	defer e.work.Done()
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.closed && len(s.items) > 0 && s.items[0].at <= e.now().Sub(e.start) {
		item := heap.Pop(&s.items).(*sweepItem)
		s.start() // another worker, if there is more to do
		e.mu.Unlock()
		err := s.try(e.ctx, item)
		e.mu.Lock()
		if err == nil {
			continue
		}
		now := e.now()
		if !item.expires.IsZero() && !now.Before(item.expires) {
			e.log.WarnContext(e.ctx, "clean-up given up: the entry ends with its TTL", "name", item.name, "err", err)
			continue
		}
		item.backoff = min(max(2*item.backoff, e.ttl/20), e.interval())
		item.at = now.Add(item.backoff).Sub(e.start)
		heap.Push(&s.items, item)
	}
	s.workers--
	s.start()
}

// try removes an item's entry once. nil means that it is gone.
func (s *sweep) try(ctx context.Context, item *sweepItem) error {
	if item.lease != nil && item.lease.freed() {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, sweepAttempt)
	defer stop()
	err := item.free(ctx)
	if err == nil || errors.Is(err, driver.ErrNotHeld) {
		return nil
	}
	s.e.beat.doubt()
	s.e.log.DebugContext(ctx, "clean-up failed", "name", item.name, "err", err)
	return err
}

const releaseBound = 5 * time.Second

// ahead returns ctx's deadline if there is one and it is still ahead.
func ahead(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok && time.Now().Before(d) {
		return d
	}
	return time.Time{}
}

// free releases a lease's entry at the backend, which ends by itself when left has passed. It tries again while the outcome
// isn't known, and leaves the rest to the sweep when its time is over. gone says that nothing is left of the entry.
func (e *engine) free(ctx context.Context, l *lease, left time.Duration) (gone bool, err error) {
	call := &l.free
	l.freeing = values{ctx}
	call.parent = &l.freeing
	call.bound, call.limit = min(max(left, time.Second), releaseBound), ahead(ctx)
	defer call.end()
	backoff := 10 * time.Millisecond
	for doubt := false; ; doubt = true {
		err := l.hold.Release(call)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, driver.ErrNotHeld):
			if doubt {
				return true, nil // an earlier attempt has removed it and its answer was lost
			}
			return true, lost("found gone by its release", err)
		case driver.IsPermanent(err) || call.over(backoff):
			e.mu.Lock()
			e.sweep.add(&sweepItem{name: l.name, free: l.hold.Release, lease: l}, 0)
			e.mu.Unlock()
			e.beat.doubt()
			e.log.WarnContext(ctx, "release not confirmed", "name", l.name, "token", uint64(l.token), "err", err)
			if driver.IsPermanent(err) {
				return false, own(err)
			}
			return false, unavailable(err)
		}
		time.Sleep(backoff)
		backoff = min(2*backoff, 500*time.Millisecond)
	}
}
