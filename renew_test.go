package locker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

func TestRenewalIsDueAtAThirdOfTheTTL(t *testing.T) {
	for _, divisor := range []int{0, 4} {
		bubble(t, func(t *testing.T) {
			n := newLink(memory.New())
			n.info.RenewDivisor = divisor
			l := openLink(t, n, &Options{TTL: testTTL})
			lease := mustAcquire(t, l, "a")
			granted := time.Now()
			time.Sleep(10 * testTTL)
			want := testTTL / 3
			if divisor != 0 {
				want = testTTL / time.Duration(divisor)
			}
			renewals := n.all("renew")
			if len(renewals) == 0 || renewals[0].at.Sub(granted) != want {
				t.Fatalf("divisor %d: first renewal %v after the grant, want %v", divisor, renewals[0].at.Sub(granted), want)
			}
			if got, most := len(renewals), int(10*testTTL/want); got < most-1 || got > most {
				t.Errorf("divisor %d: %d renewals in ten TTLs, want %d", divisor, got, most)
			}
			if lease.Context().Err() != nil {
				t.Error("the lease was lost")
			}
		})
	}
}

// A transient error is retried until the deadline, and the lease lives on.
func TestTransientErrorsAreRetried(t *testing.T) {
	for _, m := range []mode{refuse, blackHole, dropReply} {
		bubble(t, func(t *testing.T) {
			n := newLink(memory.New())
			l := openLink(t, n, &Options{TTL: testTTL})
			lease := mustAcquire(t, l, "a")
			token := lease.Token()
			for range 5 {
				time.Sleep(testTTL / 6)
				n.set(m)
				time.Sleep(testTTL / 2) // spans at least one renewal
				n.set(up)
				time.Sleep(testTTL / 3)
			}
			if err := context.Cause(lease.Context()); err != nil || lease.Token() != token {
				t.Errorf("mode %d: lease lost: %v", m, err)
			}
		})
	}
}

// While renewal fails, attempts come soon after each other, but not without a pause.
func TestRetriesKeepTheirDistance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		n.set(refuse)
		<-lease.Context().Done()
		if got := n.count("renew"); got < 4 || got > 12 {
			t.Errorf("%d attempts between a third of the TTL and its end", got)
		}
	})
}

// A definite "not yours" ends the lease at its next renewal, long before its deadline.
func TestDefiniteAnswerEndsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		n := newLink(store)
		l := openLink(t, n, &Options{TTL: time.Hour})
		held := mustAcquire(t, l, "a")
		other, err := store.Connect(t.Context(), driver.Config{TTL: time.Hour, Now: n.conn.now})
		if err != nil {
			t.Fatal(err)
		}
		// An operator removes the entry, which is no loss that the driver is told of.
		if err := other.Undo(t.Context(), driver.Request{Name: "a", ID: held.(*lease).id}); err != nil {
			t.Fatal(err)
		}
		removed := time.Now()
		<-held.Context().Done()
		if d := time.Since(removed); d > time.Hour/3 {
			t.Errorf("noticed after %v", d)
		}
		wantErr(t, context.Cause(held.Context()), ErrLost)
	})
}

// A hung renewal delays neither its lease's end nor other holds.
func TestHungRenewalDelaysNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.fault = func(op, name string) mode {
			if op == "renew" && name == "silent" {
				return blackHole
			}
			return up
		}
		l := openLink(t, n, &Options{TTL: testTTL})
		var others []Lease
		for i := range 20 {
			others = append(others, mustAcquire(t, l, fmt.Sprint(i)))
			time.Sleep(10 * time.Millisecond) // some share the silent one's batch, others don't
		}
		silent := mustAcquire(t, l, "silent")
		granted := time.Now()
		<-silent.Context().Done()
		if got, want := time.Since(granted), testTTL-testTTL/100-2*time.Millisecond; got != want {
			t.Errorf("the silent lease ended after %v, want %v", got, want)
		}
		for range 100 {
			time.Sleep(testTTL / 10)
			for _, lease := range others {
				if left := lease.Remaining(); left < testTTL/2 {
					t.Fatalf("%v left of a lease whose server answers", left)
				}
			}
		}
	})
}

// What is due at about the same time is renewed in one batch.
func TestRenewalsTravelTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: testTTL})
		for i := range 1000 {
			mustAcquire(t, l, fmt.Sprint(i))
		}
		time.Sleep(testTTL / 2)
		batches := n.all("batch")
		if len(batches) != 1 || batches[0].holds != 1000 {
			t.Errorf("%d batches, the first of %d holds", len(batches), batches[0].holds)
		}
	})
}

// The number of goroutines doesn't depend on the number of leases.
func TestGoroutinesAreConstant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLink(t, memory.New(), &Options{TTL: testTTL})
		before := runtime.NumGoroutine()
		for i := range 10_000 {
			mustAcquire(t, l, fmt.Sprint(i))
		}
		time.Sleep(3 * testTTL)
		synctest.Wait()
		if got := runtime.NumGoroutine(); got > before+2 {
			t.Errorf("%d goroutines for 10,000 leases", got-before)
		}
	})
}

