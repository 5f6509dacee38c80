package redlock

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

func TestLockAndRelease(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			servers, clients := masters(t, n)
			c := connectURL(t, urlOf(servers), 10*time.Second)
			name, all := newName(t), strings.Repeat("1", n)
			req := newRequest(name)
			before := c.cfg.Now()
			h := mustLock(t, c, req)
			g := h.Grant()
			if g.Sent.Before(before) || c.cfg.Now().Before(g.Sent) || g.TTL != 10*time.Second || g.Err != nil || g.Token == 0 {
				t.Errorf("grant %+v", g)
			}
			eventually(t, patient, "the key on all nodes", func() bool { return standsOn(t, clients, name) == all })
			for _, a := range clients {
				value := a.Get(t.Context(), "lock:"+name).Val()
				fields := strings.SplitN(value, " ", 3)
				if len(fields) != 3 || fields[0] != req.ID || fields[2] != "host:1" {
					t.Errorf("value %q", value)
				}
				if ms, _ := strconv.ParseInt(fields[1], 10, 64); time.Since(time.UnixMilli(ms)).Abs() > time.Minute {
					t.Errorf("value %q: when?", value)
				}
				if ttl := a.PTTL(t.Context(), "lock:"+name).Val(); ttl <= 0 || ttl > 10*time.Second {
					t.Errorf("TTL %v", ttl)
				}
				if ttl := a.PTTL(t.Context(), "{lock:"+name+"}:t").Val(); ttl <= 59*time.Minute || ttl > time.Hour+time.Minute {
					t.Errorf("token's TTL %v", ttl)
				}
			}
			at := 0 // nodes that have the token
			for _, a := range clients {
				if a.Get(t.Context(), "{lock:"+name+"}:t").Val() == strconv.FormatUint(g.Token, 10) {
					at++
				}
			}
			if at < c.quorum {
				t.Errorf("%d nodes have the token", at)
			}

			// A stranger is told how long it may take, and leaves nothing behind.
			_, err := c.TryLock(t.Context(), newRequest(name))
			wantAnswer(t, err, driver.ErrHeld)
			if d := driver.HeldFor(err); d <= 0 || d > 10*time.Second {
				t.Errorf("held for %v", d)
			}
			// The same ID is answered with its token, and the TTL is set anew.
			for _, a := range clients {
				a.PExpire(t.Context(), "lock:"+name, 5*time.Second)
			}
			again := mustLock(t, c, req)
			if again.Grant().Token != g.Token || !g.Sent.Before(again.Grant().Sent) {
				t.Errorf("first %+v, then %+v", g, again.Grant())
			}
			for _, a := range clients {
				eventually(t, patient, "the TTL anew", func() bool { return a.PTTL(t.Context(), "lock:"+name).Val() > 6*time.Second })
			}
			if r := renew(t, c, h); r.Err != nil {
				t.Error(r.Err)
			}
			mustRelease(t, again)
			wantAnswer(t, h.Release(t.Context()), driver.ErrNotHeld)
			wantAnswer(t, renew(t, c, h).Err, driver.ErrNotHeld)
			eventually(t, patient, "no key", func() bool { return !strings.Contains(standsOn(t, clients, name), "1") })

			h2 := lockSoon(t, c, name)
			if h2.Grant().Token <= g.Token {
				t.Errorf("token %d after %d", h2.Grant().Token, g.Token)
			}
			wantAnswer(t, h.Release(t.Context()), driver.ErrNotHeld) // not the second one's
			if err := c.Undo(t.Context(), newRequest(name)); err != nil {
				t.Error(err)
			}
			if r := renew(t, c, h2); r.Err != nil {
				t.Error(r.Err)
			}
			if err := c.Undo(t.Context(), driver.Request{Name: name, ID: h2.id}); err != nil {
				t.Error(err)
			}
			wantAnswer(t, renew(t, c, h2).Err, driver.ErrNotHeld)
		})
	}
}

// OWN-12: a majority of the nodes that are configured, and not of those that answer.
func TestOWN12MajorityOfAll(t *testing.T) {
	servers, clients := masters(t, 5)
	servers[3].Kill(t)
	servers[4].Kill(t)
	c := connectURL(t, urlOf(servers), 10*time.Second)
	name, ctx := newName(t), t.Context()
	clients[0].Set(ctx, "lock:"+name, "somebody else", 0)
	if _, err := c.TryLock(within(t, patient), newRequest(name)); err == nil {
		t.Fatal("granted by 2 of 5")
	}
	eventually(t, patient, "nothing left", func() bool { return standsOn(t, clients[:3], name) == "100" })
	clients[0].Del(ctx, "lock:"+name)
	h := mustLock(t, c, newRequest(name))
	if got := standsOn(t, clients[:3], name); got != "111" {
		t.Errorf("it stands on %s", got)
	}
	if r := renew(t, c, h); r.Err != nil {
		t.Error(r.Err)
	}
	mustRelease(t, h)
	servers[2].Kill(t)
	_, err := c.TryLock(within(t, patient), newRequest(name))
	wantUnknown(t, err, servers[2].Addr)
	eventually(t, patient, "nothing left", func() bool { return standsOn(t, clients[:2], name) == "00" })
}

