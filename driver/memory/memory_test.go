package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/leasekit/locker/internal/clock"
)

const ttl = 10 * time.Second

func connect(t *testing.T, c driver.Connector) driver.Conn {
	t.Helper()
	conn, err := c.Connect(t.Context(), driver.Config{TTL: ttl, Owner: "me", Now: clock.Monotonic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// request asks for a name with an identity that is the given letter.
func request(name string, id byte) driver.Request {
	return driver.Request{Name: name, ID: fmt.Sprintf("%032x", id), Owner: "owner " + string(id)}
}

func take(t *testing.T, c driver.Conn, r driver.Request) driver.Hold {
	t.Helper()
	h, err := c.TryLock(t.Context(), r)
	if err != nil {
		t.Fatalf("taking %q: %v", r.Name, err)
	}
	return h
}

// refused expects that a name is held by somebody else, for as long as remaining.
func refused(t *testing.T, c driver.Conn, r driver.Request, remaining time.Duration) {
	t.Helper()
	h, err := c.TryLock(t.Context(), r)
	if h != nil || !errors.Is(err, driver.ErrHeld) || driver.HeldFor(err) != remaining {
		t.Fatalf("taking %q: %v, %v; want it held for %v", r.Name, h, err, remaining)
	}
}

func renew(t *testing.T, c driver.Conn, h driver.Hold) driver.Renewal {
	t.Helper()
	var results []driver.Renewal
	if n := c.Renew(t.Context(), []driver.Hold{h}, func(i int, r driver.Renewal) { results = append(results, r) }); n != 0 {
		t.Errorf("%d unresolved entries", n)
	}
	if len(results) != 1 {
		t.Fatalf("%d results for one hold", len(results))
	}
	return results[0]
}

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestInfo(t *testing.T) {
	info := memory.New().Info()
	if info.Backend != "memory" || !info.Correctness || !info.MonotonicOnly || info.SharedSession {
		t.Errorf("%+v", info)
	}
}

func TestTryLock(t *testing.T) {
	bubble(t, "idempotent per ID", func(t *testing.T) {
		c := connect(t, memory.New())
		first := take(t, c, request("n", 'a'))
		time.Sleep(4 * time.Second)
		second := take(t, c, request("n", 'a'))
		if first.Grant().Token != second.Grant().Token {
			t.Errorf("tokens %d and %d of one acquisition", first.Grant().Token, second.Grant().Token)
		}
		if d := second.Grant().Sent.Sub(first.Grant().Sent); d != 4*time.Second || second.Grant().TTL != ttl {
			t.Errorf("asked again after 4 s: granted %v later, for %v", d, second.Grant().TTL)
		}
		if first.Grant().Sent == second.Grant().Sent {
			t.Error("the first grant has changed")
		}
		time.Sleep(ttl - 1)
		refused(t, c, request("n", 'b'), 1)
		time.Sleep(time.Nanosecond)
		take(t, c, request("n", 'b'))
	})
	bubble(t, "a stranger of the same process", func(t *testing.T) {
		c := connect(t, memory.New())
		take(t, c, request("n", 'a'))
		refused(t, c, request("n", 'b'), ttl)
		take(t, c, request("m", 'b'))
	})
	bubble(t, "ended context", func(t *testing.T) {
		c := connect(t, memory.New())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if h, err := c.TryLock(ctx, request("n", 'a')); h != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", h, err)
		}
		take(t, c, request("n", 'b'))
	})
	bubble(t, "closed", func(t *testing.T) {
		c := connect(t, memory.New())
		c.Close()
		if h, err := c.TryLock(t.Context(), request("n", 'a')); h != nil || err == nil || driver.IsAnswer(err) {
			t.Errorf("%v, %v", h, err)
		}
	})
}

func TestTOK01TokensRise(t *testing.T) {
	bubble(t, "above the wall clock and each other", func(t *testing.T) {
		store := memory.New()
		a, b := connect(t, store), connect(t, store)
		last := uint64(time.Now().UnixMicro()) - 1
		for i := range 100 { // all in one instant of the bubble's clock
			c := []driver.Conn{a, b}[i%2]
			h := take(t, c, request("n", byte(i)))
			if token := h.Grant().Token; token <= last || token > math.MaxInt64 {
				t.Fatalf("token %d after %d", token, last)
			}
			last = h.Grant().Token
			if err := h.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		if token, now := take(t, a, request("n", 'a')).Grant().Token, uint64(time.Now().UnixMicro()); token != now {
			t.Errorf("token %d, wall clock %d", token, now)
		}
		// A store that a restart has emptied goes on above the one before.
		if token := take(t, connect(t, memory.New()), request("n", 'a')).Grant().Token; token <= last {
			t.Errorf("token %d of a new store, %d of the one before", token, last)
		}
	})
	bubble(t, "above a floor", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		advance := c.(driver.Advancer).Advance
		if err := advance(t.Context(), h, 1<<60); err != nil {
			t.Fatal(err)
		}
		if err := advance(t.Context(), h, 5); err != nil {
			t.Fatal(err)
		}
		if h.Grant().Token >= 1<<60 {
			t.Error("a token has changed")
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := advance(t.Context(), h, 1<<61); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("advancing without the name: %v", err)
		}
		if token := take(t, c, request("n", 'b')).Grant().Token; token != 1<<60+1 {
			t.Errorf("token %d", token)
		}
	})
}

func TestRenew(t *testing.T) {
	bubble(t, "sets the TTL anew", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		time.Sleep(6 * time.Second)
		if r := renew(t, c, h); r.Err != nil || r.TTL != ttl || r.Sent.Sub(h.Grant().Sent) != 6*time.Second {
			t.Errorf("%+v", r)
		}
		time.Sleep(ttl - 1)
		refused(t, c, request("n", 'b'), 1)
		time.Sleep(time.Nanosecond)
		if r := renew(t, c, h); !errors.Is(r.Err, driver.ErrNotHeld) {
			t.Errorf("renewed after its end: %+v", r)
		}
		take(t, c, request("n", 'b'))
	})
	bubble(t, "OWN-17 not another's", func(t *testing.T) {
		store := memory.New()
		c := connect(t, store)
		a := take(t, c, request("n", 'a'))
		store.Expire("n")
		b := take(t, c, request("n", 'b'))
		if r := renew(t, c, a); !errors.Is(r.Err, driver.ErrNotHeld) {
			t.Errorf("%+v", r)
		}
		if err := a.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("released another's entry: %v", err)
		}
		if r := renew(t, c, b); r.Err != nil {
			t.Errorf("%+v", r)
		}
	})
	bubble(t, "each hold once", func(t *testing.T) {
		store := memory.New()
		c := connect(t, store)
		var holds []driver.Hold
		for i := range 100 {
			holds = append(holds, take(t, c, request(fmt.Sprint(i), 'a')))
		}
		store.Expire("7")
		seen := make(map[int]error)
		c.Renew(t.Context(), holds, func(i int, r driver.Renewal) {
			if _, twice := seen[i]; twice {
				t.Errorf("hold %d is reported twice", i)
			}
			seen[i] = r.Err
		})
		for i := range holds {
			if err, ok := seen[i]; !ok || (i == 7) != (err != nil) {
				t.Errorf("hold %d: reported %v, %v", i, ok, err)
			}
		}
	})
	bubble(t, "none", func(t *testing.T) {
		if n := connect(t, memory.New()).Renew(t.Context(), nil, nil); n != 0 {
			t.Error(n)
		}
	})
}

