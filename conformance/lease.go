package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
)

var leaseCases = []testCase{
	{name: "LEASE-1", rule: "A lease's deadline counts from the time at which the request was sent that set its TTL, not from the reply.", run: countsFromSending},
	{name: "LEASE-2", rule: "A lease under a session that others share ends with the session: its deadline counts from the session's last renewal, not from the acquisition.", run: olderSession},
	{name: "LEASE-3", rule: "A lease says what it is: name, token, TTL at least as long as asked, remaining time no longer than it; its context has the values of Acquire's.", run: says},
	{name: "EXP-02a", rule: "A holder that can't reach the backend, because it is refused, is told before the TTL has passed since its last renewal was sent.", run: func(e *env) { outOfReach(e, (*client).away) }},
	{name: "EXP-02b", rule: "A holder that can't reach the backend, because nothing gets through, is told before the TTL has passed since its last renewal was sent.", run: func(e *env) { outOfReach(e, (*client).vanish) }},
	{name: "EXP-04", rule: "A lease that was waited for is as fresh as any: its deadline doesn't count from the first attempt.", run: freshAfterWait},
	{name: "EXP-06", rule: "A renewal that fails for a moment doesn't end a lease that has time left.", run: blip},
	{name: "EXP-08", rule: "Renewal begins with every acquisition, also right after the last lease was released.", run: renewedAfterRelease},
	{name: "EXP-09", rule: "A renewal sets the remaining time to the TTL and doesn't add to it.", needs: []need{needEntry}, run: ttlDoesNotGrow},
	{name: "EXP-10", rule: "A TTL is refused with ErrConfig when opening, or the lease's TTL is at least as long.", run: oddTTLs},
	{name: "EXP-18", rule: "A lease lives as long as it is renewed, also where each request takes a fifth of the TTL.", run: slowNetwork(5)},
	{name: "EXP-18b", rule: "A lease lives as long as it is renewed, also where each request takes a tenth of the TTL.", run: slowNetwork(10)},
	{name: "EXP-20", rule: "The context that bounds an acquisition doesn't bound the lease.", run: acquireContextEnds},
	{name: "LEAK-13", rule: "A maximum hold ends the lease with ErrMaxHold; the name is free after the release.", run: maxHold},
	{name: "LEAK-13b", rule: "After a maximum hold the entry isn't renewed: without a release the name is free about one TTL later.", run: maxHoldUnreleased},
}

func countsFromSending(e *env) {
	c := e.open(withTTL(2 * e.ttl))
	e.free(c, e.name("warm")) // a session is made before
	d := e.ttl / 4
	c.link.Delay(func() time.Duration { return d }, proxy.ToClient)
	ctx, stop := context.WithTimeout(e.ctx, e.patience)
	defer stop()
	l, err := c.Acquire(ctx, e.name("slow"))
	got := l
	e.granted(l, err)
	e.LessOrEqual(got.Remaining(), got.TTL()-d, "the reply to the request that set the TTL took %v", d)
	c.heal()
	e.release(l)
}

func olderSession(e *env) {
	x, y := e.name("x"), e.name("y")
	w := &witness{}
	a, b := e.open(), e.open()
	e.acquire(a, x)
	// Late in the interval between two renewals the difference is the largest.
	e.sleep(e.ttl / 4)
	second := e.acquire(a, y)
	a.vanish()
	v := w.enter("A", second)
	next := e.wait(b, y)
	e.spawn(func() { v.stay(e.ctx, e.ttl/100+time.Millisecond) })
	l := next.granted(e.b.TakeOver + e.patience)
	w.enter("B", l).write()
	e.Error(second.Context().Err())
	e.judged(w)
	e.release(l)
}

func says(e *env) {
	type key struct{}
	c := e.open()
	name := e.name("says")
	ctx, stop := context.WithCancel(context.WithValue(e.ctx, key{}, "value"))
	defer stop()
	l, err := c.Acquire(ctx, name)
	e.granted(l, err)
	e.Equal(name, l.Name())
	e.Equal(c.Kind(), l.Kind())
	e.GreaterOrEqual(l.TTL(), e.ttl)
	e.LessOrEqual(l.Remaining(), l.TTL())
	e.Positive(l.Remaining())
	e.Equal("value", l.Context().Value(key{}))
	_, has := l.Context().Deadline()
	e.False(has, "only a maximum hold is a deadline")
	stop()
	e.alive(l)
	e.release(l)
	e.ErrorIs(l.Context().Err(), context.Canceled)
	e.ErrorIs(context.Cause(l.Context()), locker.ErrReleased)
	e.LessOrEqual(l.Remaining(), time.Duration(0))
}

func outOfReach(e *env, cut func(*client)) {
	name := e.name("partition")
	w := &witness{}
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	e.sleep(e.ttl / 2) // it was renewed at least once
	e.alive(l)
	next := e.wait(b, name)
	v := w.enter("A", l)
	cut(a)
	end := time.Now().Add(l.TTL()) // no renewal is sent later than now
	e.spawn(func() { v.stay(e.ctx, e.ttl/100+time.Millisecond) })
	e.sleep(time.Until(end))
	e.Error(l.Context().Err(), "a TTL has passed since the last renewal can have been sent")
	cause := e.lost(l, e.patience)
	e.note("cause: %v", cause)
	second := next.granted(e.b.TakeOver + e.patience)
	e.Greater(second.Token(), l.Token())
	w.enter("B", second).write()
	e.judged(w)
	e.release(second)
	a.heal()
	e.ErrorIs(l.Release(e.ctx), locker.ErrLost)
}

