package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

var exclusionCases = []testCase{
	{name: "EXCLUSION-1", rule: "Under contention a name has one holder at a time, and tokens rise in the order of the grants.", run: contention},
	{name: "EXCLUSION-2", rule: "Of several that try a free name in the same moment, at most one is granted it.", run: tryTogether},
	{name: "OWN-01", rule: "Acquire returns a live lease or an error; an acquisition that was cancelled or timed out is an error that matches the context's.", run: cancelledIsNoSuccess},
	{name: "OWN-02", rule: "A waiter whose place in the queue or session is gone isn't granted the name on it: it queues anew or fails.", needs: []need{needDropWaiter}, run: deadQueueEntry},
	{name: "OWN-05", rule: "A holder whose lease has expired doesn't touch the next holder's entry when it releases.", needs: []need{needTakeOver}, run: staleRelease},
	{name: "OWN-06", rule: "A definite answer that the entry is gone ends the lease at once, not at its deadline.", needs: []need{needDelete}, run: goneEndsAtOnce},
	{name: "OWN-07", rule: "Each acquisition has an identity of its own; an owner label that two processes share grants nothing.", run: sameLabel},
	{name: "OWN-16", rule: "The kind is that of the driver, on Locker and Lease alike, and a caller that requires more is refused when opening.", run: kinds},
	{name: "OWN-17a", rule: "A holder whose entry was deleted is told, and the name is free.", needs: []need{needDelete}, run: func(e *env) { takenAway(e, e.b.Admin.Delete, false) }},
	{name: "OWN-17b", rule: "A holder whose entry was replaced by somebody else's is told, and doesn't touch that one.", needs: []need{needReplace}, run: func(e *env) { takenAway(e, e.b.Admin.Replace, true) }},
	{name: "OWN-17c", rule: "A holder whose session has ended is told.", needs: []need{needEndSession}, run: func(e *env) { takenAway(e, e.b.Admin.EndSession, false) }},
	{name: "OWN-19", rule: "Locks aren't re-entrant: acquiring a name that the same Locker holds waits like any other; after a loss the Locker can acquire it again, with a larger token.", run: notReentrant},
}

func contention(e *env) {
	name := e.name("contended")
	w, h := &witness{}, &history{}
	const lockers, goroutines = 4, 2
	rounds := times(6, 100)
	until := time.Now().Add(time.Duration(times(6, 100)) * e.ttl) // drivers that poll take their time
	var wg sync.WaitGroup
	for i := range lockers {
		c := e.open()
		for j := range goroutines {
			id := i*goroutines + j
			wg.Go(func() {
				for n := 0; n < rounds && (n == 0 || time.Now().Before(until)); n++ {
					call := h.now()
					ctx, stop := context.WithTimeout(e.ctx, 4*e.patience)
					l, err := c.Acquire(ctx, name)
					stop()
					e.granted(l, err)
					h.add(id, call, "grant", l.Token())
					// A lease that ends by itself does so at some time between the last moment at which it is known to
					// have lived and its release.
					live := call
					v := w.enter(string(rune('A'+id)), l)
					for _, step := range []func() bool{v.write, v.leave} {
						e.sleep(min(e.ttl/1000, time.Millisecond)) // time for others to do what they mustn't
						call = h.now()
						if step() {
							h.add(id, call, "write", l.Token())
							live = call
						}
					}
					if err := l.Release(e.ctx); err != nil {
						e.ErrorIs(err, locker.ErrLost)
					}
					h.add(id, live, "end", l.Token())
				}
			})
		}
	}
	wg.Wait()
	e.judged(w)
	e.NoError(h.check(10 * time.Second))
}

func tryTogether(e *env) {
	const contenders = 6
	var clients []*client
	for range contenders {
		clients = append(clients, e.open())
	}
	for range times(5, 100) {
		name := e.name(newTag())
		w := &witness{}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var leases []locker.Lease
		start := make(chan struct{})
		for i, c := range clients {
			wg.Go(func() {
				<-start
				l, err := c.TryAcquire(e.ctx, name)
				if err != nil {
					e.refused(l, err)
					return
				}
				e.granted(l, err)
				v := w.enter(string(rune('A'+i)), l)
				v.write()
				mu.Lock()
				leases = append(leases, l)
				mu.Unlock()
			})
		}
		close(start)
		wg.Wait()
		for _, l := range leases {
			l.Release(e.ctx)
		}
		e.judged(w)
		if len(leases) > 1 && leases[0].Context().Err() == nil {
			e.LessOrEqual(len(leases), 1, "all of these were held at the end")
		}
	}
}

func cancelledIsNoSuccess(e *env) {
	name := e.name("held")
	a, b, c := e.open(), e.open(), e.open()
	e.acquire(a, name)
	timedOut := e.waitFor(max(e.ttl/2, 100*time.Millisecond), b, name)
	cancelled := e.wait(c, name)
	e.settle()
	cancelled.still()
	cancelled.stop()
	cancelled.refused(e.patience, context.Canceled)
	timedOut.refused(e.patience, context.DeadlineExceeded)
	e.GreaterOrEqual(timedOut.ended.Sub(timedOut.began), max(e.ttl/2, 100*time.Millisecond), "it waits as long as it may")

	// A context that has ended before the call takes nothing, even if the name is free.
	ctx, stop := context.WithCancel(e.ctx)
	stop()
	l, err := b.Acquire(ctx, e.name("free"))
	e.refused(l, err, context.Canceled)
	e.free(c, e.name("free"))
}

