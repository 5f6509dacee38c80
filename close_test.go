package locker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver/memory"
)

func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		waits := make(chan error)
		for range 10 {
			go func() {
				_, err := l.Acquire(t.Context(), "a")
				waits <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if time.Since(began) != 0 {
			t.Errorf("took %v", time.Since(began))
		}
		for range 10 {
			err := <-waits
			wantErr(t, err, ErrClosed)
			wantNot(t, err, ErrHeld, ErrUnavailable, ErrLost, context.Canceled)
		}
		wantErr(t, context.Cause(lease.Context()), ErrClosed, ErrLost)
		if held(t, store, "a") {
			t.Error("the entry is left")
		}
		err := lease.Release(t.Context())
		wantErr(t, err, ErrClosed, ErrLost)
		_, err = l.Acquire(t.Context(), "b")
		wantErr(t, err, ErrClosed)
		wantNot(t, err, ErrLost)
		_, err = l.TryAcquire(t.Context(), "b")
		wantErr(t, err, ErrClosed)
		if err := l.Close(); err != nil {
			t.Errorf("the second call: %v", err)
		}
	})
}

// Close returns within 5 s although the server is away, and leaves no goroutine (the bubble would say so).
func TestCloseIsBounded(t *testing.T) {
	for _, m := range []mode{refuse, blackHole} {
		bubble(t, func(t *testing.T) {
			n := newLink(memory.New())
			l := openLink(t, n, nil)
			for i := range 100 {
				mustAcquire(t, l, fmt.Sprint(i))
			}
			errs := make(chan error)
			for range 10 {
				go func() { _, err := l.Acquire(t.Context(), "0"); errs <- err }()
			}
			synctest.Wait()
			n.set(m)
			go func() { _, err := l.Acquire(t.Context(), "x"); errs <- err }()
			time.Sleep(time.Second)
			began := time.Now()
			wantErr(t, l.Close(), ErrUnavailable)
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("mode %d: took %v", m, d)
			}
			for range 11 {
				wantErr(t, <-errs, ErrClosed)
			}
		})
	}
}

// Whatever is going on, Close ends it; nothing is held afterwards.
func TestCloseAtAnyMoment(t *testing.T) {
	for range 50 {
		bubble(t, func(t *testing.T) {
			store := memory.New()
			n := newLink(store)
			n.latency = 10 * time.Millisecond
			l := openLink(t, n, &Options{TTL: testTTL})
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					for {
						lease, err := l.Acquire(t.Context(), fmt.Sprint(i%10))
						if err != nil {
							wantErr(t, err, ErrClosed)
							return
						}
						time.Sleep(rand.N(20 * time.Millisecond))
						if err := lease.Release(t.Context()); err != nil && !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
					}
				})
			}
			time.Sleep(rand.N(time.Second))
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
			time.Sleep(testTTL) // a request on its way ends with its TTL
			for i := range 10 {
				if held(t, store, fmt.Sprint(i)) {
					t.Errorf("%d is still held", i)
				}
			}
		})
	}
}

// Functions in Do are told, return and release their own leases before Close does.
func TestCloseLetsDoReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, nil)
		result := make(chan error)
		go func() {
			result <- Do(t.Context(), l, "a", func(ctx context.Context, lease Lease) error {
				<-ctx.Done()
				time.Sleep(time.Second) // it takes a while to stop
				if !held(t, store, "a") {
					t.Error("freed under the function")
				}
				return ctx.Err()
			})
		}()
		synctest.Wait()
		began := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("Close took %v, want the function's second", d)
		}
		wantErr(t, <-result, ErrClosed, ErrLost)

		// One that doesn't listen is not waited for beyond the bound.
		l = openLink(t, store, nil)
		go func() {
			result <- Do(t.Context(), l, "a", func(context.Context, Lease) error {
				time.Sleep(time.Hour)
				return nil
			})
		}()
		synctest.Wait()
		began = time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("Close took %v", d)
		}
		if held(t, store, "a") {
			t.Error("the entry is left")
		}
		wantErr(t, <-result, ErrLost)
	})
}
