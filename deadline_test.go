package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/leasekit/locker/internal/clock"
)

const testTTL = 6 * time.Second

// The deadline is the send time of the request that set the TTL, plus the TTL granted, less the margin of 1 % + 2 ms.
func TestDeadlineCountsFromSend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.latency = time.Second
		l := openLink(t, n, &Options{TTL: testTTL})
		called := time.Now()
		lease := mustAcquire(t, l, "a")
		n.set(blackHole)
		<-lease.Context().Done()
		if got, want := time.Since(called), testTTL-testTTL/100-2*time.Millisecond; got != want {
			t.Errorf("the lease ended %v after its request was sent, want %v", got, want)
		}
		wantErr(t, context.Cause(lease.Context()), ErrLost)
		wantErr(t, lease.Context().Err(), context.Canceled)
		if lease.Remaining() > 0 {
			t.Errorf("Remaining() = %v after the end", lease.Remaining())
		}
	})
}

// Under a shared session the acquire doesn't set the TTL: a lease gets what is left of the session's.
func TestDeadlineOfOlderSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: testTTL})
		keepAlive := clock.Monotonic()
		n.session = func() driver.Instant { return keepAlive }
		time.Sleep(4 * time.Second)
		n.fault = func(op, _ string) mode {
			if op == "renew" {
				return blackHole
			}
			return up
		}
		lease := mustAcquire(t, l, "a")
		want := 2*time.Second - testTTL/100 - 2*time.Millisecond
		if got := lease.Remaining(); got != want {
			t.Errorf("Remaining() = %v, want %v", got, want)
		}
		granted := time.Now()
		<-lease.Context().Done()
		if got := time.Since(granted); got != want {
			t.Errorf("the lease ended after %v, want %v", got, want)
		}
	})
}

// Cut off from its server at any moment, a lease's context ends before the server can grant the name to another.
func TestCutOffHolderEndsBeforeTheNextBegins(t *testing.T) {
	for range 300 {
		bubble(t, func(t *testing.T) {
			store := memory.New()
			n := newLink(store)
			n.latency = rand.N(500 * time.Millisecond)
			a := openLink(t, n, &Options{TTL: testTTL})
			b := openLink(t, store, &Options{TTL: testTTL})
			lease := mustAcquire(t, a, "a")
			var ended atomic.Int64
			context.AfterFunc(lease.Context(), func() { ended.Store(time.Now().UnixNano()) })

			granted := make(chan time.Time)
			go func() {
				next, err := b.Acquire(context.Background(), "a")
				if err != nil || next.Token() <= lease.Token() {
					t.Errorf("next holder: %v, %v", next, err)
				}
				granted <- time.Now()
			}()
			time.Sleep(rand.N(3 * testTTL))
			n.set([]mode{refuse, blackHole, dropReply}[rand.IntN(3)])
			began := <-granted
			if at := ended.Load(); at == 0 || at >= began.UnixNano() {
				t.Errorf("the first holder's lease ended at %v, the next began at %v", time.Unix(0, at), began)
			}
		})
	}
}

// A reply that comes after the deadline never revives a lease.
func TestLateReplyRevivesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		now := newSuspendable()
		c := newLateConn(now)
		e := newEngine(driver.Info{Backend: "late"}, testTTL, settingsOf(nil), now.read).connected(c)
		defer e.Close()
		lease := mustAcquire(t, e, "a")
		time.Sleep(testTTL / 3)
		synctest.Wait() // the renewal is under way
		sent := now.read()
		now.suspend(testTTL)
		c.answer <- driver.Renewal{Sent: sent, TTL: 10 * testTTL}
		synctest.Wait()
		if lease.Remaining() > 0 || lease.Context().Err() == nil {
			t.Errorf("revived: Remaining() = %v, Err() = %v", lease.Remaining(), lease.Context().Err())
		}
		wantErr(t, lease.Release(t.Context()), ErrLost)
	})
}

// A grant that arrives after its own deadline is no lease: its entry is removed and another identity asks.
func TestLateGrantIsNotReturned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: testTTL})
		asked := 0
		n.session = func() driver.Instant {
			asked++
			if asked == 1 {
				return clock.Monotonic().Add(-2 * testTTL)
			}
			return clock.Monotonic()
		}
		lease := mustAcquire(t, l, "a")
		if lease.Context().Err() != nil {
			t.Fatal("a dead lease was returned")
		}
		tries := n.all("try")
		if len(tries) < 2 || tries[0].id == tries[len(tries)-1].id {
			t.Errorf("asked with the same identity again: %v", tries)
		}
	})
}

