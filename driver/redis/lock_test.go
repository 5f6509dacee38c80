package redis

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestLockAndRelease(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	c := connectURL(t, s.URL("redis"), 10*time.Second)
	name := newName(t)
	req := newRequest(name)
	before := c.cfg.Now()
	h := mustLock(t, c, req)
	g := h.Grant()
	if g.Sent.Before(before) || c.cfg.Now().Before(g.Sent) || g.TTL != 10*time.Second || g.Err != nil {
		t.Errorf("grant %+v", g)
	}
	if us := time.Now().UnixMicro(); g.Token < uint64(us-60e6) || g.Token > uint64(us+60e6) {
		t.Errorf("token %d isn't the server's time in µs", g.Token)
	}

	// The entry is one string, with the TTL of the lock; the token expires too.
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
	if ttl := a.PTTL(t.Context(), "{lock:"+name+"}:t").Val(); ttl <= 59*time.Minute || ttl > time.Hour {
		t.Errorf("token's TTL %v", ttl)
	}
	if token := a.Get(t.Context(), "{lock:"+name+"}:t").Val(); token != strconv.FormatUint(g.Token, 10) {
		t.Errorf("stored token %s, granted %d", token, g.Token)
	}

	// A stranger is told how long it may take.
	_, err := c.TryLock(t.Context(), newRequest(name))
	wantAnswer(t, err, driver.ErrHeld)
	if d := driver.HeldFor(err); d <= 0 || d > 10*time.Second {
		t.Errorf("held for %v", d)
	}

	mustRelease(t, h)
	wantAnswer(t, h.Release(t.Context()), driver.ErrNotHeld)
	if a.Exists(t.Context(), "lock:"+name).Val() != 0 {
		t.Error("the key is still there")
	}
	h2 := mustLock(t, c, newRequest(name))
	if h2.Grant().Token <= g.Token {
		t.Errorf("token %d after %d", h2.Grant().Token, g.Token)
	}
	wantAnswer(t, h.Release(t.Context()), driver.ErrNotHeld) // not the second one's
	mustRelease(t, h2)
}

// Trap 1: the same ID is answered with its own token, whatever others did meanwhile.
func TestSameIDAgain(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	c := connectURL(t, s.URL("redis"), 10*time.Second)
	name := newName(t)
	mustRelease(t, mustLock(t, c, newRequest(name)))
	req := newRequest(name)
	first := mustLock(t, c, req)
	for range 3 {
		_, err := c.TryLock(t.Context(), newRequest(name))
		wantAnswer(t, err, driver.ErrHeld)
	}
	a.PExpire(t.Context(), "lock:"+name, time.Second)
	time.Sleep(2 * time.Millisecond) // so that the value would carry another time
	again := mustLock(t, c, req)
	if again.Grant().Token != first.Grant().Token {
		t.Errorf("token %d, then %d", first.Grant().Token, again.Grant().Token)
	}
	if !first.Grant().Sent.Before(again.Grant().Sent) {
		t.Error("the second grant counts from the first request")
	}
	if ttl := a.PTTL(t.Context(), "lock:"+name).Val(); ttl <= 5*time.Second {
		t.Errorf("the TTL wasn't set anew: %v", ttl)
	}
	if r := renew(t, c, first); r.Err != nil {
		t.Error(r.Err)
	}
	mustRelease(t, again)
	wantAnswer(t, first.Release(t.Context()), driver.ErrNotHeld)
}

