package locker

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

var errWork = errors.New("the work failed")

func TestDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, &Options{TTL: testTTL})
		other := openLink(t, store, &Options{TTL: testTTL})

		err := Do(t.Context(), l, "a", func(ctx context.Context, lease Lease) error {
			if lease.Context() != ctx {
				t.Error("lease.Context() isn't the function's context")
			}
			if lease.Name() != "a" || lease.Token() == 0 || !held(t, store, "a") {
				t.Error("not held")
			}
			time.Sleep(10 * testTTL)
			return ctx.Err()
		})
		if err != nil || held(t, store, "a") {
			t.Errorf("err %v, held %v", err, held(t, store, "a"))
		}

		err = Do(t.Context(), l, "a", func(context.Context, Lease) error { return errWork })
		if err != errWork || held(t, store, "a") {
			t.Errorf("the function's error came out as %v", err)
		}

		lease := mustAcquire(t, other, "a")
		err = Do(t.Context(), l, "a", func(context.Context, Lease) error { t.Error("ran"); return nil }, WithMaxWait(0))
		wantErr(t, err, ErrHeld)
		wantNot(t, err, ErrLost)
		lease.Release(t.Context())

		err = Do(t.Context(), l, "a", func(ctx context.Context, _ Lease) error {
			store.Expire("a")
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), ErrLost)
			return ctx.Err()
		})
		wantErr(t, err, ErrLost, context.Canceled)
		err = Do(t.Context(), l, "a", func(context.Context, Lease) error { store.Expire("a"); return nil })
		wantErr(t, err, ErrLost)
		err = Do(t.Context(), l, "a", func(context.Context, Lease) error { store.Expire("a"); return errWork })
		wantErr(t, err, ErrLost, errWork)
		err = Do(t.Context(), l, "a", func(ctx context.Context, _ Lease) error { <-ctx.Done(); return nil }, WithMaxHold(time.Second))
		wantErr(t, err, ErrLost, ErrMaxHold)
		err = Do(t.Context(), l, "a", func(_ context.Context, lease Lease) error { return lease.Release(t.Context()) })
		if err != nil {
			t.Errorf("a function that releases early: %v", err)
		}
	})
}

// Release answering "not yours" counts as a loss under the function; one that isn't confirmed doesn't.
func TestDoAndTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		var released []error
		l := openLink(t, n, &Options{TTL: testTTL, Hooks: Hooks{Released: func(_ context.Context, e Event) { released = append(released, e.Err) }}})
		err := Do(t.Context(), l, "a", func(_ context.Context, lease Lease) error {
			return n.conn.Undo(t.Context(), request("a", lease.(doLease).Lease))
		})
		wantErr(t, err, ErrLost)

		released = nil
		err = Do(t.Context(), l, "b", func(context.Context, Lease) error { n.set(refuse); return nil })
		if err != nil {
			t.Errorf("an unconfirmed release was returned: %v", err)
		}
		if len(released) != 1 {
			t.Fatalf("Hooks.Released called %d times", len(released))
		}
		wantErr(t, released[0], ErrUnavailable)
		n.set(up)
	})
}

func TestDoReleasesAfterAPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, nil)
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			Do(t.Context(), l, "a", func(context.Context, Lease) error { panic("boom") })
		}()
		if held(t, store, "a") {
			t.Error("still held after the panic")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The caller's context bounds wait and work.
func TestDoEndsWithTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, &Options{TTL: testTTL})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Do(ctx, l, "a", func(ctx context.Context, _ Lease) error {
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != time.Second {
				t.Errorf("Deadline() = %v, %v", d, ok)
			}
			child, stop := context.WithCancel(ctx)
			defer stop()
			<-child.Done()
			wantErr(t, ctx.Err(), context.DeadlineExceeded)
			wantErr(t, child.Err(), context.DeadlineExceeded)
			return ctx.Err()
		})
		wantErr(t, err, context.DeadlineExceeded)
		wantNot(t, err, ErrLost)
		if held(t, store, "a") {
			t.Error("still held")
		}

		reason := errors.New("enough")
		ctx2, stop := context.WithCancelCause(t.Context())
		err = Do(ctx2, l, "a", func(ctx context.Context, _ Lease) error {
			stop(reason)
			if ctx.Err() == nil {
				t.Error("not exact after the caller's end")
			}
			return context.Cause(ctx)
		})
		if err != reason {
			t.Errorf("%v", err)
		}
	})
}

// The function's context is exact after a pause, like the lease's own.
func TestDoContextIsExact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		now := newSuspendable()
		e := newEngine(driver.Info{}, testTTL, settingsOf(nil), now.read).connected(newLateConn(now))
		defer e.Close()
		err := Do(t.Context(), e, "a", func(ctx context.Context, _ Lease) error {
			now.suspend(time.Hour)
			return ctx.Err()
		})
		wantErr(t, err, ErrLost, context.Canceled)
	})
}

// Contexts derived from a lease's start no goroutine.
func TestDerivedContextsStartNoGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLink(t, memory.New(), nil)
		lease := mustAcquire(t, l, "a")
		limited := mustAcquire(t, l, "b", WithMaxHold(time.Hour))
		err := Do(t.Context(), l, "c", func(ctx context.Context, _ Lease) error {
			before := runtime.NumGoroutine()
			for _, parent := range []context.Context{lease.Context(), limited.Context(), ctx} {
				for range 100 {
					child, stop := context.WithCancel(parent)
					grandchild, stop2 := context.WithTimeout(child, time.Hour)
					defer stop()
					defer stop2()
					_ = grandchild
				}
			}
			synctest.Wait()
			if got := runtime.NumGoroutine(); got > before {
				t.Errorf("%d goroutines for 600 contexts", got-before)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
