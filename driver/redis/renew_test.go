package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// EXP-09: a renewal sets the TTL to exactly what was asked for.
func TestEXP09RenewalSetsTTL(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	const ttl = 3 * time.Second
	c := connectURL(t, s.URL("redis"), ttl)
	name := newName(t)
	h := mustLock(t, c, newRequest(name))
	for range 50 {
		before := c.cfg.Now()
		r := renew(t, c, h)
		if r.Err != nil || r.TTL != ttl || r.Sent.Before(before) || c.cfg.Now().Before(r.Sent) {
			t.Fatalf("renewal %+v", r)
		}
		if left := a.PTTL(t.Context(), "lock:"+name).Val(); left > ttl || left <= 0 {
			t.Fatalf("TTL %v", left)
		}
	}
	a.PExpire(t.Context(), "lock:"+name, time.Minute)
	if r := renew(t, c, h); r.Err != nil {
		t.Fatal(r.Err)
	}
	if left := a.PTTL(t.Context(), "lock:"+name).Val(); left > ttl || left <= 0 {
		t.Errorf("TTL %v", left)
	}
	if h.Grant().Sent != h.sent || h.Grant().TTL != ttl {
		t.Error("the grant changed")
	}
	mustRelease(t, h)
}

// pipelined makes the driver renew key by key, as on a cluster.
type pipelined struct{ goredis.UniversalClient }

