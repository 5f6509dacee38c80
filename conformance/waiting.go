package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

var waitingCases = []testCase{
	{name: "WAIT-01", rule: "A waiter that gives up leaves nothing in the queue that others wait behind.", run: givenUp},
	{name: "WAIT-03", rule: "An acquisition whose reply is lost ends in one entry of its own or in none, and blocks nobody.", run: lostReply},
	{name: "WAIT-07", rule: "A waiter whose notification is lost looks by itself after a few seconds at the latest.", run: hintLost},
	{name: "WAIT-08", rule: "A waiter gets the name of a holder that has vanished within the documented bound, and not while that one's lease lives.", needs: []need{needTakeOver}, run: takeOver},
	{name: "WAIT-08p", rule: "A waiter gets the name of a process that was killed within the documented bound.", needs: []need{needProcesses, needTakeOver}, run: takeOverFromKilled},
	{name: "WAIT-10", rule: "A wait lasts as long as its context allows, however often the waiter is woken, and its error matches both the deadline's and ErrHeld.", run: waitBudget},
	{name: "WAIT-11", rule: "Without a deadline a wait lasts until the name is granted, however long the TTL is.", run: waitsBeyondTTL},
	{name: "WAIT-12a", rule: "TryAcquire at a backend that refuses connections fails within its bound, with ErrUnavailable and not ErrHeld.", run: func(e *env) { tryWhileDown(e, (*client).away) }},
	{name: "WAIT-12b", rule: "TryAcquire at a backend that doesn't answer fails within its bound, with ErrUnavailable and not ErrHeld.", run: func(e *env) { tryWhileDown(e, (*client).vanish) }},
	{name: "WAIT-16", rule: "Waiting costs a waiter no more than a few requests a second.", run: noBusyPolling},
	{name: "WAIT-18", rule: "Under contention everybody gets a turn.", run: everybodyGetsATurn},
	{name: "WAIT-19", rule: "A waiter that has vanished doesn't keep those behind it from getting the name.", needs: []need{needTakeOver}, run: deadWaiter},
	{name: "WAIT-24", rule: "A waiter survives a backend that is away for a while.", run: waitsThroughOutage},
}

func givenUp(e *env) {
	name := e.name("queue")
	a, b, c := e.open(), e.open(), e.open()
	e.acquire(b, e.name("other")) // a session that B's places might share stays alive
	rounds := times(12, 200)
	for i := range rounds {
		l := e.acquire(a, name)
		// Different delays, so that the end of the wait meets every step of it.
		w := e.waitFor(time.Duration(1+i*i%61)*time.Millisecond+time.Duration(i)*e.ttl/time.Duration(10*rounds), b, name)
		w.refused(e.patience, context.DeadlineExceeded)
		e.over(l)
		if i%4 == 3 || i == rounds-1 {
			// Sooner than anything left behind would expire, where that takes long enough to tell.
			next := e.acquire(c, name)
			if e.b.Admin.Entries != nil {
				e.eventually(e.patience, func() bool { return e.entriesOf(name) <= 2 }, "the entries of the two holders are the only ones")
			}
			e.over(next)
		}
	}
}

// entriesOf counts entries of the case. They are all of one name in the cases that ask.
func (e *env) entriesOf(string) (n int) {
	all, err := e.b.Admin.Entries(e.ctx)
	e.NoError(err, "Admin.Entries")
	for _, s := range all {
		if containsTag(s, e.tag) {
			n++
		}
	}
	return n
}

func lostReply(e *env) {
	b := e.open()
	for n := 1; n <= 3; n++ {
		name := e.name(fmt.Sprint("reply", n))
		a := e.open(withTTL(60 * e.ttl)) // an entry that isn't recognised blocks for longer than anybody waits here
		w := &witness{}
		dropped := a.link.DropReply(n)
		l := e.acquireWithin(min(e.patience, 30*e.ttl), a, name)
		v := w.enter("A", l)
		e.held(b, name)
		v.write()
		v.leave()
		if err := l.Release(e.ctx); err != nil { // the reply to the release may be the one that is lost
			e.ErrorIs(err, locker.ErrUnavailable)
		}
		a.heal()
		e.note("reply %d dropped: %v", n, dropped())
		next := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
		w.enter("B", next).write()
		e.Greater(next.Token(), l.Token())
		e.release(next)
		e.judged(w)
	}
}

func hintLost(e *env) {
	for range times(1, 100) {
		name := e.name(newTag())
		ttl := 60 * e.ttl // nothing expires soon
		a, b := e.open(withTTL(ttl)), e.open(withTTL(ttl))
		l := e.acquire(a, name)
		w := e.wait(b, name)
		e.settle()
		b.link.BlackHole()
		e.release(l)
		b.link.Cut()
		b.heal()
		next := w.granted(min(e.patience, ttl/2))
		e.release(next)
	}
}

func takeOver(e *env) {
	name := e.name("crash")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	w := e.wait(b, name)
	e.settle()
	a.vanish()
	at := time.Now()
	next := w.granted(e.b.TakeOver + e.patience)
	e.Error(l.Context().Err(), "the lease of the one that vanished")
	if took := w.ended.Sub(at); took > e.b.TakeOver+max(2*e.ttl, 3*time.Second) {
		e.Errorf("it took %v, and %v is documented", took, e.b.TakeOver)
	}
	e.release(next)
}

