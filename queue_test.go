package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

// Goroutines of one Locker are served first come, first served, one of them at a time contends at the backend, and each
// has a token of its own.
func TestLocalQueue(t *testing.T) {
	for _, queuer := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			n := newLink(memory.New())
			n.hidden = !queuer
			n.info.Poll = 10 * time.Millisecond
			l := openLink(t, n, &Options{TTL: testTTL})
			first := mustAcquire(t, l, "a")
			var mu sync.Mutex
			var order []int
			last := first.Token()
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					lease, err := l.Acquire(t.Context(), "a")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					order = append(order, i)
					if lease.Token() <= last {
						t.Errorf("token %d after %d", lease.Token(), last)
					}
					last = lease.Token()
					mu.Unlock()
					lease.Release(t.Context())
				})
				synctest.Wait()
			}
			first.Release(t.Context())
			wg.Wait()
			if !slices.IsSorted(order) || len(order) != 100 {
				t.Errorf("served in the order %v", order)
			}
			if n.crowd != 1 {
				t.Errorf("%d contenders of one process at the backend", n.crowd)
			}
		})
	}
}

// Those who give up leave the queue, wherever they stand, and the others keep their order.
func TestLeavingTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLink(t, memory.New(), &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		var mu sync.Mutex
		var order, want []int
		var wg sync.WaitGroup
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			patient := rand.IntN(2) == 0
			if patient {
				want = append(want, i)
			} else {
				time.AfterFunc(rand.N(time.Second), cancel)
			}
			wg.Go(func() {
				defer cancel()
				lease, err := l.Acquire(ctx, "a")
				if err != nil {
					if patient || !errors.Is(err, context.Canceled) || !errors.Is(err, ErrHeld) {
						t.Errorf("%d: %v", i, err)
					}
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				lease.Release(t.Context())
			})
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		lease.Release(t.Context())
		wg.Wait()
		if !slices.Equal(order, want) {
			t.Errorf("served %v\nwant   %v", order, want)
		}
		if e := l.(*engine); len(e.queues) != 0 {
			t.Errorf("%d queues are left", len(e.queues))
		}
	})
}

// TryAcquire behind local waiters is ErrHeld at once, and ErrUnavailable where the head's last answer was unknown.
func TestTryBehindWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Acquire(ctx, "a")
		go l.Acquire(ctx, "a")
		synctest.Wait()
		tries, asked := n.count("try"), time.Now()
		_, err := l.TryAcquire(t.Context(), "a")
		wantErr(t, err, ErrHeld)
		if d := time.Since(asked); d != 0 {
			t.Errorf("took %v", d)
		}
		if n.count("try") != tries {
			t.Error("a second contender of this process at the backend")
		}
		_ = lease

		n.set(refuse)
		go l.Acquire(ctx, "b")
		synctest.Wait()
		_, err = l.TryAcquire(t.Context(), "b")
		wantErr(t, err, ErrUnavailable, errRefused)
		wantNot(t, err, ErrHeld)
	})
}

// Of several at once that don't wait, one gets the name, and the others its answer.
func TestConcurrentTries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.latency = time.Second
		l := openLink(t, n, &Options{TTL: testTTL})
		var mu sync.Mutex
		var leases []Lease
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				lease, err := l.TryAcquire(t.Context(), "a")
				if err != nil {
					wantErr(t, err, ErrHeld)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				leases = append(leases, lease)
			})
		}
		wg.Wait()
		if len(leases) != 1 || n.count("try") != 1 {
			t.Errorf("%d leases after %d requests", len(leases), n.count("try"))
		}
	})
}

// Locks aren't re-entrant, and a name that was lost can be acquired again.
func TestNotReentrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		l := openLink(t, store, &Options{TTL: testTTL})
		first := mustAcquire(t, l, "a")
		ctx, cancel := context.WithTimeout(first.Context(), time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, "a")
		wantErr(t, err, context.DeadlineExceeded, ErrHeld)
		store.Expire("a")
		second := mustAcquire(t, l, "a")
		if second.Token() <= first.Token() {
			t.Error("the token didn't rise")
		}
		wantErr(t, first.Release(t.Context()), ErrLost)
		if second.Context().Err() != nil || !held(t, store, "a") {
			t.Error("the first holder's release touched the second one's entry")
		}
	})
}

// A driver whose queue says "held" isn't asked in a tight loop.
func TestQueueThatAnswersHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := &heldQueue{}
		l := openLink(t, c, nil)
		_, err := l.Acquire(t.Context(), "a", WithMaxWait(time.Minute))
		wantErr(t, err, ErrHeld)
		if c.calls > 100 {
			t.Errorf("asked %d times in a minute", c.calls)
		}
	})
}

type heldQueue struct {
	scripted
	calls int
}

func (c *heldQueue) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	c.try = func(context.Context, driver.Request) (driver.Hold, error) { return nil, ErrHeld }
	c.scripted.Connect(ctx, cfg)
	return c, nil
}

func (c *heldQueue) Lock(context.Context, driver.Request) (driver.Hold, error) {
	c.calls++
	return nil, ErrHeld
}
