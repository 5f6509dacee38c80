package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestTryLock(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c, other := admin(t, s), connect(t, url(s, prefix), 10*time.Second), connect(t, url(s, prefix), 10*time.Second)

	req := request("nightly")
	h := tryLock(t, c, req)
	resp, err := a.Get(t.Context(), prefix+"/nightly/"+req.ID)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("the documented key isn't there: %v, %v", resp, err)
	}
	kv := resp.Kvs[0]
	if g := h.Grant(); g.Token != uint64(kv.CreateRevision) || g.TTL != 10*time.Second || g.Err != nil {
		t.Errorf("Grant() = %+v, create revision %d", g, kv.CreateRevision)
	}
	if kv.Lease == 0 {
		t.Error("the entry belongs to no lease")
	}
	if f := strings.Fields(string(kv.Value)); len(f) != 3 || f[0] != req.ID || f[2] != "test" {
		t.Errorf("value %q", kv.Value)
	}
	wantHeld(t, other, request("nightly"))
	wantHeld(t, c, request("nightly")) // the same session, another identity
	if n := len(keys(t, a, prefix)); n != 1 {
		t.Errorf("%d keys after two attempts that failed", n)
	}
	again := tryLock(t, c, req)
	if again.Grant().Token != h.Grant().Token {
		t.Errorf("the same ID got the tokens %d and %d", h.Grant().Token, again.Grant().Token)
	}
	release(t, h)
	if err := again.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("a second release: %v", err)
	}
	next := tryLock(t, other, request("nightly"))
	if next.Grant().Token <= h.Grant().Token {
		t.Errorf("token %d after %d", next.Grant().Token, h.Grant().Token)
	}
	release(t, next)
	if k := keys(t, a, prefix); len(k) != 0 {
		t.Errorf("left behind: %v", k)
	}
}

func TestRequestsPerCycle(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	p := newProxy(t, s.Addr)
	c := connect(t, "etcd://"+p.Addr+unique(), time.Minute)
	release(t, tryLock(t, c, request("warm")))
	before := p.calls.Load()
	for i := range 10 {
		release(t, tryLock(t, c, request(fmt.Sprint("n", i))))
	}
	if n := p.calls.Load() - before; n != 20 {
		t.Errorf("10 cycles took %d requests, want 20", n)
	}
}

func TestTTLIsRoundedUpAndReported(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	a := admin(t, s)
	for _, c := range []struct{ asked, want time.Duration }{
		{100 * time.Millisecond, time.Second}, {time.Second, time.Second}, {1500 * time.Millisecond, 2 * time.Second}, {2900 * time.Millisecond, 3 * time.Second},
	} {
		h := tryLock(t, connect(t, url(s, unique()), c.asked), request("x"))
		resp, err := a.TimeToLive(t.Context(), h.session.id)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Grant().TTL; got != c.want || resp.GrantedTTL != int64(c.want/time.Second) {
			t.Errorf("TTL %v: granted %v, the server says %d s; want %v", c.asked, got, resp.GrantedTTL, c.want)
		}
	}
	// A server raises the TTL to 1.5 election timeouts: here 3 s.
	slow := testserver.Private(t, testserver.Etcd, &testserver.Options{Args: []string{"--election-timeout=2000"}})
	if got := tryLock(t, connect(t, url(slow, unique()), time.Second), request("x")).Grant().TTL; got != 3*time.Second {
		t.Errorf("the server's minimum was reported as %v", got)
	}
}

func TestNAME01NoNameIsInTheWayOfAnother(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	c := connect(t, url(s, unique()), 10*time.Second)
	for _, name := range []string{"a/b", "a", "a/", "a/b/c", "ab", "a.b", "a%2Fb", "a%", "/", "//", "%token-offset", ".", "..", " ", "\x00", "\x7f", "\u0085", "\ud7ff", "😀", "zookeeper", strings.Repeat("ü/", 170), "a\nb", "a+b", "a?b#c"} {
		tryLock(t, c, request(name))
	}
}

