package locker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

func TestRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, &Options{TTL: testTTL})

		lease := mustAcquire(t, l, "a")
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lease.Release(cancelled); err != nil {
			t.Errorf("with a cancelled context: %v", err)
		}
		if held(t, store, "a") {
			t.Error("a cancelled context kept the entry")
		}
		if context.Cause(lease.Context()) != ErrReleased || lease.Remaining() > 0 {
			t.Errorf("cause %v, %v remaining", context.Cause(lease.Context()), lease.Remaining())
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("the second call: %v", err)
		}

		past, cancel := context.WithTimeout(t.Context(), -time.Hour)
		defer cancel()
		lease = mustAcquire(t, l, "a")
		if err := lease.Release(past); err != nil || held(t, store, "a") {
			t.Errorf("with a deadline in the past: %v", err)
		}
	})
}

// However many call it, the entry is removed once, all get the same result, and the next holder isn't touched.
func TestConcurrentReleases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		n := newLink(store)
		n.latency = time.Second
		l, other := openLink(t, n, &Options{TTL: testTTL}), openLink(t, store, nil)
		lease := mustAcquire(t, l, "a")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		next := mustAcquire(t, other, "a")
		wg.Wait()
		if got := n.count("release"); got != 1 {
			t.Errorf("%d requests", got)
		}
		lease.Release(t.Context())
		time.Sleep(3 * defaultTTL)
		if next.Context().Err() != nil {
			t.Error("the next holder lost its lease")
		}
	})
}

// A release whose reply is lost is repeated; "not yours" is then no loss.
func TestReleaseReplyLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		first := true
		n.fault = func(op, _ string) mode {
			if op == "release" && first {
				first = false
				return refuse
			}
			return up
		}
		l := openLink(t, n, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		if err := n.conn.Undo(t.Context(), request("a", lease)); err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("the second attempt found the entry gone: %v", err)
		}
	})
}

// Without an answer Release returns within its bound, and the entry is removed once the backend is back.
func TestReleaseIsBounded(t *testing.T) {
	for _, m := range []mode{refuse, blackHole} {
		bubble(t, func(t *testing.T) {
			store := memory.New()
			n := newLink(store)
			l := openLink(t, n, &Options{TTL: time.Hour})
			type bound struct{ deadline, want time.Duration }
			for _, b := range []bound{{0, 5 * time.Second}, {time.Second, time.Second}, {time.Minute, 5 * time.Second}} {
				lease := mustAcquire(t, l, "a")
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if b.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, b.deadline)
				}
				n.set(m)
				began := time.Now()
				err := lease.Release(ctx)
				cancel()
				wantErr(t, err, ErrUnavailable)
				wantNot(t, err, ErrLost, context.DeadlineExceeded)
				if d := time.Since(began); d > b.want || d < b.want/2 {
					t.Errorf("mode %d, deadline %v: took %v, want %v", m, b.deadline, d, b.want)
				}
				if context.Cause(lease.Context()) != ErrReleased {
					t.Errorf("cause %v", context.Cause(lease.Context()))
				}
				n.set(up)
				time.Sleep(time.Hour / 3)
				if held(t, store, "a") {
					t.Error("the entry wasn't removed after the backend came back")
				}
			}
			// With a short TTL there is no point in trying longer than the entry can live.
			short := openLink(t, n, &Options{TTL: 2 * time.Second})
			lease := mustAcquire(t, short, "b")
			n.set(m)
			began := time.Now()
			wantErr(t, lease.Release(t.Context()), ErrUnavailable)
			if d := time.Since(began); d > 2*time.Second {
				t.Errorf("took %v with a TTL of 2 s", d)
			}
			n.set(up)
		})
	}
}