// TOK-07: any two majorities give tokens that rise, also when counters are lost or far apart.
func TestTOK07TokensRise(t *testing.T) {
	servers, clients := masters(t, 3)
	c := connectURL(t, urlOf(servers), 10*time.Second)
	name, ctx := newName(t), t.Context()
	counter := "{lock:" + name + "}:t"
	last := uint64(0)
	rises := func(after string) {
		t.Helper()
		h := lockSoon(t, c, name)
		if h.token <= last || h.token > math.MaxInt64 {
			t.Errorf("after %s: token %d, before it %d", after, h.token, last)
		}
		last = h.token
		mustRelease(t, h)
	}
	grants := func(after string) {
		t.Helper()
		for range 3 {
			rises(after)
		}
	}
	grants("nothing")
	servers[0].Kill(t)
	grants("stopping node 1")
	servers[0].Start(t) // it has no data
	servers[1].Kill(t)
	grants("starting node 1 empty and stopping node 2")
	servers[1].Start(t)
	servers[2].Kill(t)
	grants("starting node 2 empty and stopping node 3")
	servers[2].Start(t)

	// Clocks that are apart: each majority that takes part has a node with another time.
	for i, ahead := range []time.Duration{time.Hour, 0, -time.Hour} {
		clients[i].Set(ctx, counter, last+uint64(time.Now().Add(ahead).UnixMicro()/1e6), time.Hour)
	}
	for range 3 {
		for i := range servers {
			// Each node in turn is held by somebody else, so that the other two decide.
			clients[i].Set(ctx, "lock:"+name, "somebody else", 0)
			rises("a grant by two nodes without node " + strconv.Itoa(i+1))
			clients[i].Del(ctx, "lock:"+name)
		}
	}

	// A counter far ahead on one node is taken over by the others, and kept until the time has caught up.
	ahead := uint64(time.Now().Add(2 * time.Hour).UnixMicro())
	clients[1].Set(ctx, counter, ahead, 3*time.Hour)
	clients[2].Set(ctx, "lock:"+name, "somebody else", 0)
	rises("a counter ahead")
	if last != ahead+1 {
		t.Errorf("token %d, want %d", last, ahead+1)
	}
	if ttl := clients[0].PTTL(ctx, counter).Val(); ttl < 2*time.Hour {
		t.Errorf("a counter two hours ahead is kept for %v", ttl)
	}
	clients[2].Del(ctx, "lock:"+name)
	clients[1].Set(ctx, "lock:"+name, "somebody else", 0)
	rises("the other majority")
	clients[1].Del(ctx, "lock:"+name)
	for _, garbage := range []func(*goredis.Client){
		func(c *goredis.Client) { c.Set(ctx, counter, "garbage", 0) },
		func(c *goredis.Client) { c.Del(ctx, counter); c.RPush(ctx, counter, "x") },
		func(c *goredis.Client) { c.Del(ctx, counter) },
	} {
		garbage(clients[0])
		rises("one counter is no number")
	}
}

// A grant whose token can't be written to a majority isn't one: two nodes grant with different tokens, and one of them
// loses the key before the write-back.
func TestWriteBackNeedsAMajority(t *testing.T) {
	servers, clients := masters(t, 3)
	p, url := proxies(t, servers)
	c := connectURL(t, url, 10*time.Second)
	name, ctx := newName(t), t.Context()
	mustRelease(t, mustLock(t, c, newRequest("warm")))
	clients[2].Set(ctx, "lock:"+name, "somebody else", 0)
	defer clients[2].Del(ctx, "lock:"+name)
	raising := func(b []byte) bool { return strings.Contains(string(b), raiseScript.hash) }
	held, release := p[0].Hold(1, raising)
	failed := make(chan error, 1)
	go func() {
		_, err := c.TryLock(within(t, patient), newRequest(name))
		failed <- err
	}()
	select {
	case <-held:
	case err := <-failed:
		t.Fatalf("no write-back: %v", err)
	}
	clients[0].Del(ctx, "lock:"+name)
	release()
	wantUnknown(t, <-failed, "token")
	eventually(t, patient, "nothing left", func() bool { return standsOn(t, clients[:2], name) == "00" })
}

