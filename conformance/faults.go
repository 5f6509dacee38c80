package conformance

import (
	"fmt"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
)

var faultCases = []testCase{
	{name: "FAULTS-1", rule: "An acquisition that arrives after its caller has given up leaves nothing for good, and is never held on a guess.", run: lateRequest},
	{name: "FAULTS-2", rule: "A reply that is lost anywhere between acquisition and release ends in the truth: one holder, and a name that is free afterwards.", run: repliesLost},
	{name: "EXP-01", rule: "A process that was frozen beyond its lease doesn't take it for alive when it goes on, and revives nothing.", needs: []need{needProcesses, needTakeOver}, run: frozenHolder},
	{name: "EXP-01b", rule: "A renewal that arrives after the lease has gone to another neither renews nor creates it.", run: lateRenewal},
	{name: "LEAK-04", rule: "The name of a process that was killed is free within the documented bound.", needs: []need{needProcesses, needTakeOver}, run: killedHolder},
	{name: "OWN-07p", rule: "A process that starts with the label of one that was killed doesn't inherit its lock.", needs: []need{needProcesses, needTakeOver}, run: sameLabelAfterCrash},
	{name: "RECON-03", rule: "A server that restarts with its data within the TTL ends no lease.", needs: []need{needStop}, alone: true, run: serverRestarts},
	{name: "RECON-05", rule: "After each lost connection the number of connections is what it was before.", needs: []need{needAddrs}, run: connectionsAfterCuts},
	{name: "RECON-07", rule: "A Locker that was opened while the backend was away works once it is there.", run: openedTooEarly},
}

func lateRequest(e *env) {
	b := e.open()
	for n := 1; n <= 2; n++ {
		name := e.name(fmt.Sprint("late", n))
		a := e.open()
		e.free(a, e.name("warm"))
		held, release := a.link.Hold(n)
		w := e.waitFor(e.ttl, a, name)
		if l, err := w.over(2 * e.patience); err == nil {
			// Fewer requests than n were needed.
			e.granted(l, err)
			release()
			e.release(l)
		} else {
			e.refused(l, err)
		}
		e.note("request %d held: %v", n, held())
		e.settle() // the clean-up is over before the request arrives
		release()
		e.settle()
		// Whatever has arrived late: it isn't held by anybody, so it must go away, while the client lives on.
		next := e.acquireWithin(e.b.TakeOver+2*e.patience, b, name)
		e.sleep(e.ttl / 2)
		e.alive(next)
		e.release(next)
		e.free(a, name)
	}
}

func repliesLost(e *env) {
	b := e.open()
	for n := 1; n <= times(4, 12); n++ {
		name := e.name(newTag())
		a := e.open()
		w := &witness{}
		dropped := a.link.DropReply(n)
		l := e.acquireWithin(2*e.patience, a, name)
		v := w.enter("A", l)
		next := e.wait(b, name)
		e.spawn(func() { v.stay(e.ctx, e.ttl/50) })
		e.sleep(e.ttl)
		if l.Context().Err() == nil {
			next.still()
		}
		if err := l.Release(e.ctx); err != nil {
			e.True(isUnavailableOrLost(err), "%v", err)
		}
		second := next.granted(e.b.TakeOver + 2*e.patience)
		w.enter("B", second).write()
		e.judged(w)
		e.release(second)
		e.note("reply %d dropped: %v", n, dropped())
		a.end()
	}
}

func lateRenewal(e *env) {
	name := e.name("renewal")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	// Renewals are on their way when the name goes to another, and arrive after that.
	a.link.BlackHole(proxy.ToServer)
	e.lost(l, e.patience)
	next := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
	before := e.entry(name)
	a.heal()
	e.sleep(e.ttl)
	e.Error(l.Context().Err(), "a lease never revives")
	e.alive(next)
	e.Equal(before.Value, e.entry(name).Value)
	e.release(next)
	e.free(b, name)
}

func isUnavailableOrLost(err error) bool {
	return matches(err, locker.ErrUnavailable) || matches(err, locker.ErrLost)
}

func serverRestarts(e *env) {
	name := e.name("restart")
	ttl := max(8*e.ttl, 20*time.Second) // a restart takes its time
	a, b := e.open(withTTL(ttl)), e.open()
	l := e.acquire(a, name)
	for range times(1, 3) {
		down := time.Now()
		for i := range e.b.Addrs {
			e.NoError(e.b.Servers.Stop(e.ctx, i), "Servers.Stop")
			e.NoError(e.b.Servers.Start(e.ctx, i), "Servers.Start")
		}
		if took := time.Since(down); took > ttl/3 {
			e.skip("not run: restarting the server took %v", took)
		}
		// More remains than a renewal from before can have left: it was renewed since.
		up := time.Now()
		e.eventually(ttl, func() bool {
			e.alive(l)
			return l.Remaining() > l.TTL()-time.Since(up)
		}, "a renewal after the restart")
		got, err := b.TryAcquire(e.ctx, name)
		e.refused(got, err, locker.ErrHeld)
	}
	e.release(l)
	next := e.acquire(b, name)
	e.Greater(next.Token(), l.Token(), "tokens rise over restarts")
	e.release(next)
}

func connectionsAfterCuts(e *env) {
	c := e.open()
	l := e.acquire(c, e.name("cut"))
	other := e.open()
	e.acquire(other, e.name("waited"))
	e.wait(c, e.name("waited"))
	e.sleep(e.ttl)
	baseline := c.link.Conns()
	for range times(5, 20) {
		c.link.Cut()
		e.sleep(e.ttl / 4)
	}
	e.sleep(e.ttl)
	e.eventually(e.patience, func() bool { return c.link.Conns() <= baseline+1 }, "no more than the %d connections from before", baseline)
	e.alive(l)
}

func openedTooEarly(e *env) {
	name := e.name("early")
	// The Locker is made behind a link that is away from the start, as far as it can tell.
	early := e.openAway()
	w := e.wait(early, name)
	e.settle()
	w.still()
	l, err := early.TryAcquire(e.ctx, e.name("other"))
	e.refused(l, err, locker.ErrUnavailable)
	e.sleep(e.ttl)
	w.still()
	early.heal()
	e.release(w.granted(2 * e.patience))
}