// An entry that is gone or somebody else's is a loss, reported by Release and left alone.
func TestReleaseOfALostLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		n := newLink(store)
		l := openLink(t, n, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		if err := n.conn.Undo(t.Context(), request("a", lease)); err != nil { // behind the holder's back
			t.Fatal(err)
		}
		other := openLink(t, store, &Options{TTL: testTTL})
		next := mustAcquire(t, other, "a")
		err := lease.Release(t.Context())
		wantErr(t, err, ErrLost)
		wantErr(t, lease.Release(t.Context()), ErrLost)
		time.Sleep(3 * testTTL)
		if next.Context().Err() != nil {
			t.Error("the next holder lost its lease")
		}
	})
}

// A release that comes before the schedule has seen the lease's end does what the schedule would have done: on a shared
// session the entry would stay otherwise.
func TestReleaseIsTheFirstToNotice(t *testing.T) {
	for name, look := range map[string]func(Lease){
		"Release": func(Lease) {},
		"Err":     func(l Lease) { l.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				now := newSuspendable()
				c := newLateConn(now)
				var losses []error
				hooks := Hooks{Lost: func(_ context.Context, ev Event) { losses = append(losses, ev.Err) }}
				e := newEngine(driver.Info{SharedSession: true}, testTTL, settings{logger: slog.New(slog.DiscardHandler), hooks: hooks}, now.read).connected(c)
				defer e.Close()
				lease := mustAcquire(t, e, "a")
				now.suspend(time.Hour)
				look(lease)
				wantErr(t, lease.Release(t.Context()), ErrLost)
				synctest.Wait()
				if n := c.freed.Load(); n != 1 {
					t.Errorf("the entry was removed %d times, want once", n)
				}
				if len(losses) != 1 || !errors.Is(losses[0], ErrLost) {
					t.Errorf("losses reported: %v, want one", losses)
				}
			})
		})
	}
}

// A lease that ended without Release is swept: at once after a loss, one TTL after MaxHold.
func TestSweep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		n := newLink(store)
		n.info.SharedSession = true
		l := openLink(t, n, &Options{TTL: testTTL})

		lost := mustAcquire(t, l, "lost")
		renewing := func(op, _ string) mode {
			if op == "renew" {
				return refuse
			}
			return up
		}
		n.mu.Lock()
		n.fault = renewing
		n.mu.Unlock()
		<-lost.Context().Done()
		synctest.Wait()
		if held(t, store, "lost") {
			t.Error("the entry of a lost lease is left although the server can be reached")
		}
		n.mu.Lock()
		n.fault = nil
		n.mu.Unlock()

		mustAcquire(t, l, "long", WithMaxHold(testTTL/6)) // no renewal has extended it
		releases := n.count("release")
		time.Sleep(testTTL/6 + testTTL/2)
		if n.count("release") != releases {
			t.Error("swept while the work may still run")
		}
		time.Sleep(testTTL)
		if n.count("release") == releases {
			t.Error("not swept one TTL after MaxHold")
		}

		// While the server is away it is tried again and again, then no more.
		lease := mustAcquire(t, l, "away")
		n.set(blackHole)
		<-lease.Context().Done()
		time.Sleep(10 * testTTL)
		n.set(up)
		time.Sleep(2 * testTTL) // an attempt, and the pause after it
		e := l.(*engine)
		if e.mu.Lock(); len(e.sweep.items) != 0 || e.sweep.workers != 0 {
			t.Errorf("%d items, %d workers", len(e.sweep.items), e.sweep.workers)
		}
		e.mu.Unlock()
	})
}

// A crowd of losses is swept by a few goroutines.
func TestSweepOfManyLosses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.latency = 10 * time.Millisecond
		l := openLink(t, n, &Options{TTL: testTTL})
		for i := range 500 {
			mustAcquire(t, l, string(rune('a'+i)))
		}
		n.set(refuse)
		time.Sleep(testTTL)
		e := l.(*engine)
		if e.mu.Lock(); e.sweep.workers > maxSweepers {
			t.Errorf("%d workers", e.sweep.workers)
		}
		e.mu.Unlock()
		n.set(up)
		time.Sleep(3 * testTTL)
		if e.mu.Lock(); len(e.sweep.items) != 0 {
			t.Errorf("%d items are left", len(e.sweep.items))
		}
		e.mu.Unlock()
	})
}
