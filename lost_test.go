package locker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

// A loss is reported once, and at once where the driver notifies, whoever finds out.
func TestEachLossIsReportedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, n *link, lease Lease)
		soon time.Duration
	}{
		"notified": {func(t *testing.T, n *link, _ Lease) { n.store.Expire("a") }, 0},
		"found by its renewal": {func(t *testing.T, n *link, lease Lease) {
			if err := n.conn.Undo(t.Context(), request("a", lease)); err != nil { // behind the holder's back
				t.Fatal(err)
			}
		}, testTTL / 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newLink(memory.New())
				var losses []Event
				l := openLink(t, n, &Options{TTL: testTTL, Hooks: Hooks{Lost: func(_ context.Context, e Event) { losses = append(losses, e) }}})
				lease := mustAcquire(t, l, "a")
				began := time.Now()
				c.lose(t, n, lease)
				<-lease.Context().Done()
				if d := time.Since(began); d > c.soon {
					t.Errorf("told after %v, want at most %v", d, c.soon)
				}
				time.Sleep(3 * testTTL)
				synctest.Wait()
				if len(losses) != 1 || !errors.Is(losses[0].Err, ErrLost) || losses[0].Token != lease.Token() {
					t.Errorf("reported: %+v, want one loss", losses)
				}
			})
		})
	}
}

// A driver can say that a hold was lost before TryLock has returned it. Nobody is granted that one; the acquisition begins
// again with another identity, in its place in the local queue.
func TestLostBeforeItIsGranted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &scripted{}
		ids := make(map[string]int)
		s.try = func(_ context.Context, req driver.Request) (driver.Hold, error) {
			ids[req.ID]++
			time.Sleep(time.Second) // the next one comes meanwhile
			if len(ids) == 1 {
				req.Lost(driver.ErrNotHeld)
			}
			return s.grant(), nil
		}
		l, err := New(t.Context(), s, &Options{TTL: testTTL})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		order := make(chan int, 2)
		for i := range 2 {
			go func() {
				lease, err := l.Acquire(context.Background(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				if err := lease.Context().Err(); err != nil {
					t.Errorf("granted and lost: %v", err)
				}
				order <- i
				lease.Release(context.Background())
			}()
			synctest.Wait()
		}
		if first, second := <-order, <-order; first != 0 || second != 1 {
			t.Errorf("granted in the order %d, %d", first, second)
		}
		if len(ids) != 3 {
			t.Errorf("%d identities, want 3: one was lost", len(ids))
		}
		synctest.Wait()
		if n := s.freed.Load(); n != 3 {
			t.Errorf("%d entries were removed, want 3", n)
		}
	})
}
