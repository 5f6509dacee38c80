package conformance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

var shutdownCases = []testCase{
	{name: "SHUT-01a", rule: "Close returns within its bound while the backend refuses connections, and waits end with ErrClosed.", run: func(e *env) { closeWhileAway(e, (*client).away) }},
	{name: "SHUT-01b", rule: "Close returns within its bound while the backend doesn't answer, and waits end with ErrClosed.", run: func(e *env) { closeWhileAway(e, (*client).vanish) }},
	{name: "SHUT-01c", rule: "Close returns within its bound while the server's process stands still.", needs: []need{needPause}, alone: true, run: closeWhilePaused},
	{name: "SHUT-02", rule: "Close ends waits with ErrClosed and leases as lost, releases them, and can be called again; later calls fail at once.", run: closeInUse},
	{name: "SHUT-02b", rule: "A release that is under way while the Locker is closed is finished.", run: closeDuringRelease},
	{name: "SHUT-05", rule: "A Locker that is closed leaves its names free at once, for one that waits, without a TTL or a lock-delay.", run: closeHandsOver},
}

// closeBound is what Close may take, and something for a busy machine.
func (e *env) closeBound() time.Duration { return 5*time.Second + max(3*time.Second, e.ttl) }

func closeWhileAway(e *env, down func(*client)) {
	c, other := e.open(), e.open()
	mine, theirs := e.name("mine"), e.name("theirs")
	l := e.acquire(c, mine)
	e.acquire(other, theirs)
	w := e.wait(c, theirs)
	e.settle()
	down(c)
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Close() // an error says that the release wasn't confirmed
	}()
	select {
	case <-done:
	case <-time.After(e.closeBound() + e.patience):
		e.fail("Close hangs: it hasn't returned after %v", time.Since(began))
	}
	e.LessOrEqual(time.Since(began), e.closeBound())
	w.refused(e.patience, locker.ErrClosed)
	e.ErrorIs(e.lost(l, e.patience), locker.ErrClosed)
	e.acquireWithin(e.b.TakeOver+e.patience, other, mine).Release(e.ctx)
}

func closeWhilePaused(e *env) {
	c := e.open()
	l := e.acquire(c, e.name("mine"))
	for i := range e.b.Addrs {
		e.NoError(e.b.Servers.Pause(e.ctx, i), "Servers.Pause")
		e.cleanup(func() { e.NoError(e.b.Servers.Resume(e.ctx, i), "Servers.Resume") })
	}
	w := e.wait(c, e.name("other"))
	e.settle()
	began := time.Now()
	c.Close()
	e.LessOrEqual(time.Since(began), e.closeBound())
	w.refused(e.patience, locker.ErrClosed)
	e.Error(l.Context().Err())
}

func closeInUse(e *env) {
	for range times(1, 20) {
		closeAfter(e, newTag(), rand.N(e.ttl*2/3))
	}
}

// closeAfter closes a Locker while many use it, on names with a tag of their own.
func closeAfter(e *env, tag string, d time.Duration) {
	const names = 4
	a, b := e.open(), e.open()
	var wg sync.WaitGroup
	for i := range times(20, 50) {
		name := e.name(fmt.Sprint(tag, "loop", i%names))
		wg.Go(func() {
			for {
				l, err := a.Acquire(e.ctx, name)
				if err != nil {
					e.refused(l, err, locker.ErrClosed)
					return
				}
				e.granted(l, err)
				time.Sleep(time.Millisecond) // where time is virtual, it passes only here
				if err := l.Release(e.ctx); err != nil {
					e.ErrorIs(err, locker.ErrLost)
				}
			}
		})
	}
	held := e.acquire(a, e.name(tag+"held"))
	e.acquire(b, e.name(tag+"theirs"))
	w := e.wait(a, e.name(tag+"theirs"))
	e.sleep(d)
	began := time.Now()
	e.NoError(a.Close())
	e.LessOrEqual(time.Since(began), e.closeBound())
	wg.Wait()
	w.refused(e.patience, locker.ErrClosed)
	cause := e.lost(held, e.patience)
	e.ErrorIs(cause, locker.ErrClosed)
	l, err := a.Acquire(e.ctx, e.name(tag+"held"))
	e.refused(l, err, locker.ErrClosed)
	e.NoError(a.Close(), "the second Close")
	for i := range names {
		e.free(b, e.name(fmt.Sprint(tag, "loop", i)))
	}
	e.free(b, e.name(tag+"held"))
}

func closeDuringRelease(e *env) {
	c, b := e.open(withTTL(10*e.ttl)), e.open()
	l := e.acquire(c, e.name("busy"))
	d := min(e.ttl/4, 300*time.Millisecond)
	c.link.Delay(func() time.Duration { return d })
	released := make(chan error, 1)
	e.spawn(func() { released <- l.Release(e.ctx) })
	e.eventually(e.patience, func() bool { return l.Context().Err() != nil }, "the release has begun")
	c.Close()
	e.NoError(<-released, "a release that began before Close")
	e.free(b, e.name("busy"))
}

func closeHandsOver(e *env) {
	name := e.name("deploy")
	ttl := 60 * e.ttl
	a, b := e.open(withTTL(ttl)), e.open(withTTL(ttl))
	e.acquire(a, name)
	w := e.wait(b, name)
	e.settle()
	w.still()
	e.NoError(a.Close())
	e.release(w.granted(min(e.patience, ttl/2)))
}