func TestNAME07ForeignKeys(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), 10*time.Second)
	put := func(key string) {
		t.Helper()
		if _, err := a.Put(t.Context(), key, "precious"); err != nil {
			t.Fatal(err)
		}
	}
	untouched := func(key string) {
		t.Helper()
		if resp, err := a.Get(t.Context(), key); err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "precious" || resp.Kvs[0].Version != 1 {
			t.Errorf("%s: %v, %v", key, resp, err)
		}
	}
	put(prefix + "/x")
	release(t, tryLock(t, c, request("x"))) // beside the folder: no conflict
	untouched(prefix + "/x")

	put(prefix + "/x/1")
	if _, err := c.TryLock(t.Context(), request("x")); !errors.Is(err, driver.ErrConflict) || !strings.Contains(err.Error(), prefix+"/x/1") {
		t.Errorf("TryLock: %v", err)
	}
	if _, err := c.Lock(t.Context(), request("x")); !errors.Is(err, driver.ErrConflict) {
		t.Errorf("Lock: %v", err)
	}
	untouched(prefix + "/x/1")
	put(prefix + "/%token-offset")
	req := request("y")
	if _, err := c.TryLock(t.Context(), req); !errors.Is(err, driver.ErrConflict) || !strings.Contains(err.Error(), "%token-offset") {
		t.Errorf("TryLock with a foreign offset: %v", err)
	}
	untouched(prefix + "/%token-offset")
	want := []string{prefix + "/%token-offset", prefix + "/x", prefix + "/x/1"}
	if k := keys(t, a, prefix); !slices.Equal(k, want) {
		t.Errorf("keys %q, want %q", k, want)
	}
}

func TestWAIT03LostReply(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, p := admin(t, s), newProxy(t, s.Addr)
	c := connect(t, "etcd://"+p.Addr+prefix, time.Minute)
	release(t, tryLock(t, c, request("warm")))

	req := request("x")
	lose := func() {
		t.Helper()
		p.down.close()
		ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer stop()
		if _, err := c.TryLock(ctx, req); err == nil || driver.IsAnswer(err) {
			t.Fatalf("TryLock without a reply: %v", err)
		}
		p.cut()
		p.down.open()
		eventually(t, "the entry whose reply was lost", func() bool { return len(keys(t, a, prefix)) == 1 })
	}
	lose()
	h := tryLock(t, c, req)
	if resp, err := a.Get(t.Context(), h.key); err != nil || h.Grant().Token != uint64(resp.Kvs[0].CreateRevision) {
		t.Errorf("token %d, entry %v, %v", h.Grant().Token, resp, err)
	}
	release(t, h)

	req = request("x")
	lose()
	if err := c.Undo(within(t, patience), req); err != nil {
		t.Fatal(err)
	}
	if k := keys(t, a, prefix); len(k) != 0 {
		t.Errorf("left behind: %v", k)
	}
	release(t, tryLock(t, c, request("x")))
}

