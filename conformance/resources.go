package conformance

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

var resourceCases = []testCase{
	{name: "LEAK-01", rule: "Attempts that fail leave no sessions behind, nor entries or goroutines.", alone: true, run: failedAttempts},
	{name: "LEAK-12", rule: "Goroutines end with what they were started for: after releases, losses and cancelled waits there are as many as before.", alone: true, run: goroutinesEnd},
	{name: "RES-01", rule: "However many wait, leases are renewed and released in time.", alone: true, run: manyWaiters},
	{name: "RES-02", rule: "Cancelled waits give back what they used: connections are as many as before, and the next acquisition works.", alone: true, run: cancelledWaits},
	{name: "RES-05", rule: "One Locker holds a hundred leases with a few connections and goroutines.", alone: true, run: manyLeases},
}

// usage is what a process has at a moment.
type usage struct{ goroutines, conns int }

func (e *env) usage(clients ...*client) usage {
	u := usage{goroutines: runtime.NumGoroutine()}
	for _, c := range clients {
		u.conns += c.link.Conns()
	}
	return u
}

// perConn is the number of goroutines that a connection may cost, those of the suite's proxy included.
const perConn = 8

// slack is how far goroutines and connections may differ between two moments without a leak: how full a pool is depends on
// how many have used it in the same moment. Each repetition of a case that looks for leaks would leave twenty and more.
const slack = 10

// flat sees that doing a thing again and again uses no more than doing it once did: what is kept for the next time, such
// as a pool of connections, is there after the first.
func (e *env) flat(times int, do func(), clients ...*client) {
	do()
	e.sleep(e.ttl / 2)
	before := e.usage(clients...)
	for range times {
		do()
	}
	var after usage
	for end := time.Now().Add(e.patience); ; e.sleep(5 * time.Millisecond) {
		after = e.usage(clients...)
		if after.conns <= before.conns+slack && after.goroutines <= before.goroutines+slack+perConn*max(0, after.conns-before.conns) {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	e.fail("doing it %d times more has left %d goroutines and %d connections, of %d and %d before", times, after.goroutines, after.conns, before.goroutines, before.conns)
}

func failedAttempts(e *env) {
	name := e.name("fail")
	a, b := e.open(), e.open()
	e.acquire(a, name)
	sessions := func() (n int) {
		if e.b.Admin.Sessions != nil {
			var err error
			n, err = e.b.Admin.Sessions(e.ctx)
			e.NoError(err, "Admin.Sessions")
		}
		return n
	}
	attempts := func() {
		for range 15 {
			l, err := b.TryAcquire(e.ctx, name)
			e.refused(l, err, locker.ErrHeld)
		}
		for range 5 {
			e.waitFor(2*time.Millisecond, b, name).refused(e.patience)
		}
	}
	attempts() // one session may be made and kept
	before := sessions()
	e.flat(times(4, 40), attempts, a, b)
	e.eventually(e.patience, func() bool { return sessions() <= before+1 }, "sessions are %d at most", before+1)
	if e.b.Admin.Entries != nil {
		e.eventually(e.patience, func() bool { return e.entriesOf(name) <= 1 }, "the holder's entry is the only one")
	}
}

func goroutinesEnd(e *env) {
	c, other := e.open(), e.open()
	busy := e.name("busy")
	e.acquire(other, busy)
	e.flat(times(2, 25), func() {
		for i := range 20 {
			e.free(c, e.name(fmt.Sprint("n", i%7)))
		}
		var wg sync.WaitGroup
		for i := range 20 {
			ctx, stop := context.WithTimeout(e.ctx, time.Duration(i%10)*time.Millisecond)
			wg.Go(func() {
				defer stop()
				l, err := c.Acquire(ctx, busy)
				e.refused(l, err)
			})
		}
		wg.Wait()
		var leases []locker.Lease
		for i := range 10 {
			leases = append(leases, e.acquire(c, e.name(fmt.Sprint("lost", i))))
		}
		c.vanish()
		for _, l := range leases {
			e.lost(l, e.patience)
			e.ErrorIs(l.Release(e.ctx), locker.ErrLost)
		}
		c.link.Cut()
		c.heal()
		e.release(e.acquireWithin(e.b.TakeOver+2*e.patience, c, e.name("lost0")))
	}, c, other)
}

func manyWaiters(e *env) {
	a, b := e.open(), e.open()
	var mine []locker.Lease
	for i := range 3 {
		mine = append(mine, e.acquire(a, e.name(fmt.Sprint("mine", i))))
	}
	const names = 10
	for i := range names {
		e.acquire(b, e.name(fmt.Sprint("theirs", i)))
	}
	for i := range times(100, 300) {
		e.wait(a, e.name(fmt.Sprint("theirs", i%names)))
	}
	e.sleep(time.Duration(times(4, 20)) * e.ttl)
	for _, l := range mine {
		e.alive(l)
		began := time.Now()
		e.release(l)
		e.Less(time.Since(began), max(e.ttl, 2*time.Second), "a release among waiters")
	}
}

func cancelledWaits(e *env) {
	name := e.name("wait")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	e.flat(times(3, 25), func() {
		for range 20 {
			e.waitFor(3*time.Millisecond, b, name).refused(e.patience, context.DeadlineExceeded)
		}
	}, a, b)
	e.release(l)
	e.free(b, name)
}

func manyLeases(e *env) {
	c := e.open(withTTL(3 * e.ttl))
	e.free(c, e.name("warm"))
	before := runtime.NumGoroutine()
	const n = 100
	leases := make([]locker.Lease, n)
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := part; i < n; i += 4 {
				leases[i] = e.acquire(c, e.name(fmt.Sprint("many", i)))
			}
		})
	}
	wg.Wait()
	conns := c.link.Conns()
	e.sleep(time.Duration(times(4, 9)) * e.ttl) // they were renewed
	for _, l := range leases {
		e.alive(l)
	}
	e.LessOrEqual(conns, 40*max(1, len(e.b.Addrs)), "connections")
	e.LessOrEqual(runtime.NumGoroutine(), before+60+8*conns, "goroutines; there were %d before, and %d connections", before, conns)
	for part := range 4 {
		wg.Go(func() {
			for i := part; i < n; i += 4 {
				e.release(leases[i])
			}
		})
	}
	wg.Wait()
}