// NAME-07 and the answers for entries that aren't ours.
func TestNAME07ForeignKeys(t *testing.T) {
	servers, clients := masters(t, 3)
	c := connectURL(t, urlOf(servers), 10*time.Second)
	ctx := t.Context()
	for what, test := range map[string]struct {
		make func(a *goredis.Client, key string)
		want error
	}{
		"string without TTL": {func(a *goredis.Client, k string) { a.Set(ctx, k, "hello", 0) }, driver.ErrHeld},
		"string with TTL":    {func(a *goredis.Client, k string) { a.Set(ctx, k, "hello", time.Minute) }, driver.ErrHeld},
		"list":               {func(a *goredis.Client, k string) { a.RPush(ctx, k, "hello") }, driver.ErrConflict},
		"hash":               {func(a *goredis.Client, k string) { a.HSet(ctx, k, "a", "b") }, driver.ErrConflict},
	} {
		t.Run(what, func(t *testing.T) {
			name := newName(t)
			key := "lock:" + name
			for _, a := range clients[1:] { // a majority
				test.make(a, key)
				defer a.Del(ctx, key)
			}
			before := clients[1].Dump(ctx, key).Val()
			_, err := c.TryLock(ctx, newRequest(name))
			wantAnswer(t, err, test.want)
			if test.want == driver.ErrConflict && !strings.Contains(err.Error(), servers[1].Addr) {
				t.Errorf("%v doesn't name %s", err, servers[1].Addr)
			}
			if err := c.Undo(ctx, newRequest(name)); err != nil {
				t.Error(err)
			}
			eventually(t, patient, "nothing of ours", func() bool { return standsOn(t, clients, name) == "011" })
			if clients[1].Dump(ctx, key).Val() != before || clients[2].Dump(ctx, key).Val() != before {
				t.Error("the key was altered")
			}
		})
	}
	t.Run("minority", func(t *testing.T) {
		name := newName(t)
		clients[0].RPush(ctx, "lock:"+name, "hello")
		defer clients[0].Del(ctx, "lock:"+name)
		h := mustLock(t, c, newRequest(name))
		if r := renew(t, c, h); r.Err != nil {
			t.Error(r.Err)
		}
		mustRelease(t, h)
		if got := clients[0].LRange(ctx, "lock:"+name, 0, -1).Val(); fmt.Sprint(got) != "[hello]" {
			t.Errorf("the list is %q", got)
		}
	})
}

// A program's own clients, one for each node.
func TestNew(t *testing.T) {
	servers, clients := masters(t, 3)
	var own []goredis.UniversalClient
	for _, c := range clients {
		own = append(own, c)
	}
	prefix := "own:"
	c := connect(t, New(own, &Options{Prefix: &prefix}), 10*time.Second)
	h := mustLock(t, c, newRequest("x"))
	if clients[0].Exists(t.Context(), "own:x").Val()+clients[1].Exists(t.Context(), "own:x").Val()+clients[2].Exists(t.Context(), "own:x").Val() < 2 {
		t.Error("no key own:x")
	}
	if r := renew(t, c, h); r.Err != nil {
		t.Error(r.Err)
	}
	mustRelease(t, h)
	c.Close()
	if err := clients[0].Ping(t.Context()).Err(); err != nil {
		t.Errorf("the program's client was closed: %v", err)
	}
	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{servers[0].Addr}})
	defer cluster.Close()
	for what, list := range map[string][]goredis.UniversalClient{
		"none":    nil,
		"two":     own[:2],
		"same":    {own[0], own[1], own[1]},
		"nil":     {own[0], own[1], nil},
		"typed":   {own[0], own[1], (*goredis.Client)(nil)},
		"cluster": {own[0], own[1], cluster},
	} {
		_, err := New(list, nil).Connect(t.Context(), config(time.Second))
		if wantAnswer(t, err, driver.ErrConfig); !strings.Contains(err.Error(), "redlock") {
			t.Errorf("%s: %v", what, err)
		}
	}
	var again []goredis.UniversalClient // two clients for one server
	for range 3 {
		again = append(again, goredis.NewClient(&goredis.Options{Addr: servers[0].Addr}))
		defer again[len(again)-1].Close()
	}
	_, err := New(again, nil).Connect(t.Context(), config(time.Second))
	wantAnswer(t, err, driver.ErrConfig)
}