func freshAfterWait(e *env) {
	name := e.name("fresh")
	a, b := e.open(), e.open()
	first := e.acquire(a, name)
	next := e.wait(b, name)
	e.sleep(3 * e.ttl)
	next.still()
	e.alive(first)
	e.release(first)
	l := next.granted(e.patience)
	e.GreaterOrEqual(l.Remaining(), l.TTL()/4)
	e.sleep(2 * e.ttl)
	e.alive(l)
	e.release(l)
}

func blip(e *env) {
	name := e.name("blip")
	a, b := e.open(withTTL(3*e.ttl)), e.open()
	l := e.acquire(a, name)
	token := l.Token()
	for range times(2, 20) {
		// A renewal is due within a third of the TTL: the blip covers one and leaves time for the next.
		a.away()
		e.sleep(l.TTL() * 4 / 10)
		e.alive(l)
		a.heal()
		e.sleep(l.TTL() * 3 / 10)
		e.held(b, name)
	}
	e.sleep(l.TTL() / 2)
	e.alive(l)
	e.Equal(token, l.Token())
	e.release(l)
}

func renewedAfterRelease(e *env) {
	c := e.open()
	var wg sync.WaitGroup
	for range times(5, 50) {
		e.release(e.acquire(c, e.name(newTag())))
		l := e.acquire(c, e.name(newTag()))
		wg.Go(func() {
			e.sleep(l.TTL() * 5 / 2)
			e.alive(l)
			e.release(l)
		})
		e.sleep(e.ttl / 20)
	}
	wg.Wait()
}

func ttlDoesNotGrow(e *env) {
	name := e.name("grow")
	c := e.open()
	l := e.acquire(c, name)
	for end := time.Now().Add(time.Duration(times(4, 30)) * e.ttl); time.Now().Before(end); e.sleep(e.ttl / 10) {
		entry := e.entry(name)
		e.NotEmpty(entry.Value, "the entry of a live lease")
		e.LessOrEqual(entry.Remaining, l.TTL())
	}
	e.alive(l)
	e.release(l)
}

func oddTTLs(e *env) {
	for _, ttl := range []time.Duration{-time.Second, 1, 999 * time.Microsecond, time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond, 2900 * time.Millisecond, 1e6 * time.Hour} {
		c, err := e.tryOpen(withTTL(ttl))
		if ttl < 100*time.Millisecond || ttl > 24*time.Hour {
			e.ErrorIs(err, locker.ErrConfig, "a TTL of %v", ttl)
		}
		if err != nil {
			e.ErrorIs(err, locker.ErrConfig, "a TTL of %v", ttl)
			continue
		}
		name := e.name("ttl")
		ctx, stop := context.WithTimeout(e.ctx, e.patience)
		l, err := c.Acquire(ctx, name)
		stop()
		e.granted(l, err)
		e.GreaterOrEqual(l.TTL(), ttl)
		e.LessOrEqual(l.Remaining(), l.TTL())
		if entry := e.entry(name); entry.Remaining > 0 {
			e.LessOrEqual(entry.Remaining, l.TTL()+time.Second, "the server's TTL is the lease's, rounded to its unit")
		}
		if err := l.Release(e.ctx); err != nil { // a TTL of 100 ms is soon over on a busy machine
			e.ErrorIs(err, locker.ErrLost)
		}
	}
}

func slowNetwork(part time.Duration) func(*env) {
	return func(e *env) {
		// A longer TTL than elsewhere, so that what a busy machine adds to the round trips is small against the delays.
		ttl := withTTL(3 * e.ttl)
		c := e.open(ttl)
		e.free(c, e.name("warm")) // a session is made before
		c.link.Delay(func() time.Duration { return 3 * e.ttl / part / 2 })
		l := e.acquire(c, e.name("slow"))
		e.sleep(time.Duration(times(3, 20)) * l.TTL())
		e.alive(l)
		c.heal()
		e.release(l)
	}
}

func acquireContextEnds(e *env) {
	name := e.name("bounded")
	a, b := e.open(), e.open()
	ctx, stop := context.WithTimeout(e.ctx, e.patience)
	l, err := a.Acquire(ctx, name)
	stop()
	e.granted(l, err)
	e.sleep(2 * l.TTL())
	e.alive(l)
	e.held(b, name)
	e.release(l)
}

func maxHold(e *env) {
	name := e.name("hang")
	a, b := e.open(), e.open()
	hold := 2 * e.ttl
	began := time.Now()
	l := e.acquire(a, name, locker.WithMaxHold(hold))
	deadline, ok := l.Context().Deadline()
	e.True(ok, "a maximum hold is the context's deadline")
	e.False(deadline.Before(began.Add(hold)))
	cause := e.lost(l, hold+e.patience)
	e.ErrorIs(cause, locker.ErrMaxHold)
	e.ErrorIs(l.Context().Err(), context.DeadlineExceeded)
	e.GreaterOrEqual(time.Since(began), hold)
	e.ErrorIs(l.Release(e.ctx), locker.ErrMaxHold)
	e.free(b, name)
}

func maxHoldUnreleased(e *env) {
	name := e.name("hang")
	a, b := e.open(), e.open()
	l := e.acquire(a, name, locker.WithMaxHold(e.ttl))
	next := e.wait(b, name)
	e.lost(l, e.patience)
	second := next.granted(e.b.TakeOver + e.patience)
	e.Greater(second.Token(), l.Token())
	e.release(second)
}
