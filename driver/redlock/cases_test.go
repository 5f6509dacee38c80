package redlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// taking matches requests that try to take a lock.
func taking(b []byte) bool { return strings.Contains(string(b), takeScript.hash) }

// WAIT-05: a failed attempt is undone on every node where it may have succeeded, also where the reply never comes.
func TestWAIT05UndoneEverywhere(t *testing.T) {
	servers, clients := masters(t, 3)
	p, url := proxies(t, servers)
	c := connectURL(t, url, 30*time.Second)
	mustRelease(t, mustLock(t, c, newRequest("warm")))
	name := newName(t)
	clients[1].Set(t.Context(), "lock:"+name, "somebody else", 0)
	defer clients[1].Del(t.Context(), "lock:"+name)
	dropped := p[2].DropReply(1, taking, proxy.ThenSilence)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if h, err := c.TryLock(ctx, newRequest(name)); err == nil {
		t.Fatalf("granted: %+v", h.Grant())
	}
	<-dropped
	eventually(t, patient, "only the other's key", func() bool { return standsOn(t, clients, name) == "010" })
}

// A request that arrives after the attempt was given up, or the lock released, is followed by a removal.
func TestLateRequests(t *testing.T) {
	servers, clients := masters(t, 3)
	p, url := proxies(t, servers)
	c := connectURL(t, url, 30*time.Second)
	mustRelease(t, mustLock(t, c, newRequest("warm")))
	t.Run("given up", func(t *testing.T) {
		name := newName(t)
		clients[1].Set(t.Context(), "lock:"+name, "somebody else", 0)
		defer clients[1].Del(t.Context(), "lock:"+name)
		held, release := p[2].Hold(1, taking)
		_, err := c.TryLock(within(t, patient), newRequest(name))
		if err == nil {
			t.Fatal("granted by one of three")
		}
		<-held
		eventually(t, patient, "undone where it was granted", func() bool { return standsOn(t, clients, name) == "010" })
		release()
		settled(t, c, 0)
		if got := standsOn(t, clients, name); got != "010" {
			t.Errorf("the key stands on %s", got)
		}
	})
	t.Run("released", func(t *testing.T) {
		name := newName(t)
		held, release := p[2].Hold(1, taking)
		h := mustLock(t, c, newRequest(name))
		<-held
		mustRelease(t, h)
		release()
		settled(t, c, 0)
		eventually(t, patient, "no key", func() bool { return standsOn(t, clients, name) == "000" })
	})
}

// Close doesn't cut short a release that a slower node has still to carry out.
func TestCloseFinishesReleases(t *testing.T) {
	servers, clients := masters(t, 3)
	p, url := proxies(t, servers)
	c := connectURL(t, url, 60*time.Second)
	name := newName(t)
	h := mustLock(t, c, newRequest(name))
	eventually(t, patient, "the key on all nodes", func() bool { return standsOn(t, clients, name) == "111" })
	settled(t, c, 0)
	p[2].Delay(func() time.Duration { return 50 * time.Millisecond })
	mustRelease(t, h)
	c.Close()
	eventually(t, patient, "no key", func() bool { return standsOn(t, clients, name) == "000" })
}

// settled waits until no more than n goroutines of the connection are under way.
func settled(t testing.TB, c *conn, n int) {
	t.Helper()
	eventually(t, patient, "an end of what is done in the background", func() bool {
		busy := 0
		for _, node := range c.nodes {
			for _, turns := range node.turns {
				busy += len(turns)
			}
		}
		return busy <= n
	})
}

// CFG-10: a node that is silent delays nobody, and costs no more with each round.
func TestCFG10SilentMinority(t *testing.T) {
	servers, _ := masters(t, 3)
	p, url := proxies(t, servers)
	const ttl = 10 * time.Second
	c := connectURL(t, url, ttl)
	mustRelease(t, mustLock(t, c, newRequest("warm")))
	p[1].BlackHole()
	round := func() (longest time.Duration) {
		step := func(f func()) {
			began := time.Now()
			f()
			longest = max(longest, time.Since(began))
		}
		var h *hold
		step(func() { h = lockSoon(t, c, newName(t)) })
		step(func() {
			if r := renew(t, c, h); r.Err != nil {
				t.Error(r.Err)
			}
		})
		step(func() { mustRelease(t, h) })
		return longest
	}
	var longest time.Duration
	for range 20 {
		longest = max(longest, round())
	}
	if longest > ttl/4 {
		t.Errorf("a step took %v", longest)
	}
	t.Logf("longest step: %v", longest)
	for range 100 { // until all that may wait for the silent node does
		round()
	}
	before := runtime.NumGoroutine()
	for range 300 {
		round()
	}
	if after := runtime.NumGoroutine(); after > before+50 {
		t.Errorf("%d goroutines after 100 rounds, %d after 300 more", before, after)
	}
	if conns := p[1].Conns(); conns > 100 {
		t.Errorf("%d connections to the silent node", conns)
	}
	if err := p[1].Heal(); err != nil {
		t.Fatal(err)
	}
	settled(t, c, 0)
}