func TestWAIT01CancelledAtAnyMoment(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), time.Minute)
	for i := range 200 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		req := request("x")
		h, err := c.TryLock(ctx, req)
		stop()
		if err == nil {
			release(t, h)
		} else if err := c.Undo(within(t, patience), req); err != nil {
			t.Fatal(err)
		}
		if k := keys(t, a, prefix); len(k) != 0 {
			t.Fatalf("after %d: left behind: %v", i, k)
		}
	}
	if n := len(c.sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// A request that is stuck on its way to one member arrives after Undo has deleted its entry through another.
func TestUndoOfARequestThatArrivesLater(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprintf("alone=%v", alone), func(t *testing.T) {
			s := testserver.Need(t, testserver.Etcd)
			prefix := unique()
			a, slow, fast := admin(t, s), newProxy(t, s.Addr), newProxy(t, s.Addr)
			c := connect(t, "etcd://"+slow.Addr+","+fast.Addr+prefix, time.Minute)
			for slow.calls.Load() == 0 || fast.calls.Load() == 0 {
				release(t, tryLock(t, c, request("warm")))
			}
			var other *hold
			if !alone {
				other = tryLock(t, c, request("other"))
			}
			slow.up.close()
			var req driver.Request
			for {
				req = request("x")
				ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
				h, err := c.TryLock(ctx, req)
				stop()
				if err != nil {
					break
				}
				for err = errors.New("not asked"); err != nil; { // until it goes through the member that answers
					ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
					err = h.Release(ctx)
					stop()
				}
			}
			eventually(t, "Undo", func() bool {
				ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
				defer stop()
				return c.Undo(ctx, req) == nil
			})
			slow.up.open() // now it arrives
			if alone {
				// Its session is given up: what it creates goes with the session, which Renew ends if Undo couldn't.
				eventually(t, "the name is free", func() bool {
					h, err := c.TryLock(within(t, patience), request("x"))
					if err == nil {
						release(t, h.(*hold))
						return true
					}
					if !errors.Is(err, driver.ErrHeld) {
						t.Fatal(err)
					}
					c.Renew(within(t, patience), nil, func(int, driver.Renewal) {})
					return false
				})
			}
			eventually(t, "Renew finds nothing more", func() bool {
				return c.Renew(within(t, patience), nil, func(int, driver.Renewal) {}) == 0 && len(keys(t, a, prefix+"/x/")) == 0
			})
			release(t, tryLock(t, c, request("x")))
			if !alone {
				if r := renewOnce(t, c, other); r.Err != nil {
					t.Errorf("the other hold: %v", r.Err)
				}
				old := other.session
				if h := tryLock(t, c, request("y")); h.session == old {
					t.Error("a new entry under the session that was given up")
				}
				release(t, other)
				if resp, err := a.TimeToLive(t.Context(), old.id); err != nil || resp.TTL != -1 {
					t.Errorf("the session lives on after its last hold: %v, %v", resp, err)
				}
			}
		})
	}
}

func TestOWN17TheEntryIsGoneOrReplaced(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), 10*time.Second)
	for _, test := range []struct {
		name string
		do   func(h *hold) error
		keep bool // what is there afterwards isn't ours
	}{
		{"deleted", func(h *hold) error { _, err := a.Delete(t.Context(), h.key); return err }, false},
		{"overwritten", func(h *hold) error { _, err := a.Put(t.Context(), h.key, "mine"); return err }, true},
		{"overwritten under the same lease", func(h *hold) error {
			_, err := a.Put(t.Context(), h.key, "mine", clientv3.WithIgnoreLease())
			return err
		}, true},
		{"OWN-06 lease revoked", func(h *hold) error { _, err := a.Revoke(t.Context(), h.session.id); return err }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			lost := make(chan error, 10)
			req, beside := request(test.name), tryLock(t, c, request("beside "+test.name))
			req.Lost = func(err error) { lost <- err }
			h := tryLock(t, c, req)
			if r := renewOnce(t, c, h); r.Err != nil {
				t.Fatal(r.Err)
			}
			c.mu.Lock()
			h.session.sent = h.session.sent.Add(-h.session.ttl / 3) // a third of the TTL later
			c.mu.Unlock()
			if err := test.do(h); err != nil {
				t.Fatal(err)
			}
			if r := renewOnce(t, c, h); !errors.Is(r.Err, driver.ErrNotHeld) {
				t.Errorf("Renew: %v", r.Err)
			}
			revoked := strings.HasPrefix(test.name, "OWN-06")
			if r := renewOnce(t, c, beside); errors.Is(r.Err, driver.ErrNotHeld) != revoked {
				t.Errorf("Renew of the other hold: %v", r.Err)
			}
			if err := h.Release(within(t, patience)); !errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("Release: %v", err)
			}
			if revoked {
				if err := <-lost; !errors.Is(err, driver.ErrNotHeld) {
					t.Errorf("Lost(%v)", err)
				}
				release(t, tryLock(t, c, request(test.name))) // under a new session
			}
			if resp, err := a.Get(t.Context(), h.key); err != nil || (len(resp.Kvs) == 1) != test.keep || test.keep && string(resp.Kvs[0].Value) != "mine" {
				t.Errorf("afterwards: %v, %v", resp, err)
			}
		})
	}
}