func waitBudget(e *env) {
	name := e.name("budget")
	a, b := e.open(), e.open()
	e.acquire(a, name)
	budget := time.Duration(times(2, 10)) * e.ttl
	maxWait := e.open()
	for _, c := range []*client{b, maxWait} {
		e.held(c, name) // they are connected
	}
	w := e.waitFor(budget, b, name)
	w2 := e.wait(maxWait, name, locker.WithMaxWait(budget))
	// Others come and go, and wake those who wait.
	others := []*client{e.open(), e.open(), e.open()}
	for i := range times(3, 50) {
		e.waitFor(e.ttl/6, others[i%len(others)], name).refused(e.patience, context.DeadlineExceeded)
	}
	err := w.refused(budget+e.patience, locker.ErrHeld, context.DeadlineExceeded)
	e.NotErrorIs(err, locker.ErrUnavailable)
	e.GreaterOrEqual(w.ended.Sub(w.began), budget)
	err = w2.refused(budget+e.patience, locker.ErrHeld)
	e.False(isTimeout(err), "MaxWait isn't the caller's context: %v", err)
	e.GreaterOrEqual(w2.ended.Sub(w2.began), budget)
}

func waitsBeyondTTL(e *env) {
	name := e.name("patient")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	w := e.wait(b, name)
	e.sleep(3 * e.ttl)
	w.still()
	e.alive(l)
	e.release(l)
	e.release(w.granted(e.patience))
}

func tryWhileDown(e *env, down func(*client)) {
	c, other := e.open(), e.open()
	name := e.name("down")
	e.free(c, name)
	down(c)
	bound := 500 * time.Millisecond
	for _, ctxBound := range []time.Duration{bound, 0} {
		ctx, stop := e.ctx, func() {}
		limit := 10 * time.Second
		if ctxBound > 0 {
			ctx, stop = context.WithTimeout(e.ctx, ctxBound)
			limit = ctxBound
		}
		began := time.Now()
		l, err := c.TryAcquire(ctx, name)
		took := time.Since(began)
		stop()
		e.refused(l, err, locker.ErrUnavailable)
		e.NotErrorIs(err, locker.ErrHeld, "nobody was asked")
		e.LessOrEqual(took, limit+max(e.ttl, 2*time.Second))
	}
	c.heal()
	e.free(other, name)
	e.eventually(e.patience, func() bool {
		l, err := c.TryAcquire(e.ctx, name)
		if err != nil {
			e.refused(l, err)
			return false
		}
		e.release(l)
		return true
	}, "TryAcquire works again")
}

func noBusyPolling(e *env) {
	name := e.name("poll")
	a := e.open()
	e.acquire(a, name)
	var waiters []*client
	for range 4 {
		c := e.open()
		waiters = append(waiters, c)
		e.wait(c, name)
	}
	e.sleep(e.ttl)
	count := func() (n int) {
		for _, c := range waiters {
			n += c.link.Requests()
		}
		return n
	}
	before, began := count(), time.Now()
	e.sleep(max(3*e.ttl, 3*time.Second))
	took := time.Since(began)
	// Two looks a second, and what keeps a session alive: a few requests for each renewal.
	perWaiter := 2*took.Seconds() + 6*float64(took)/float64(e.ttl/4) + 10
	e.LessOrEqual(float64(count()-before), perWaiter*float64(len(waiters)), "requests of %d waiters in %v", len(waiters), took)
}

func everybodyGetsATurn(e *env) {
	name := e.name("fair")
	const contenders = 4
	var (
		mu     sync.Mutex
		grants [contenders]int
		wg     sync.WaitGroup
	)
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range grants {
			if n < times(2, 20) {
				return false
			}
		}
		return true
	}
	enough := time.Now().Add(time.Duration(times(0, 30)) * e.ttl)
	until := time.Now().Add(2 * e.patience)
	for i := range contenders {
		c := e.open()
		wg.Go(func() {
			for (!all() || time.Now().Before(enough)) && time.Now().Before(until) {
				ctx, stop := context.WithDeadline(e.ctx, until.Add(e.patience))
				l, err := c.Acquire(ctx, name)
				stop()
				e.granted(l, err)
				mu.Lock()
				grants[i]++
				mu.Unlock()
				e.sleep(min(20*time.Millisecond, e.ttl/20))
				l.Release(e.ctx)
			}
		})
	}
	wg.Wait()
	e.True(all(), "grants: %v", grants)
	total := 0
	for _, n := range grants {
		total += n
	}
	if long() {
		for _, n := range grants {
			e.GreaterOrEqual(float64(n), 0.05*float64(total), "grants: %v", grants)
		}
	}
}

func deadWaiter(e *env) {
	name := e.name("dead")
	a, b, c := e.open(withTTL(10*e.ttl)), e.open(), e.open()
	l := e.acquire(a, name)
	e.wait(b, name)
	e.settle()
	w := e.wait(c, name)
	e.settle()
	b.vanish()
	e.sleep(e.b.TakeOver + e.ttl/2) // what the dead one had, has had the time to expire
	e.release(l)
	e.release(w.granted(2*e.b.TakeOver + e.patience))
}

func waitsThroughOutage(e *env) {
	name := e.name("outage")
	a, b, c := e.open(), e.open(), e.open()
	l := e.acquire(a, name)
	refused := e.wait(b, name)
	silent := e.wait(c, name)
	e.settle()
	b.away()
	c.vanish()
	e.sleep(2 * e.ttl)
	refused.still()
	silent.still()
	b.heal()
	c.link.Cut()
	c.heal()
	e.settle()
	e.alive(l)
	e.release(l)
	var wg sync.WaitGroup
	for _, w := range []*waiting{refused, silent} {
		wg.Go(func() { e.release(w.granted(2 * e.patience)) })
	}
	wg.Wait()
}