// RECON-06: one host that can't be resolved and one port where nobody listens are a minority of five.
func TestRECON06UnresolvableNode(t *testing.T) {
	servers, _ := masters(t, 3)
	for _, url := range []string{
		"redlock://does-not-exist.invalid," + servers[0].Addr + "," + servers[1].Addr,
		"redlock://does-not-exist.invalid,127.0.0.1:1," + strings.TrimPrefix(urlOf(servers), "redlock://"),
	} {
		l := open(t, url, 5*time.Second)
		lease, err := l.Acquire(within(t, patient), newName(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	l := open(t, "redlock://does-not-exist.invalid,127.0.0.1:1,"+servers[0].Addr, 5*time.Second)
	_, err := l.TryAcquire(within(t, patient), newName(t))
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "does-not-exist.invalid") {
		t.Errorf("%v", err)
	}
}

// A lease lives through whatever happens to a minority, and the minority gets its key back.
func TestMinorityFaults(t *testing.T) {
	servers, clients := masters(t, 3)
	l := open(t, urlOf(servers), 3*time.Second)
	name := newName(t)
	lease, err := l.Acquire(within(t, patient), name)
	if err != nil {
		t.Fatal(err)
	}
	token := lease.Token()
	ctx := t.Context()
	for i, fault := range []struct {
		what     string
		do, undo func()
	}{
		{"killed and started empty", func() { servers[0].Kill(t) }, func() { servers[0].Start(t) }},
		{"paused", func() { servers[1].Pause(t) }, func() { servers[1].Resume(t) }},
		{"wiped", func() { clients[2].FlushAll(ctx) }, func() {}},
		{"read-only", func() { clients[0].Do(ctx, "REPLICAOF", "127.0.0.1", "1") }, func() { clients[0].Do(ctx, "REPLICAOF", "NO", "ONE") }},
		{"without scripts", func() { clients[1].ScriptFlush(ctx) }, func() {}},
	} {
		fault.do()
		deadline := time.Now().Add(2 * lease.TTL())
		for time.Now().Before(deadline) {
			if lease.Context().Err() != nil {
				t.Fatalf("%s: %v", fault.what, context.Cause(lease.Context()))
			}
			time.Sleep(20 * time.Millisecond)
		}
		fault.undo()
		eventually(t, patient, "the key back on all nodes, after node "+fmt.Sprint(i)+" was "+fault.what, func() bool { return standsOn(t, clients, name) == "111" })
		if lease.Token() != token {
			t.Errorf("token %d, then %d", token, lease.Token())
		}
	}
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	eventually(t, patient, "no key", func() bool { return standsOn(t, clients, name) == "000" })
	next, err := l.Acquire(within(t, patient), name)
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= token {
		t.Errorf("token %d after %d", next.Token(), token)
	}
}

// A majority that fails is unavailable; a majority that is back is enough.
func TestMajorityAway(t *testing.T) {
	servers, _ := masters(t, 3)
	servers[0].Kill(t)
	servers[1].Kill(t)
	l := open(t, urlOf(servers), 5*time.Second)
	name := newName(t)
	if _, err := l.TryAcquire(within(t, patient), name); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := l.Acquire(within(t, 2*patient), name)
		got <- err
	}()
	servers[1].Start(t)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Server errors that pass are unavailable, and name the node; those that don't are answers. RECON-11, CFG-08.
func TestServerErrors(t *testing.T) {
	servers, clients := masters(t, 3)
	ctx := t.Context()
	each := func(f func(a *goredis.Client)) {
		for _, a := range clients[1:] { // a majority
			f(a)
		}
	}
	acl := func(rules ...any) {
		each(func(a *goredis.Client) {
			if err := a.Do(ctx, append([]any{"ACL", "SETUSER", "app"}, rules...)...).Err(); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, a := range clients {
		a.Do(ctx, "ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all")
		defer a.Do(ctx, "ACL", "DELUSER", "app")
	}
	url := "redlock://app:secret@" + strings.TrimPrefix(urlOf(servers), "redlock://")
	for _, test := range []struct {
		what     string
		do, undo func()
		want     error // nil: an unknown
		text     string
		renewal  bool // it fails as well
	}{
		{"OOM", func() { each(func(a *goredis.Client) { a.ConfigSet(ctx, "maxmemory", "1") }) },
			func() { each(func(a *goredis.Client) { a.ConfigSet(ctx, "maxmemory", "0") }) }, nil, "OOM", false},
		{"READONLY", func() { each(func(a *goredis.Client) { a.Do(ctx, "REPLICAOF", "127.0.0.1", "1") }) },
			func() { each(func(a *goredis.Client) { a.Do(ctx, "REPLICAOF", "NO", "ONE") }) }, nil, "READONLY", true},
		{"MISCONF", func() { misconfigure(t, servers[1:], clients[1:]) }, func() {
			each(func(a *goredis.Client) { a.ConfigSet(ctx, "save", "") })
		}, nil, "MISCONF", true},
		{"NOPERM", func() { acl("-set") }, func() { acl("+@all") }, driver.ErrDenied, "set", false},
		{"NOPERM for the key", func() { acl("resetkeys", "~other") }, func() { acl("~*") }, driver.ErrDenied, "keys", true},
	} {
		t.Run(test.what, func(t *testing.T) {
			c := connectURL(t, url, 10*time.Second)
			name, held := newName(t), newName(t)
			h := mustLock(t, c, newRequest(held))
			test.do()
			undone := false
			undo := func() {
				if !undone {
					undone = true
					test.undo()
				}
			}
			defer undo()
			_, err := c.TryLock(within(t, patient), newRequest(name))
			if test.want != nil {
				wantAnswer(t, err, test.want)
			} else {
				wantUnknown(t, err, test.text)
			}
			if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(test.text)) || !strings.Contains(err.Error(), servers[1].Addr) {
				t.Errorf("%v says neither %s nor %s", err, test.text, servers[1].Addr)
			}
			r := renew(t, c, h)
			if errors.Is(r.Err, driver.ErrNotHeld) || (r.Err != nil) != test.renewal {
				t.Errorf("renewal: %v", r.Err)
			}
			undo()
			eventually(t, patient, "nothing left", func() bool { return standsOn(t, clients, name) == "000" })
			mustRelease(t, lockSoon(t, c, name))
			if r := renew(t, c, h); r.Err != nil {
				t.Errorf("renewal afterwards: %v", r.Err)
			}
			mustRelease(t, h)
		})
	}
	t.Run("NOAUTH", func(t *testing.T) {
		each(func(a *goredis.Client) { a.ConfigSet(ctx, "requirepass", "secret") })
		defer each(func(a *goredis.Client) { a.ConfigSet(ctx, "requirepass", "") })
		d, _ := driver.Parse(urlOf(servers))
		_, err := d.Connect(ctx, config(time.Second))
		if wantAnswer(t, err, driver.ErrDenied); !strings.Contains(err.Error(), servers[1].Addr) {
			t.Errorf("%v", err)
		}
		d, _ = driver.Parse("redlock://:wrong@" + strings.TrimPrefix(urlOf(servers), "redlock://"))
		_, err = d.Connect(ctx, config(time.Second))
		if wantAnswer(t, err, driver.ErrDenied); strings.Contains(err.Error(), "wrong") {
			t.Errorf("%v", err)
		}
	})
}

// misconfigure makes servers unable to save.
func misconfigure(t *testing.T, servers []*testserver.Server, clients []*goredis.Client) {
	t.Helper()
	ctx := t.Context()
	for i, a := range clients {
		file := a.ConfigGet(ctx, "dir").Val()["dir"] + "/" + a.ConfigGet(ctx, "dbfilename").Val()["dbfilename"]
		if out, err := servers[i].Exec(ctx, "sh", "-c", "rm -f "+file+"; mkdir -p "+file+"/x"); err != nil {
			t.Fatal(out, err)
		}
		t.Cleanup(func() { servers[i].Exec(context.Background(), "rm", "-rf", file) })
		a.ConfigSet(ctx, "save", "3600 1")
		a.BgSave(ctx)
		eventually(t, patient, "a failed save", func() bool {
			return strings.Contains(a.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:err")
		})
	}
}

// Nodes that aren't masters of their own are refused: at Open where they answer, else at Acquire.
func TestUnfitNodes(t *testing.T) {
	servers, clients := masters(t, 3)
	ctx := t.Context()
	refused := func(t *testing.T, url, text string) {
		t.Helper()
		if l, err := locker.Open(ctx, url, nil); !errors.Is(err, locker.ErrConfig) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %s", err, text)
			if l != nil {
				l.Close()
			}
		}
	}
	a, b, rest := servers[0].Addr, servers[1].Addr, servers[2].Addr
	twice := strings.Replace(a, "127.0.0.1", "localhost", 1)
	t.Run("the same server twice", func(t *testing.T) { refused(t, "redlock://"+a+","+twice+","+b, "same server") })
	t.Run("replica", func(t *testing.T) {
		clients[2].Do(ctx, "REPLICAOF", "127.0.0.1", "1")
		defer clients[2].Do(ctx, "REPLICAOF", "NO", "ONE")
		refused(t, urlOf(servers), rest+" is a replica")
	})
	t.Run("at the first attempt", func(t *testing.T) {
		p, err := proxy.New(a) // so that one server has two addresses, of which one doesn't answer yet
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.Refuse()
		l := open(t, "redlock://"+a+","+b+","+p.Addr(), 5*time.Second)
		lease, err := l.TryAcquire(within(t, patient), newName(t))
		if err != nil {
			t.Fatal(err)
		}
		lease.Release(ctx)
		p.Heal()
		eventually(t, patient, "a refusal", func() bool {
			lease, err := l.TryAcquire(within(t, patient), newName(t))
			if err == nil {
				lease.Release(ctx)
			}
			return errors.Is(err, locker.ErrConfig) && strings.Contains(err.Error(), "same server")
		})
	})
	t.Run("cluster", func(t *testing.T) {
		s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--cluster-enabled", "yes"}})
		refused(t, "redlock://"+a+","+b+","+s.Addr, s.Addr+" is a node of a cluster")
	})
}

// WAIT-18: clients that start together share the votes, and one of them wins soon.
func TestWAIT18SplitVotes(t *testing.T) {
	servers, _ := masters(t, 5)
	const ttl = 10 * time.Second
	var lockers []locker.Locker
	for range 5 {
		lockers = append(lockers, open(t, urlOf(servers), ttl))
	}
	for range 5 {
		name := newName(t)
		start := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		var first time.Duration
		var last locker.Token
		for _, l := range lockers {
			wg.Go(func() {
				<-start
				began := time.Now()
				lease, err := l.Acquire(within(t, 3*patient), name)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if first == 0 {
					first = time.Since(began)
				}
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				mu.Unlock()
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		if first > ttl {
			t.Errorf("the first grant took %v", first)
		}
		t.Logf("the first grant took %v", first)
	}
}

// A waiter is woken by the release and doesn't wait for its next look; one node may be silent.
func TestHints(t *testing.T) {
	servers, _ := masters(t, 3)
	p, url := proxies(t, servers)
	holder, c := connectURL(t, urlOf(servers), 30*time.Second), connectURL(t, url, 30*time.Second)
	for _, silent := range []bool{false, true} {
		if silent {
			p[0].BlackHole()
		}
		name := newName(t)
		h := mustLock(t, holder, newRequest(name))
		hints, stop, err := c.Watch(within(t, patient), name)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
			t.Error("a hint without a release")
		case <-time.After(3 * together):
		}
		mustRelease(t, h)
		select {
		case _, ok := <-hints:
			if !ok {
				t.Error("the subscription broke")
			}
		case <-time.After(patient):
			t.Error("no hint")
		}
		stop()
	}
	eventually(t, patient, "no subscription", func() bool {
		for _, s := range c.hints {
			s.mu.Lock()
			running := s.running
			s.mu.Unlock()
			if running && s.node.index != 0 {
				return false
			}
		}
		return true
	})
}