// The next acquire finds out that the session is gone before any renewal does.
func TestTryLockUnderALostSession(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	a, c := admin(t, s), connect(t, url(s, unique()), 10*time.Second)
	lost := make(chan error, 1)
	req := request("x")
	req.Lost = func(err error) { lost <- err }
	h := tryLock(t, c, req)
	if _, err := a.Revoke(t.Context(), h.session.id); err != nil {
		t.Fatal(err)
	}
	next := tryLock(t, c, request("y"))
	if next.session == h.session {
		t.Error("the session is still the same")
	}
	if err := <-lost; !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Lost(%v)", err)
	}
	if n := len(c.sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

func TestSentIsTheLastKeepAlive(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	c := connect(t, url(s, unique()), 10*time.Second)
	first := tryLock(t, c, request("x"))
	second := tryLock(t, c, request("y"))
	if d := second.Grant().Sent.Sub(first.Grant().Sent); d != 0 {
		t.Errorf("an acquire moved the session's deadline by %v", d)
	}
	c.mu.Lock()
	c.current.sent = c.current.sent.Add(-6 * time.Second) // as if that much time had passed
	aged := c.current.sent
	c.mu.Unlock()
	third := tryLock(t, c, request("z"))
	if d := third.Grant().Sent.Sub(aged); d < 6*time.Second {
		t.Errorf("the session wasn't renewed though less than half of its TTL was left (%v)", d)
	}
	before := c.cfg.Now()
	c.mu.Lock()
	c.current.sent = c.current.sent.Add(-time.Second)
	c.mu.Unlock()
	r := renewOnce(t, c, first)
	if r.Err != nil || r.Sent.Before(before) || c.cfg.Now().Before(r.Sent) || r.TTL != 10*time.Second {
		t.Errorf("Renew: %+v", r)
	}
}

func TestReleaseWhoseReplyWasLost(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, p := admin(t, s), newProxy(t, s.Addr)
	c := connect(t, "etcd://"+p.Addr+prefix, time.Minute)
	h := tryLock(t, c, request("x"))
	p.down.close()
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if err := h.Release(ctx); err == nil || driver.IsAnswer(err) {
		t.Fatalf("Release without a reply: %v", err)
	}
	eventually(t, "the release is applied", func() bool { return len(keys(t, a, prefix)) == 0 })
	p.cut()
	p.down.open()
	eventually(t, "the release is confirmed", func() bool { // the first attempts may meet the connection that was cut
		err := h.Release(within(t, patience))
		if driver.IsAnswer(err) {
			t.Fatalf("Release: %v", err)
		}
		return err == nil
	})
}

func TestRenewMany(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, p := admin(t, s), newProxy(t, s.Addr)
	c := connect(t, "etcd://"+p.Addr+prefix, time.Minute)
	var holds []driver.Hold
	for i := range 250 {
		holds = append(holds, tryLock(t, c, request(fmt.Sprint(i))))
	}
	for _, i := range []int{0, 99, 100, 249} {
		if _, err := a.Delete(t.Context(), holds[i].(*hold).key); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	c.current.sent = c.current.sent.Add(-20 * time.Second)
	c.mu.Unlock()
	before := p.calls.Load()
	results := make(chan [2]any, len(holds))
	c.Renew(within(t, patience), holds, func(i int, r driver.Renewal) { results <- [2]any{i, r.Err} })
	if n := p.calls.Load() - before; n != 4 {
		t.Errorf("renewing 250 holds took %d requests, want a keep-alive and 3 reads", n)
	}
	close(results)
	n := 0
	for r := range results {
		n++
		err, _ := r[1].(error)
		if i := r[0].(int); errors.Is(err, driver.ErrNotHeld) != slices.Contains([]int{0, 99, 100, 249}, i) || err != nil && !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("hold %d: %v", i, err)
		}
	}
	if n != len(holds) {
		t.Errorf("%d reports for %d holds", n, len(holds))
	}
}