// Renewal stops before Release sends anything, and doesn't come back.
func TestNoRenewalAfterRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.latency = testTTL / 10
		l := openLink(t, n, &Options{TTL: testTTL})
		for i := range 50 {
			lease := mustAcquire(t, l, "a")
			time.Sleep(rand.N(testTTL))
			if err := lease.Release(t.Context()); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			before := n.count("renew")
			time.Sleep(2 * testTTL)
			if got := n.count("renew"); got != before {
				t.Fatalf("round %d: %d renewals after the release", i, got-before)
			}
		}
	})
}

// A renewal begins with each lease, also when the last one before has just gone (the loop may have been idle).
func TestRenewalStartsAnewAfterIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLink(t, memory.New(), &Options{TTL: testTTL})
		for i := range 50 {
			first := mustAcquire(t, l, "x")
			time.Sleep(rand.N(testTTL))
			first.Release(t.Context())
			second := mustAcquire(t, l, "y")
			time.Sleep(5 * testTTL / 2)
			if err := second.Release(t.Context()); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
	})
}

// The context of the acquisition bounds the wait and not the lease.
func TestAcquireContextDoesNotBoundTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLink(t, memory.New(), &Options{TTL: testTTL})
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Second)
		lease, err := l.Acquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(5 * testTTL)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("the lease ended with its acquisition's context: %v", err)
		}
		if lease.Context().Value(key{}) != "v" {
			t.Error("the value of the acquisition's context is missing")
		}
		if _, ok := lease.Context().Deadline(); ok {
			t.Error("Deadline() reports one without MaxHold")
		}
	})
}

func TestMaxHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		n := newLink(store)
		n.info.SharedSession = true
		l := openLink(t, n, &Options{TTL: testTTL, MaxHold: time.Hour})
		lease := mustAcquire(t, l, "a", WithMaxHold(3*testTTL))
		granted := time.Now()
		ctx := lease.Context()
		if d, ok := ctx.Deadline(); !ok || d.Sub(granted) != 3*testTTL {
			t.Errorf("Deadline() = %v, %v", d, ok)
		}
		child, stop := context.WithCancel(ctx)
		defer stop()
		<-child.Done()
		if got := time.Since(granted); got != 3*testTTL {
			t.Errorf("ended after %v, want %v", got, 3*testTTL)
		}
		wantErr(t, context.Cause(ctx), ErrMaxHold, ErrLost)
		wantErr(t, context.Cause(child), ErrMaxHold)
		wantErr(t, ctx.Err(), context.DeadlineExceeded)
		wantErr(t, child.Err(), context.DeadlineExceeded)

		renewals := n.count("renew")
		time.Sleep(testTTL / 2)
		if !held(t, store, "a") {
			t.Error("the entry was freed while the work may still run")
		}
		wantErr(t, lease.Release(t.Context()), ErrMaxHold, ErrLost)
		if held(t, store, "a") {
			t.Error("Release after MaxHold left the entry")
		}
		if n.count("renew") != renewals {
			t.Error("renewed after MaxHold")
		}

		for _, c := range []struct {
			name string
			opt  []AcquireOption
			want time.Duration
		}{{"the Locker's", nil, time.Hour}, {"longer", []AcquireOption{WithMaxHold(2 * time.Hour)}, 2 * time.Hour}} {
			lease := mustAcquire(t, l, c.name, c.opt...)
			granted := time.Now()
			<-lease.Context().Done()
			if got := time.Since(granted); got != c.want {
				t.Errorf("%s: ended after %v, want %v", c.name, got, c.want)
			}
		}
		endless := mustAcquire(t, l, "endless", WithMaxHold(0))
		time.Sleep(3 * time.Hour)
		if endless.Context().Err() != nil {
			t.Error("WithMaxHold(0) didn't lift the Locker's limit")
		}
	})
}

// Hooks are told what happens.
func TestHooks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		hook := func(what string) func(context.Context, Event) {
			return func(_ context.Context, e Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Backend != "memory" || e.Name != "a" || e.Kind != Correctness {
					t.Errorf("%s: %+v", what, e)
				}
				got = append(got, what)
			}
		}
		store := memory.New()
		n := newLink(store)
		l := openLink(t, n, &Options{TTL: testTTL, Hooks: Hooks{
			Acquired: hook("acquired"), AcquireFailed: hook("failed"), Renewed: hook("renewed"),
			RenewalFailed: hook("renewal failed"), Lost: hook("lost"), Released: hook("released"),
		}})
		lease := mustAcquire(t, l, "a")
		l.TryAcquire(t.Context(), "a")
		time.Sleep(testTTL/3 + testTTL/6)
		n.set(refuse)
		time.Sleep(testTTL/6 + testTTL/300)
		n.set(up)
		lease.Release(t.Context())
		mustAcquire(t, l, "a")
		store.Expire("a")
		want := "[acquired failed renewed renewal failed released acquired lost]"
		if fmt.Sprint(got) != want {
			t.Errorf("hooks: %v\nwant   %s", got, want)
		}
	})
}

// On a slow network each renewal takes longer than a sixth of the TTL. None is cut short for that.
func TestRenewalOnASlowNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.latency, n.steady = testTTL/10, true
		failed := 0
		hooks := Hooks{RenewalFailed: func(context.Context, Event) { failed++ }}
		l := openLink(t, n, &Options{TTL: testTTL, Hooks: hooks})
		lease := mustAcquire(t, l, "a")
		time.Sleep(20 * testTTL)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("lost: %v", context.Cause(lease.Context()))
		}
		if failed > 0 {
			t.Errorf("%d renewals failed", failed)
		}
	})
}
