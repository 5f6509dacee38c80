package redlock

import (
	"strconv"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
)

// A hold is renewed by a majority that still has it; the others get it back, with its token, and don't count this time.
func TestRenewTwoPhases(t *testing.T) {
	servers, clients := masters(t, 3)
	c := connectURL(t, urlOf(servers), 10*time.Second)
	ctx := t.Context()
	name := newName(t)
	key, counter := "lock:"+name, "{lock:"+name+"}:t"
	h := mustLock(t, c, newRequest(name))
	eventually(t, patient, "the key on all nodes", func() bool { return standsOn(t, clients, name) == "111" })

	for i, a := range clients { // each of them may lose everything, one after the other
		a.Del(ctx, key, counter)
		before := c.cfg.Now()
		r := renew(t, c, h)
		if r.Err != nil || r.Sent.Before(before) || r.TTL != 10*time.Second {
			t.Fatalf("node %d lost the key: %+v", i+1, r)
		}
		eventually(t, patient, "the key back", func() bool { return standsOn(t, clients, name) == "111" })
		if got := a.Get(ctx, counter).Val(); got != strconv.FormatUint(h.token, 10) {
			t.Errorf("the counter came back as %q, the token is %d", got, h.token)
		}
		if ttl := a.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 10*time.Second {
			t.Errorf("TTL %v", ttl)
		}
	}

	// A node that is somebody else's is left alone.
	clients[0].Set(ctx, key, "somebody else", time.Minute)
	if r := renew(t, c, h); r.Err != nil {
		t.Fatal(r.Err)
	}
	settled(t, c, 0)
	if got := clients[0].Get(ctx, key).Val(); got != "somebody else" {
		t.Errorf("the other's key is %q", got)
	}

	// Without a majority it is lost, and nothing is created anew.
	clients[1].Del(ctx, key)
	wantAnswer(t, renew(t, c, h).Err, driver.ErrNotHeld)
	settled(t, c, 0)
	if got := standsOn(t, clients, name); got != "101" {
		t.Errorf("the key stands on %s", got)
	}
	wantAnswer(t, h.Release(ctx), driver.ErrNotHeld)
	eventually(t, patient, "only the other's key", func() bool { return standsOn(t, clients, name) == "100" })

	// One answer of each sort isn't a decision.
	other := newName(t)
	h = mustLock(t, c, newRequest(other))
	eventually(t, patient, "the key on all nodes", func() bool { return standsOn(t, clients, other) == "111" })
	clients[1].Del(ctx, "lock:"+other)
	servers[2].Kill(t)
	wantUnknown(t, renew(t, c, h).Err, "1 of 3")
	if got := standsOn(t, clients[:2], other); got != "10" {
		t.Errorf("the key stands on %s", got)
	}
}

// After the release nothing sets the key again, however late it comes.
func TestNoRetakeAfterTheEnd(t *testing.T) {
	servers, clients := masters(t, 3)
	p, url := proxies(t, servers)
	c := connectURL(t, url, 10*time.Second)
	ctx := t.Context()
	mustRelease(t, mustLock(t, c, newRequest("warm")))
	name := newName(t)
	h := mustLock(t, c, newRequest(name))
	eventually(t, patient, "the key on all nodes", func() bool { return standsOn(t, clients, name) == "111" })
	clients[2].Del(ctx, "lock:"+name)
	held, release := p[2].Hold(1, taking)
	if r := renew(t, c, h); r.Err != nil {
		t.Fatal(r.Err)
	}
	<-held // the request that sets the key again
	mustRelease(t, h)
	release()
	settled(t, c, 0)
	eventually(t, patient, "no key", func() bool { return standsOn(t, clients, name) == "000" })
	if err := h.retake(c.nodes[0]); err == nil {
		t.Error("a released lock was taken again")
	}
	// Neither does a lease whose time is over.
	h = mustLock(t, c, newRequest(name))
	h.mu.Lock()
	h.renewed = h.renewed.Add(-11 * time.Second)
	h.mu.Unlock()
	clients[0].Del(ctx, "lock:"+name)
	if err := h.retake(c.nodes[0]); err == nil || standsOn(t, clients[:1], name) != "0" {
		t.Error("a lease was taken again after its deadline")
	}
}

// Many holds are renewed in chunks, and a node that has lost all of them gets all of them back.
func TestRenewMany(t *testing.T) {
	servers, clients := masters(t, 3)
	c := connectURL(t, urlOf(servers), 30*time.Second)
	var holds []driver.Hold
	for range 3*chunk + 7 {
		holds = append(holds, mustLock(t, c, newRequest(newName(t))))
	}
	settled(t, c, 0)
	clients[1].FlushAll(t.Context())
	clients[0].Del(t.Context(), holds[5].(*hold).key)
	seen := make([]int, len(holds))
	c.Renew(within(t, patient), holds, func(i int, r driver.Renewal) {
		seen[i]++
		if lost := i == 5; lost != (r.Err != nil) {
			t.Errorf("hold %d: %v", i, r.Err)
		}
	})
	for i, n := range seen {
		if n != 1 {
			t.Errorf("hold %d was reported %d times", i, n)
		}
	}
	eventually(t, patient, "the keys back", func() bool {
		keys, _ := clients[1].Keys(t.Context(), "lock:*").Result()
		return len(keys) == len(holds)-1
	})
}