func deadQueueEntry(e *env) {
	name := e.name("queue")
	a, b, c := e.open(), e.open(func(o *locker.Options) { o.Owner = name }), e.open()
	w := &witness{}
	held := e.acquire(a, name)
	inA := w.enter("A", held)
	second := e.wait(b, name)
	// The waiter is in the queue when there is something to remove; where that can't be seen, after a while.
	e.eventually(e.patience, func() bool { return e.b.Admin.DropWaiter(e.ctx, name) == nil }, "a waiter in the backend's queue")
	third := e.wait(c, name)
	e.settle()
	inA.write()
	inA.leave()
	e.release(held)
	// Whoever is first: each enters, and the other only after it has left. B may also have failed.
	for _, p := range []struct {
		w   *waiting
		who string
	}{{third, "C"}, {second, "B"}} {
		e.spawn(func() {
			l, err := p.w.over(e.patience)
			if err != nil {
				e.refused(l, err)
				e.Equal("B", p.who, "C's place was left alone: %v", err)
				return
			}
			e.granted(l, err)
			v := w.enter(p.who, l)
			for end := time.Now().Add(e.ttl / 2); time.Now().Before(end) && v.write(); {
				time.Sleep(e.ttl / 20)
			}
			v.leave()
			l.Release(e.ctx)
		})
	}
	third.over(e.patience)
	second.over(e.patience)
	e.running.Wait()
	e.judged(w)
}

func staleRelease(e *env) {
	name := e.name("stale")
	a, b, c := e.open(), e.open(), e.open()
	first := e.acquire(a, name)
	a.vanish()
	second := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
	e.Error(first.Context().Err(), "somebody else holds the name now")
	e.Greater(second.Token(), first.Token())
	before := e.entry(name)
	a.heal()
	e.ErrorIs(first.Release(e.ctx), locker.ErrLost)
	e.held(c, name)
	e.settle()
	e.alive(second)
	e.Equal(before.Value, e.entry(name).Value, "the entry of the next holder")
	e.release(second)
}

// entry returns a name's entry, or the zero Entry where nobody can look.
func (e *env) entry(name string) Entry {
	if e.b.Admin.Entry == nil {
		return Entry{}
	}
	found, err := e.b.Admin.Entry(e.ctx, name)
	e.NoError(err, "Admin.Entry")
	return found
}

func goneEndsAtOnce(e *env) {
	name := e.name("gone")
	ttl := 12 * e.ttl
	a := e.open(withTTL(ttl))
	l := e.acquire(a, name)
	e.NoError(e.b.Admin.Delete(e.ctx, name))
	// Two renewal intervals; the deadline would be another third of the TTL later.
	e.lost(l, l.TTL()*2/3)
	e.ErrorIs(l.Release(e.ctx), locker.ErrLost)
}

func sameLabel(e *env) {
	name := e.name("label")
	label := func(o *locker.Options) { o.Owner = "worker" }
	a, b := e.open(label), e.open(label)
	l := e.acquire(a, name)
	e.held(b, name)
	e.held(a, name)
	e.release(l)
	e.free(b, name)
}

func kinds(e *env) {
	c := e.open()
	kind := c.Kind()
	e.Contains([]locker.Kind{locker.Efficiency, locker.Correctness}, kind)
	l := e.acquire(c, e.name("kind"))
	e.Equal(kind, l.Kind())
	e.release(l)
	strict, err := e.tryOpen(func(o *locker.Options) { o.Require = locker.Correctness })
	if kind == locker.Correctness {
		e.NoError(err)
		return
	}
	e.Nil(strict)
	e.ErrorIs(err, locker.ErrConfig)
}

func takenAway(e *env, take func(context.Context, string) error, replaced bool) {
	name := e.name("taken")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	e.NoError(take(e.ctx, name))
	if !replaced {
		e.lost(l, e.patience)
		e.ErrorIs(l.Release(e.ctx), locker.ErrLost)
		// Nothing of the old entry has come back.
		next := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
		e.Greater(next.Token(), l.Token())
		e.sleep(e.ttl)
		e.alive(next)
		e.release(next)
		return
	}
	before := e.entry(name)
	e.lost(l, e.patience)
	e.ErrorIs(l.Release(e.ctx), locker.ErrLost)
	if e.b.Admin.Entry != nil {
		e.Equal(before.Value, e.entry(name).Value, "the entry of the other holder")
		e.NotEmpty(before.Value)
	}
	e.held(b, name)
	e.NoError(e.b.Admin.Delete(e.ctx, name), "Admin.Delete, to clean up")
}

func notReentrant(e *env) {
	name := e.name("again")
	c := e.open()
	first := e.acquire(c, name)
	e.held(c, name)
	e.heldFor(max(e.ttl/2, 300*time.Millisecond), c, name)
	e.alive(first)

	c.vanish()
	e.lost(first, e.patience)
	c.heal()
	next := e.acquireWithin(e.b.TakeOver+e.patience, c, name)
	e.Greater(next.Token(), first.Token())
	e.release(next)
}
