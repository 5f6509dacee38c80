package redis_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/internal/testserver"
)

// WAIT-07: the subscription is cut at the very moment of the release.
func TestWAIT07LostMessage(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := client(t, s)
	const ttl = 30 * time.Second
	var wg sync.WaitGroup
	for range 10 {
		holder, waiter := open(t, s.URL("redis"), ttl), open(t, s.URL("redis"), ttl)
		wg.Go(func() {
			for range 10 {
				n := name(t)
				lease := acquire(t, holder, n)
				granted := make(chan error)
				go func() {
					l, err := waiter.Acquire(within(t, 2*ttl), n)
					if err == nil {
						err = l.Release(t.Context())
					}
					granted <- err
				}()
				for a.PubSubNumSub(t.Context(), "{lock:"+n+"}:free").Val()["{lock:"+n+"}:free"] == 0 {
					time.Sleep(time.Millisecond)
				}
				go a.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub")
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				start := time.Now()
				if err := <-granted; err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d > ttl/3 {
					t.Errorf("granted %v after the release", d)
				}
			}
		})
	}
	wg.Wait()
}

// WAIT-08: the key of a holder that died expires, and nobody publishes that.
func TestWAIT08HolderDied(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := client(t, s)
	const ttl = 3 * time.Second
	l := open(t, s.URL("redis"), ttl)
	var wg sync.WaitGroup
	for range 10 {
		n := name(t)
		start := time.Now()
		a.Set(t.Context(), "lock:"+n, "dead", ttl)
		wg.Go(func() {
			acquire(t, l, n).Release(t.Context())
			if d := time.Since(start); d < ttl-10*time.Millisecond || d > 2*ttl {
				t.Errorf("granted after %v", d)
			}
		})
	}
	wg.Wait()
}

// WAIT-16: waiters ask seldom, whatever the server answers.
func TestWAIT16NoBusyPolling(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := client(t, s)
	p, err := proxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	n := name(t)
	a.Set(t.Context(), "lock:"+n, "other", 0)
	const waiters, time6 = 10, 6 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range waiters {
		l := open(t, "redis://"+p.Addr(), 30*time.Second)
		wg.Go(func() {
			if _, err := l.Acquire(ctx, n); err == nil {
				t.Error("granted")
			}
		})
	}
	for what, fault := range map[string]func(){
		"held":      func() {},
		"read-only": func() { a.ReplicaOf(t.Context(), "127.0.0.1", "1") },
		"away":      func() { p.Refuse(); p.Cut() },
	} {
		fault()
		time.Sleep(time.Second) // connecting and subscribing
		requests, accepted := p.Count(nil), p.Accepted()
		time.Sleep(time6)
		perSecond := float64(requests.N()+p.Accepted()-accepted) / waiters / time6.Seconds()
		t.Logf("%s: %.2f requests and connections a second and waiter", what, perSecond)
		if perSecond > 2 {
			t.Errorf("%s: %.2f requests and connections a second and waiter", what, perSecond)
		}
		p.Heal()
		a.ReplicaOf(t.Context(), "NO", "ONE")
	}
	cancel()
	wg.Wait()
}

// WAIT-22: a subscription that was refused spoils nothing for later.
func TestWAIT22FailedSubscription(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := client(t, s)
	ctx := t.Context()
	rule := func(rules ...any) {
		t.Helper()
		if err := a.Do(ctx, append([]any{"ACL", "SETUSER", "app"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	rule("reset", "on", ">pw", "~*", "&*", "+@all", "-subscribe")
	url := "redis://app:pw@" + s.Addr
	const ttl = 30 * time.Second
	holder, waiter := open(t, url, ttl), open(t, url, ttl)
	n := name(t)
	for _, allowed := range []bool{false, true} {
		if allowed {
			rule("+subscribe")
		}
		for range 3 {
			lease := acquire(t, holder, n)
			granted := make(chan locker.Lease)
			go func() { granted <- acquire(t, waiter, n) }()
			if allowed {
				for a.PubSubNumSub(ctx, "{lock:"+n+"}:free").Val()["{lock:"+n+"}:free"] == 0 {
					time.Sleep(time.Millisecond)
				}
			} else {
				time.Sleep(100 * time.Millisecond)
			}
			if err := lease.Release(ctx); err != nil {
				t.Fatal(err)
			}
			select {
			case lease := <-granted:
				lease.Release(ctx)
			case <-time.After(ttl / 2):
				t.Fatal("not granted")
			}
		}
	}
	for end := time.Now().Add(15 * time.Second); len(a.PubSubChannels(ctx, "*").Val()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a channel stays subscribed")
		}
	}
}
