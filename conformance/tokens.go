package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
)

var tokenCases = []testCase{
	{name: "TOK-01", rule: "Tokens of a name rise strictly over releases, losses, crashes and new clients.", run: tokensRise},
	{name: "TOK-01p", rule: "Tokens of a name rise strictly over processes that are killed.", needs: []need{needProcesses, needTakeOver}, run: tokensRiseOverProcesses},
	{name: "TOK-05", rule: "A lease's token is fixed for its life, through renewals and failures, and no failed attempt reorders holders.", run: tokenIsFixed},
	{name: "TOK-06", rule: "The order of the tokens is that of the grants: a register that refuses lower tokens never refuses a holder.", run: registerNeverRefuses},
}

func tokensRise(e *env) {
	name := e.name("fence")
	last := locker.Token(0)
	grant := func(c *client) locker.Lease {
		l := e.acquireWithin(e.b.TakeOver+e.patience, c, name)
		if l.Token() <= last {
			e.fail("token %d was granted after token %d", l.Token(), last)
		}
		last = l.Token()
		return l
	}
	a, b := e.open(), e.open()
	for range times(2, 25) {
		e.release(grant(a))
		e.release(grant(b))
		e.release(grant(a))

		// A holder that is lost.
		c := e.open()
		lost := grant(c)
		c.vanish()
		e.release(grant(b))
		e.Error(lost.Context().Err())

		// One that is closed.
		d := e.open()
		grant(d)
		d.end()
		e.release(grant(a))
		c.end()

		// One that is cut off and comes back.
		l := grant(a)
		a.away()
		a.heal()
		if err := l.Release(e.ctx); err != nil {
			e.NotErrorIs(err, locker.ErrHeld)
		}
	}
	e.release(grant(b))
}

func tokenIsFixed(e *env) {
	name := e.name("fixed")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)
	token := l.Token()
	same := func() { e.Equal(token, l.Token(), "the token of a live lease") }
	for end := time.Now().Add(time.Duration(times(3, 8)) * l.TTL()); time.Now().Before(end); e.sleep(e.ttl / 10) {
		same()
		e.held(b, name)
	}
	a.link.Cut()
	e.sleep(e.ttl / 2)
	same()
	e.alive(l)
	same()
	e.release(l)
	same()
	next := e.acquire(b, name)
	e.Greater(next.Token(), token)
	e.release(next)
}

func registerNeverRefuses(e *env) {
	name := e.name("register")
	rounds := times(4, 100)
	until := time.Now().Add(time.Duration(times(6, 200)) * e.ttl)
	var (
		mu       sync.Mutex
		highest  locker.Token
		accepted = func(t locker.Token) bool {
			mu.Lock()
			defer mu.Unlock()
			ok := t >= highest
			highest = max(highest, t)
			return ok
		}
		wg sync.WaitGroup
	)
	for i := range times(6, 16) {
		c := e.open()
		if i%2 == 1 {
			c.link.Delay(proxy.Jitter(uint64(i), 0, min(20*time.Millisecond, e.ttl/40)))
		}
		wg.Go(func() {
			for n := 0; n < rounds && (n == 0 || time.Now().Before(until)); n++ {
				ctx, stop := context.WithTimeout(e.ctx, 4*e.patience)
				l, err := c.Acquire(ctx, name)
				stop()
				e.granted(l, err)
				ok := accepted(l.Token())
				// A refusal counts only if the lease was still live after it: then nobody can have been granted a
				// higher token before.
				if !ok && l.Context().Err() == nil {
					e.Errorf("the register has refused token %d of a live lease", l.Token())
				}
				l.Release(e.ctx)
			}
		})
	}
	wg.Wait()
}