// A suspend longer than the TTL is seen by Context before any timer fires, and a tick after resume by those who derived
// a context and ask nothing.
func TestSuspend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		now := newSuspendable()
		c := newLateConn(now)
		e := newEngine(driver.Info{Backend: "late"}, testTTL, settingsOf(nil), now.read).connected(c)
		defer e.Close()
		asked := mustAcquire(t, e, "asked")
		derived := mustAcquire(t, e, "derived")
		child, stop := context.WithCancel(derived.Context())
		defer stop()
		time.Sleep(time.Millisecond)
		now.suspend(time.Hour)
		resumed := time.Now()

		ctx := asked.Context()
		if ctx.Err() == nil {
			t.Error("Err() is nil after a suspend past the deadline")
		}
		select {
		case <-ctx.Done():
		default:
			t.Error("Done() is open after a suspend past the deadline")
		}
		wantErr(t, context.Cause(ctx), ErrLost)
		if time.Since(resumed) != 0 {
			t.Fatal("time has passed")
		}
		<-child.Done()
		if d := time.Since(resumed); d > tick {
			t.Errorf("a derived context ended %v after resume, want at most %v", d, tick)
		}
		wantErr(t, context.Cause(child), ErrLost)
	})
}

// Each method of the context looks at the clock by itself.
func TestContextMethodsAreExact(t *testing.T) {
	for name, ended := range map[string]func(context.Context) bool{
		"Err": func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
		"Cause": func(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrLost) },
		"a child's Err after Value": func(ctx context.Context) bool {
			child, stop := context.WithCancel(ctx) // asks Done and Value
			defer stop()
			return child.Err() != nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				now := newSuspendable()
				e := newEngine(driver.Info{}, testTTL, settingsOf(nil), now.read).connected(newLateConn(now))
				defer e.Close()
				lease := mustAcquire(t, e, "a")
				if ended(lease.Context()) {
					t.Fatal("ended at once")
				}
				now.suspend(2 * testTTL)
				if !ended(lease.Context()) {
					t.Error("not noticed")
				}
			})
		})
	}
}

// Without a boot-time clock the wall clock stands in for it. A step back must not delay the end of a lease.
func TestWallClockSteppedBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		now := newSuspendable()
		e := newEngine(driver.Info{}, testTTL, settingsOf(nil), now.read).connected(newLateConn(now))
		defer e.Close()
		now.suspend(time.Hour)
		lease := mustAcquire(t, e, "a")
		child, stop := context.WithCancel(lease.Context())
		defer stop()
		granted := time.Now()
		time.Sleep(time.Second / 2)
		now.suspend(-time.Hour)
		<-child.Done()
		if d := time.Since(granted); d > testTTL+tick {
			t.Errorf("the lease ended after %v", d)
		}
	})
}

// suspendable is a clock whose boot-time reading a test can move ahead, as a suspend does.
type suspendable struct{ ahead atomic.Int64 }

func newSuspendable() *suspendable { return &suspendable{} }

func (s *suspendable) read() driver.Instant {
	mono := time.Since(time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC))
	return clock.At(mono, mono+time.Duration(s.ahead.Load()))
}

func (s *suspendable) suspend(d time.Duration) { s.ahead.Add(int64(d)) }

// lateConn grants everything, and answers renewals when and as the test says.
type lateConn struct {
	now    func() driver.Instant
	token  atomic.Uint64
	freed  atomic.Int64 // calls of Release
	answer chan driver.Renewal
}

func newLateConn(now *suspendable) *lateConn {
	return &lateConn{now: now.read, answer: make(chan driver.Renewal)}
}

type lateHold struct {
	grant driver.Grant
	freed *atomic.Int64
}

func (h *lateHold) Grant() driver.Grant { return h.grant }
func (h *lateHold) Release(context.Context) error {
	h.freed.Add(1)
	return nil
}

func (c *lateConn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	return &lateHold{driver.Grant{Token: c.token.Add(1), Renewal: driver.Renewal{Sent: c.now(), TTL: testTTL}}, &c.freed}, nil
}
func (c *lateConn) Undo(context.Context, driver.Request) error { return nil }
func (c *lateConn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	for i := range holds {
		select {
		case r := <-c.answer:
			report(i, r)
		case <-ctx.Done():
		}
	}
	return 0
}
func (c *lateConn) Close() error { return nil }
