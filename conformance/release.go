package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

var releaseCases = []testCase{
	{name: "RELEASE-1", rule: "A released name is free at once, for others and for the same Locker, without waiting for a TTL.", run: freeAtOnce},
	{name: "RELEASE-2", rule: "A release whose reply is lost isn't a loss, and the name is free.", run: releaseReplyLost},
	{name: "LEAK-03", rule: "No renewal outlives its lease: whatever moment an acquisition is cancelled in, the name is free again.", run: renewalEnds},
	{name: "LEAK-05", rule: "A release frees the name although its context was cancelled before.", run: cancelledRelease},
	{name: "LEAK-07", rule: "A release that fails, by a loss or by the network, leaves the Locker able to acquire the name.", run: failedRelease},
	{name: "SHUT-03", rule: "A second release returns what the first has returned, and touches nobody's entry.", run: releaseTwice},
}

func containsTag(s, tag string) bool { return strings.Contains(s, tag) }

func freeAtOnce(e *env) {
	name := e.name("free")
	ttl := 60 * e.ttl
	a, b := e.open(withTTL(ttl)), e.open(withTTL(ttl))
	for range times(3, 100) {
		l := e.acquire(a, name)
		w := e.wait(b, name)
		e.settle()
		e.release(l)
		next := w.granted(min(e.patience, ttl/2))
		e.Greater(next.Token(), l.Token())
		e.release(next)
		e.acquireWithin(min(e.patience, ttl/2), a, name).Release(e.ctx)
	}
}

func releaseReplyLost(e *env) {
	b := e.open()
	for n := 1; n <= 2; n++ {
		name := e.name(newTag())
		a := e.open(withTTL(10 * e.ttl)) // no renewal comes between
		l := e.acquire(a, name)
		dropped := a.link.DropReply(n)
		err := l.Release(e.ctx)
		if err != nil {
			e.ErrorIs(err, locker.ErrUnavailable)
		}
		e.NotErrorIs(err, locker.ErrLost, "the lease was released; only the reply was lost")
		e.note("reply %d dropped: %v, release: %v", n, dropped(), err)
		a.heal()
		e.release(e.acquireWithin(2*e.patience, b, name))
	}
}

func renewalEnds(e *env) {
	name := e.name("cancel")
	a, b := e.open(), e.open()
	r := rand.New(rand.NewPCG(1, 2))
	// How long a grant takes decides which moments are worth trying.
	began := time.Now()
	e.free(a, name)
	usual := max(time.Since(began), 200*time.Microsecond)
	for i := range times(60, 2000) {
		ctx, stop := context.WithTimeout(e.ctx, time.Duration(r.Int64N(int64(2*usual))))
		l, err := a.Acquire(ctx, name)
		stop()
		if err != nil {
			e.refused(l, err)
			e.True(isTimeout(err), "%v", err)
		} else {
			e.granted(l, err)
			l.Release(e.ctx)
		}
		if i%20 == 19 {
			// Nobody renews what nobody holds.
			e.release(e.acquireWithin(e.b.TakeOver+e.patience, b, name))
		}
	}
}

func cancelledRelease(e *env) {
	name := e.name("dead-context")
	ttl := 60 * e.ttl
	a, b := e.open(withTTL(ttl)), e.open(withTTL(ttl))
	l := e.acquire(a, name)
	ctx, stop := context.WithCancel(e.ctx)
	stop()
	e.NoError(l.Release(ctx))
	e.release(e.acquireWithin(min(e.patience, ttl/2), b, name))
}

func failedRelease(e *env) {
	name := e.name("failed")
	c := e.open()
	again := func(l locker.Lease) {
		e.spawn(func() {
			next := e.acquireWithin(e.b.TakeOver+2*e.patience, c, name)
			e.Greater(next.Token(), l.Token())
			e.release(next)
		})
		e.running.Wait()
	}
	// Lost.
	l := e.acquire(c, name)
	c.vanish()
	e.lost(l, e.patience)
	e.ErrorIs(l.Release(e.ctx), locker.ErrLost)
	c.link.Cut()
	c.heal()
	again(l)
	if e.b.ProcessBound {
		return // there is no network
	}
	// Failing by the network.
	l = e.acquire(c, name)
	c.away()
	ctx, stop := context.WithTimeout(e.ctx, e.ttl/2)
	began := time.Now()
	err := l.Release(ctx)
	stop()
	e.Error(err)
	e.True(errors.Is(err, locker.ErrUnavailable) || errors.Is(err, locker.ErrLost), "%v", err)
	e.Less(time.Since(began), e.patience)
	c.heal()
	again(l)
}

func releaseTwice(e *env) {
	name := e.name("twice")
	a, b, c := e.open(), e.open(), e.open()
	l := e.acquire(a, name)
	e.release(l)
	next := e.acquire(b, name)
	e.NoError(l.Release(e.ctx), "the second release")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { e.NoError(l.Release(e.ctx)) })
	}
	wg.Wait()
	e.held(c, name)
	e.alive(next)

	// All at once.
	for range 20 {
		wg.Go(func() { e.NoError(next.Release(e.ctx)) })
	}
	wg.Wait()
	third := e.acquire(c, name)
	e.NoError(next.Release(e.ctx))

	// After a loss, and after Close.
	c.vanish()
	e.lost(third, e.patience)
	first := third.Release(e.ctx)
	e.ErrorIs(first, locker.ErrLost)
	e.Equal(first, third.Release(e.ctx))
	c.heal()
	fourth := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
	b.end()
	e.ErrorIs(fourth.Release(e.ctx), locker.ErrLost)
	e.ErrorIs(fourth.Release(e.ctx), locker.ErrClosed)
	e.free(a, name)
}