func TestRelease(t *testing.T) {
	bubble(t, "once", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Error(err)
		}
		take(t, c, request("n", 'b'))
	})
	bubble(t, "after its TTL", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		time.Sleep(ttl)
		if err := h.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Error(err)
		}
	})
	bubble(t, "after its request was granted again", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		take(t, c, request("n", 'a'))
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		take(t, c, request("n", 'b'))
	})
}

func TestUndo(t *testing.T) {
	bubble(t, "an entry", func(t *testing.T) {
		c := connect(t, memory.New())
		take(t, c, request("n", 'a'))
		for range 2 {
			if err := c.Undo(t.Context(), request("n", 'b')); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, c, request("n", 'b'), ttl)
		for range 2 {
			if err := c.Undo(t.Context(), request("n", 'a')); err != nil {
				t.Fatal(err)
			}
		}
		take(t, c, request("n", 'b'))
	})
	bubble(t, "a name that nobody holds", func(t *testing.T) {
		if err := connect(t, memory.New()).Undo(t.Context(), request("n", 'a')); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "a place in the queue", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		ctx, cancel := context.WithCancel(t.Context())
		first, second := lock(ctx, c, request("n", 'b')), lock(ctx, c, request("n", 'c'))
		if err := c.Undo(t.Context(), request("n", 'b')); err != nil {
			t.Fatal(err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g := <-second; g.err != nil {
			t.Errorf("the second waiter: %v", g.err)
		}
		cancel()
		if g := <-first; !errors.Is(g.err, context.Canceled) {
			t.Errorf("the waiter who was undone: %v, %v", g.hold, g.err)
		}
	})
}

type granted struct {
	hold driver.Hold
	err  error
	at   time.Time
}

// lock waits in the queue, in the background. It returns once the waiter has its place.
func lock(ctx context.Context, c driver.Conn, r driver.Request) <-chan granted {
	got := make(chan granted, 1)
	go func() {
		h, err := c.(driver.Queuer).Lock(ctx, r)
		got <- granted{h, err, time.Now()}
	}()
	synctest.Wait()
	return got
}

func TestQueue(t *testing.T) {
	bubble(t, "FIFO over all clients", func(t *testing.T) {
		store := memory.New()
		clients := []driver.Conn{connect(t, store), connect(t, store), connect(t, store)}
		hold := take(t, clients[0], request("n", 0))
		var waiters []<-chan granted
		for i := range 30 {
			waiters = append(waiters, lock(t.Context(), clients[i%3], request("n", byte(i+1))))
		}
		for i, w := range waiters {
			time.Sleep(time.Second)
			released := time.Now()
			last := hold.Grant().Token
			if err := hold.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			g := <-w
			if g.err != nil || g.hold.Grant().Token <= last || !g.at.Equal(released) {
				t.Fatalf("waiter %d: %v, released at %v, granted at %v", i, g.err, released, g.at)
			}
			for j, later := range waiters[i+1:] {
				select {
				case <-later:
					t.Fatalf("waiter %d was granted with %d", i+1+j, i)
				default:
				}
			}
			hold = g.hold
			refused(t, clients[0], request("n", 'x'), ttl)
		}
	})
	bubble(t, "the next one when the TTL has passed", func(t *testing.T) {
		store := memory.New()
		a, b := connect(t, store), connect(t, store)
		start := time.Now()
		h := take(t, a, request("n", 'a'))
		waiter := lock(t.Context(), b, request("n", 'b'))
		time.Sleep(6 * time.Second)
		if r := renew(t, a, h); r.Err != nil {
			t.Fatal(r.Err)
		}
		g := <-waiter
		if d := g.at.Sub(start); g.err != nil || d != 6*time.Second+ttl {
			t.Errorf("granted after %v, %v", d, g.err)
		}
	})
	bubble(t, "a free name, one's own name", func(t *testing.T) {
		c := connect(t, memory.New())
		first := <-lock(t.Context(), c, request("n", 'a'))
		again := <-lock(t.Context(), c, request("n", 'a'))
		if first.err != nil || again.err != nil || first.hold.Grant().Token != again.hold.Grant().Token {
			t.Errorf("%+v, %+v", first, again)
		}
	})
	bubble(t, "WAIT-01 giving up leaves nothing", func(t *testing.T) {
		c := connect(t, memory.New())
		h := take(t, c, request("n", 'a'))
		ctx, cancel := context.WithCancel(t.Context())
		waiter := lock(ctx, c, request("n", 'b'))
		if n := inspect(t, c, "n").Waiters; n != 1 {
			t.Errorf("%d waiters", n)
		}
		cancel()
		if g := <-waiter; g.hold != nil || !errors.Is(g.err, context.Canceled) {
			t.Errorf("%v, %v", g.hold, g.err)
		}
		if n := inspect(t, c, "n").Waiters; n != 0 {
			t.Errorf("%d waiters", n)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		take(t, c, request("n", 'c'))
	})
	bubble(t, "close ends a wait", func(t *testing.T) {
		store := memory.New()
		a, b := connect(t, store), connect(t, store)
		h := take(t, a, request("n", 'a'))
		waiter := lock(t.Context(), b, request("n", 'b'))
		b.Close()
		if g := <-waiter; g.hold != nil || g.err == nil || driver.IsAnswer(g.err) {
			t.Errorf("%v, %v", g.hold, g.err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		take(t, a, request("n", 'c'))
	})
}

// A grant and the end of a wait meet at every possible moment: afterwards the name is either held by the waiter who was
// told so, or free.
func TestOWN01GrantMeetsCancellation(t *testing.T) {
	store := memory.New()
	c := connect(t, store)
	for i := range 2000 {
		h := take(t, c, request("n", 'a'))
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan granted, 1)
		go func() {
			w, err := c.(driver.Queuer).Lock(ctx, request("n", 'b'))
			got <- granted{hold: w, err: err}
		}()
		if i%4 != 0 { // let it wait, or meet it on its way
			for inspect(t, c, "n").Waiters == 0 {
				runtime.Gosched()
			}
		}
		release := func() {
			if err := h.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if i%2 == 0 {
			var both sync.WaitGroup
			both.Go(cancel)
			both.Go(release)
			both.Wait()
		} else {
			cancel()
			release()
		}
		g := <-got
		if (g.hold == nil) == (g.err == nil) {
			t.Fatalf("round %d: %v and %v", i, g.hold, g.err)
		}
		if e := inspect(t, c, "n"); e.Held != (g.err == nil) || e.Waiters != 0 {
			t.Fatalf("round %d: waiter's error %v, and the name is %+v", i, g.err, e)
		}
		if g.hold != nil {
			if err := g.hold.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestExpire(t *testing.T) {
	bubble(t, "tells the holder and serves the next", func(t *testing.T) {
		store := memory.New()
		c := connect(t, store)
		var told []error
		r := request("n", 'a')
		r.Lost = func(err error) { told = append(told, err) }
		h := take(t, c, r)
		waiter := lock(t.Context(), c, request("n", 'b'))
		if !store.Expire("n") {
			t.Error("the name wasn't held")
		}
		if len(told) != 1 || !errors.Is(told[0], driver.ErrNotHeld) {
			t.Errorf("told %v", told)
		}
		if g := <-waiter; g.err != nil || g.hold.Grant().Token <= h.Grant().Token {
			t.Errorf("the next one: %+v", g)
		}
	})
	bubble(t, "a free name", func(t *testing.T) {
		store := memory.New()
		if store.Expire("n") {
			t.Error("a name that nobody has ever held")
		}
		take(t, connect(t, store), request("n", 'a'))
		time.Sleep(ttl)
		if store.Expire("n") {
			t.Error("a name whose TTL has passed")
		}
	})
}

func inspect(t *testing.T, c driver.Conn, name string) driver.Entry {
	t.Helper()
	e, err := c.(driver.Inspector).Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestInspect(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		store := memory.New()
		c := connect(t, store)
		if e := inspect(t, c, "n"); e != (driver.Entry{Name: "n"}) {
			t.Errorf("a free name: %+v", e)
		}
		h := take(t, c, request("n", 'a'))
		taken := time.Now()
		take(t, c, request("m", 'a'))
		ctx, cancel := context.WithCancel(t.Context())
		waiter := lock(ctx, c, request("n", 'b'))
		time.Sleep(3 * time.Second)
		e := inspect(t, connect(t, store), "n")
		if !e.Held || e.Owner != "owner a" || e.ID != request("n", 'a').ID || !e.Since.Equal(taken) || e.Token != h.Grant().Token ||
			e.Remaining != ttl-3*time.Second || e.Waiters != 1 {
			t.Errorf("%+v", e)
		}
		cancel()
		<-waiter

		list := func(limit int) (names []string) {
			if err := c.(driver.Inspector).List(t.Context(), func(e driver.Entry) bool {
				names = append(names, e.Name)
				return len(names) < limit
			}); err != nil {
				t.Error(err)
			}
			return names
		}
		if names := list(10); len(names) != 2 || names[0] == names[1] {
			t.Errorf("listed %q", names)
		}
		if names := list(1); len(names) != 1 {
			t.Errorf("listed %q after one was enough", names)
		}
		time.Sleep(ttl)
		if e := inspect(t, c, "n"); e != (driver.Entry{Name: "n"}) {
			t.Errorf("a name whose TTL has passed: %+v", e)
		}
		if names := list(10); len(names) != 0 {
			t.Errorf("listed %q", names)
		}
	})
}

func TestURL(t *testing.T) {
	parse := func(raw string) driver.Conn {
		t.Helper()
		c, err := driver.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		return connect(t, c)
	}
	shared := "memory://" + t.Name()
	take(t, parse(shared), request("n", 'a'))
	if _, err := parse(shared).TryLock(t.Context(), request("n", 'b')); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("two that share a name: %v", err)
	}
	take(t, parse(shared+"2"), request("n", 'b'))
	take(t, parse("memory://"), request("n", 'b'))
	take(t, parse("memory://"), request("n", 'b'))

	for _, raw := range []string{
		"memory:", "memory:///", "memory://x/y", "memory://u@x", "memory://:s3cr3t@x", "memory://x,y", "memory://x:1",
		"memory://[::1]", "memory://x?prefix=p", "memory://?size=1",
	} {
		if c, err := driver.Parse(raw); c != nil || !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%s: %v, %v", raw, c, err)
		}
	}
}