func TestUndo(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	c := connectURL(t, s.URL("redis"), 10*time.Second)
	name := newName(t)
	mine, other := newRequest(name), newRequest(name)
	h := mustLock(t, c, mine)
	if err := c.Undo(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if a.Exists(t.Context(), "lock:"+name).Val() != 1 {
		t.Fatal("another ID's key was removed")
	}
	for range 2 {
		if err := c.Undo(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
	}
	if a.Exists(t.Context(), "lock:"+name).Val() != 0 {
		t.Fatal("the key is still there")
	}
	wantAnswer(t, renew(t, c, h).Err, driver.ErrNotHeld)
	a.RPush(t.Context(), "lock:"+name, "x")
	defer a.Del(t.Context(), "lock:"+name)
	if err := c.Undo(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
}

// Keys of other locks and of no locks at all are left alone: NAME-07, and the part of EXP-11 about keys without TTL.
func TestNAME07ForeignKeys(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	c := connectURL(t, s.URL("redis"), 10*time.Second)
	ctx := t.Context()
	for _, test := range []struct {
		what string
		make func(key string)
		want error
	}{
		{"string without TTL", func(k string) { a.Set(ctx, k, "hello", 0) }, driver.ErrHeld},
		{"string with TTL", func(k string) { a.Set(ctx, k, "hello", time.Minute) }, driver.ErrHeld},
		{"empty string", func(k string) { a.Set(ctx, k, "", 0) }, driver.ErrHeld},
		{"number", func(k string) { a.Set(ctx, k, 7, 0) }, driver.ErrHeld},
		{"list", func(k string) { a.RPush(ctx, k, "hello") }, driver.ErrConflict},
		{"hash", func(k string) { a.HSet(ctx, k, "a", "b") }, driver.ErrConflict},
		{"set", func(k string) { a.SAdd(ctx, k, "a") }, driver.ErrConflict},
		{"stream", func(k string) { a.XAdd(ctx, &xadd{Stream: k, Values: []any{"a", "b"}}) }, driver.ErrConflict},
	} {
		t.Run(test.what, func(t *testing.T) {
			name := newName(t)
			key := "lock:" + name
			test.make(key)
			defer a.Del(ctx, key)
			before, ttl := a.Dump(ctx, key).Val(), a.PTTL(ctx, key).Val()
			_, err := c.TryLock(ctx, newRequest(name))
			wantAnswer(t, err, test.want)
			if test.want == driver.ErrHeld {
				if d := driver.HeldFor(err); (ttl > 0) != (d > 0) {
					t.Errorf("TTL %v, held for %v", ttl, d)
				}
			}
			if err := c.Undo(ctx, newRequest(name)); err != nil {
				t.Error(err)
			}
			h := &hold{conn: c, key: key, value: newID() + " 1 x"}
			wantAnswer(t, h.Release(ctx), driver.ErrNotHeld)
			wantAnswer(t, renew(t, c, h).Err, driver.ErrNotHeld)
			if a.Dump(ctx, key).Val() != before || (ttl > 0) != (a.PTTL(ctx, key).Val() > 0) {
				t.Error("the key was altered")
			}
			if a.Exists(ctx, "{"+key+"}:t").Val() != 0 {
				t.Error("a token was minted for nobody")
			}
		})
	}
	t.Run("the name's own key without prefix", func(t *testing.T) {
		name := newName(t)
		a.RPush(ctx, name, "data")
		defer a.Del(ctx, name)
		before := a.Dump(ctx, name).Val()
		mustRelease(t, mustLock(t, c, newRequest(name)))
		if a.Dump(ctx, name).Val() != before {
			t.Error("the key was altered")
		}
	})
}

// TOK-03, on a server of its own, whose data and memory are changed.
func TestTOK03TokensRise(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--maxmemory-policy", "volatile-lru"}})
	a := admin(t, s)
	ctx := t.Context()
	const ttl = 200 * time.Millisecond
	c := connectURL(t, s.URL("redis"), ttl)
	name := newName(t)
	last := uint64(0)
	rises := func(after string) {
		t.Helper()
		var h *hold
		eventually(t, patient, "a grant", func() bool {
			got, err := c.TryLock(ctx, newRequest(name))
			if err == nil {
				h = got.(*hold)
			}
			return err == nil
		})
		if h.token <= last || h.token > math.MaxInt64 {
			t.Errorf("after %s: token %d, before it %d", after, h.token, last)
		}
		last = h.token
		h.Release(ctx)
	}
	rises("nothing")
	time.Sleep(5 * ttl)
	rises("5 TTLs")
	a.Del(ctx, "{lock:"+name+"}:t")
	rises("deleting the companion")
	a.FlushAll(ctx)
	rises("FLUSHALL")
	a.RPush(ctx, "{lock:"+name+"}:u", "x")
	a.Del(ctx, "{lock:"+name+"}:t")
	a.RPush(ctx, "{lock:"+name+"}:t", "x")
	rises("a list in the companion's place")
	a.Set(ctx, "{lock:"+name+"}:t", "garbage", 0)
	rises("garbage in the companion's place")

	a.ConfigSet(ctx, "maxmemory", strconv.FormatInt(memory(t, a)+2<<20, 10))
	filler := strings.Repeat("x", 10000)
	for i := 0; a.Exists(ctx, "{lock:"+name+"}:t").Val() != 0; i++ {
		if err := a.Set(ctx, "filler"+strconv.Itoa(i), filler, time.Hour).Err(); err != nil || i > 5000 {
			t.Fatalf("the token isn't evicted: %v", err)
		}
	}
	rises("eviction")
	a.ConfigSet(ctx, "maxmemory", "0")

	s.Kill(t)
	s.Start(t)
	rises("a restart without data")

	// A counter that is ahead of the clock goes on, also where Lua's numbers aren't exact.
	for _, ahead := range []uint64{uint64(time.Now().Add(time.Hour).UnixMicro()), 1<<53 - 2, 1<<53 + 1, math.MaxInt64 - 3} {
		a.Set(ctx, "{lock:"+name+"}:t", ahead, time.Hour)
		for range 2 {
			last = ahead
			rises("a step of the clock")
			if last != ahead+1 {
				t.Errorf("token %d, want %d", last, ahead+1)
			}
			ahead++
		}
	}
	req := newRequest(name)
	again := mustLock(t, c, req)
	if h := mustLock(t, c, req); h.token != again.token || h.token != math.MaxInt64 {
		t.Errorf("tokens %d and %d", h.token, again.token)
	}
	mustRelease(t, again)
	for _, key := range a.Keys(ctx, "*lock:*").Val() {
		if a.PTTL(ctx, key).Val() < 0 && !strings.HasSuffix(key, ":u") {
			t.Errorf("%s has no TTL", key)
		}
	}
}

// The retention is a setting (trap 12).
func TestRetention(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	c := connectURL(t, s.URL("redis")+"?retention=90s", time.Second)
	name := newName(t)
	mustRelease(t, mustLock(t, c, newRequest(name)))
	if ttl := a.PTTL(t.Context(), "{lock:"+name+"}:t").Val(); ttl <= time.Minute || ttl > 90*time.Second {
		t.Errorf("the token is kept for %v", ttl)
	}
}

// Many clients, mutual exclusion and rising tokens.
func TestContention(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	name := newName(t)
	inside := make(chan struct{}, 1)
	var last uint64 // guarded by the lock
	const clients, rounds = 8, 40
	done := make(chan struct{})
	for range clients {
		c := connectURL(t, s.URL("redis"), 30*time.Second)
		go func() {
			defer func() { done <- struct{}{} }()
			for n := 0; n < rounds; {
				h, err := c.TryLock(t.Context(), newRequest(name))
				if err != nil {
					if driver.HeldFor(err) == 0 {
						t.Error(err)
						return
					}
					continue
				}
				select {
				case inside <- struct{}{}:
				default:
					t.Error("two holders")
				}
				if token := h.Grant().Token; token <= last {
					t.Errorf("token %d after %d", token, last)
				} else {
					last = token
				}
				<-inside
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
				n++
			}
		}()
	}
	for range clients {
		<-done
	}
}