// Hundreds of holds, some of them gone, replaced or spoilt; each is reported once. OWN-06: what is gone is an answer.
func TestOWN06RenewMany(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	ctx := t.Context()
	for what, connector := range map[string]driver.Connector{
		"one script":  New(a, nil),
		"pipeline":    New(pipelined{a}, nil),
		"connections": must(driver.Parse(s.URL("redis"))),
	} {
		t.Run(what, func(t *testing.T) {
			c := connect(t, connector, 20*time.Second)
			var holds []driver.Hold
			want := map[int]error{}
			const count = 3*chunk + 7
			for i := range count {
				name := newName(t)
				h := mustLock(t, c, newRequest(name))
				holds = append(holds, h)
				switch i % 10 {
				case 1:
					a.Del(ctx, h.key)
					want[i] = driver.ErrNotHeld
				case 2:
					a.Set(ctx, h.key, newID()+h.value[32:], time.Minute)
					want[i] = driver.ErrNotHeld
				case 3:
					a.Del(ctx, h.key)
					a.RPush(ctx, h.key, h.value)
					want[i] = driver.ErrNotHeld
				}
				defer a.Del(context.WithoutCancel(ctx), h.key)
			}
			for _, flush := range []bool{false, true} {
				if flush {
					a.ScriptFlush(ctx)
				}
				var mu sync.Mutex
				reported := map[int]int{}
				c.Renew(within(t, patient), holds, func(i int, r driver.Renewal) {
					mu.Lock()
					defer mu.Unlock()
					reported[i]++
					if want[i] == nil && r.Err != nil || want[i] != nil && !errors.Is(r.Err, want[i]) {
						t.Errorf("hold %d: %v", i, r.Err)
					}
				})
				for i := range count {
					if reported[i] != 1 {
						t.Errorf("hold %d was reported %d times", i, reported[i])
					}
				}
			}
			for i, h := range holds {
				if err := h.Release(ctx); !errors.Is(err, want[i]) {
					t.Errorf("release of %d: %v", i, err)
				}
				if want[i] != nil && i%10 != 1 && a.Exists(ctx, h.(*hold).key).Val() != 1 {
					t.Errorf("release of %d removed a stranger's key", i)
				}
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A key that may not be renewed any more keeps no other one from it.
func TestRenewOneDenied(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	allow := func(patterns ...any) {
		args := append([]any{"ACL", "SETUSER", "app", "reset", "on", ">pw", "+@all", "&*"}, patterns...)
		if err := a.Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	allow("~*")
	c := connectURL(t, "redis://app:pw@"+s.Addr, 30*time.Second)
	good, bad := mustLock(t, c, newRequest("good")), mustLock(t, c, newRequest("bad"))
	allow("~lock:good", "~{lock:good}*")
	a.ClientKillByFilter(ctx, "USER", "app")
	var results [2]driver.Renewal
	eventually(t, patient, "an answer over a new connection", func() bool {
		c.Renew(within(t, patient), []driver.Hold{bad, good}, func(i int, r driver.Renewal) { results[i] = r })
		return driver.IsAnswer(results[0].Err)
	})
	wantAnswer(t, results[0].Err, driver.ErrDenied)
	if results[1].Err != nil {
		t.Error(results[1].Err)
	}
}

// A chunk whose reply doesn't come delays no other one, and is reported when the context ends.
func TestRenewHungChunk(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	p := through(t, s)
	c := connectURL(t, "redis://"+p.Addr(), time.Minute)
	var holds []driver.Hold
	for range 5 * chunk {
		holds = append(holds, mustLock(t, c, newRequest(newName(t))))
	}
	held, letGo := p.Hold(1, hasScript(renewScript))
	defer letGo()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	var mu sync.Mutex
	results := map[int]error{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Renew(ctx, holds, func(i int, r driver.Renewal) {
			mu.Lock()
			defer mu.Unlock()
			if _, twice := results[i]; twice {
				t.Errorf("hold %d is reported twice", i)
			}
			results[i] = r.Err
		})
	}()
	<-held
	eventually(t, patient/2, "all other chunks", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(results) == len(holds)-chunk
	})
	for i, err := range results {
		if err != nil {
			t.Errorf("hold %d: %v", i, err)
		}
	}
	cancel()
	select {
	case <-done:
	case <-time.After(patient):
		t.Fatal("Renew doesn't return when its context has ended")
	}
	if len(results) != len(holds) {
		t.Fatalf("%d of %d reported", len(results), len(holds))
	}
	unknown := 0
	for _, err := range results {
		if err != nil {
			unknown++
			if !errors.Is(err, context.Canceled) || driver.IsAnswer(err) {
				t.Fatal(err)
			}
		}
	}
	if unknown != chunk {
		t.Errorf("%d unknown", unknown)
	}
}

// RECON-01: the server may forget its scripts at any moment (trap 10).
func TestRECON01ScriptFlush(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	ctx := t.Context()
	for what, connector := range map[string]driver.Connector{
		"connections": must(driver.Parse(s.URL("redis"))),
		"client":      New(a, nil),
		"pipeline":    New(pipelined{a}, nil),
	} {
		t.Run(what, func(t *testing.T) {
			a.ScriptFlush(ctx)
			c := connect(t, connector, 20*time.Second)
			for range 50 {
				a.ScriptFlush(ctx)
				name := newName(t)
				req := newRequest(name)
				h := mustLock(t, c, req)
				a.ScriptFlush(ctx)
				if r := renew(t, c, h); r.Err != nil {
					t.Fatal(r.Err)
				}
				a.ScriptFlush(ctx)
				mustRelease(t, h)
				mustLock(t, c, req)
				a.ScriptFlush(ctx)
				if err := c.Undo(ctx, req); err != nil {
					t.Fatal(err)
				}
				if a.Exists(ctx, h.key).Val() != 0 {
					t.Fatal("the key is still there")
				}
			}
		})
	}
}

func BenchmarkRenew(b *testing.B) {
	s := testserver.Need(b, testserver.Redis)
	a := admin(b, s)
	for what, connector := range map[string]driver.Connector{"one script": must(driver.Parse(s.URL("redis"))), "pipeline": New(pipelined{a}, nil)} {
		for _, count := range []int{1, 1000} {
			b.Run(fmt.Sprint(what, count), func(b *testing.B) {
				c := connect(b, connector, time.Minute)
				var holds []driver.Hold
				for range count {
					holds = append(holds, mustLock(b, c, newRequest(newName(b))))
				}
				for b.Loop() {
					c.Renew(b.Context(), holds, func(_ int, r driver.Renewal) {
						if r.Err != nil {
							b.Error(r.Err)
						}
					})
				}
			})
		}
	}
}
