package locker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

// When an acquire's reply is lost, the same identity asks again and gets its own entry.
func TestLostReplyAsksAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		first := true
		n.fault = func(op, _ string) mode {
			if op == "try" && first {
				first = false
				return dropReply
			}
			return up
		}
		l := openLink(t, n, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		if left := lease.Remaining(); left < testTTL*9/10 {
			t.Errorf("Remaining() = %v: counted from the first attempt", left)
		}
		tries := n.all("try")
		if len(tries) != 2 || tries[0].id != tries[1].id {
			t.Errorf("attempts %v, want two with one identity", tries)
		}
	})
}

// An acquisition that is given up leaves nothing behind, whatever has become of its request.
func TestGivenUpLeavesNothing(t *testing.T) {
	for _, queuer := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			store := memory.New()
			n := newLink(store)
			n.hidden = !queuer
			n.latency = 20 * time.Millisecond
			n.info.Poll = 30 * time.Millisecond
			l := openLink(t, n, &Options{TTL: testTTL})
			for range 100 {
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), rand.N(60*time.Millisecond))
						defer cancel()
						lease, err := l.Acquire(ctx, "a")
						switch {
						case err == nil:
							time.Sleep(rand.N(time.Millisecond))
							if err := lease.Release(context.Background()); err != nil {
								t.Errorf("release: %v", err)
							}
						case !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable):
							t.Errorf("acquire: %v", err)
						}
					})
				}
				wg.Wait()
			}
			time.Sleep(testTTL) // a request that overtook its own undo ends with its TTL
			if held(t, store, "a") {
				t.Error("something is left, and nobody holds it")
			}
			e := l.(*engine)
			if e.mu.Lock(); len(e.sweep.items) != 0 || len(e.schedule.leases) != 0 || len(e.queues) != 0 {
				t.Errorf("the engine still holds %d sweeps, %d leases, %d queues", len(e.sweep.items), len(e.schedule.leases), len(e.queues))
			}
			e.mu.Unlock()
		})
	}
}

// A late request of an identity that was given up is found and removed, however long the link was down.
func TestUndoIsRepeatedUntilItSucceeds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.New()
		n := newLink(store)
		n.info.SharedSession = true
		n.fault = func(op, _ string) mode {
			if op == "try" {
				return dropReply
			}
			return up
		}
		l := openLink(t, n, &Options{TTL: testTTL})
		_, err := l.Acquire(t.Context(), "a", WithMaxWait(time.Second))
		wantErr(t, err, ErrUnavailable)
		wantNot(t, err, ErrHeld, context.DeadlineExceeded)
		synctest.Wait()
		if n.count("undo") == 0 {
			t.Error("no undo")
		}
		n.set(refuse)
		_, err = l.Acquire(t.Context(), "b", WithMaxWait(time.Second))
		wantErr(t, err, ErrUnavailable)
		time.Sleep(10 * testTTL)
		before := n.count("undo")
		if before < 10 {
			t.Errorf("%d undos in ten TTLs of silence", before)
		}
		n.set(up)
		time.Sleep(testTTL)
		after := n.count("undo")
		time.Sleep(10 * testTTL)
		if got := n.count("undo"); got != after {
			t.Error("undone for ever")
		}
	})
}

func TestWaitRanOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: testTTL})
		mustAcquire(t, l, "held")
		timeout := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		cancelled, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("changed my mind")
		cancel(reason)

		began := time.Now()
		_, err := l.Acquire(timeout(), "held")
		wantErr(t, err, context.DeadlineExceeded, ErrHeld)
		wantNot(t, err, ErrUnavailable, ErrLost)
		if d := time.Since(began); d != time.Second {
			t.Errorf("waited %v", d)
		}
		_, err = l.Acquire(t.Context(), "held", WithMaxWait(time.Second))
		wantErr(t, err, ErrHeld)
		wantNot(t, err, context.DeadlineExceeded, ErrUnavailable)
		_, err = l.Acquire(timeout(), "held", WithMaxWait(time.Hour))
		wantErr(t, err, context.DeadlineExceeded, ErrHeld)
		_, err = l.Acquire(cancelled, "free")
		wantErr(t, err, context.Canceled, ErrUnavailable, reason)
		_, err = l.Acquire(t.Context(), "held", WithMaxWait(0))
		wantErr(t, err, ErrHeld)

		for _, m := range []mode{refuse, blackHole} {
			n.set(m)
			_, err = l.Acquire(timeout(), "free")
			wantErr(t, err, context.DeadlineExceeded, ErrUnavailable)
			wantNot(t, err, ErrHeld)
			_, err = l.Acquire(t.Context(), "free", WithMaxWait(time.Second))
			wantErr(t, err, ErrUnavailable)
			wantNot(t, err, ErrHeld, context.DeadlineExceeded)
			began := time.Now()
			_, err = l.TryAcquire(t.Context(), "free")
			wantErr(t, err, ErrUnavailable)
			wantNot(t, err, ErrHeld, context.DeadlineExceeded)
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("TryAcquire took %v", d)
			}
			began = time.Now()
			_, err = l.TryAcquire(timeout(), "free")
			wantErr(t, err, ErrUnavailable)
			if d := time.Since(began); d > time.Second {
				t.Errorf("TryAcquire with a deadline of 1 s took %v", d)
			}
		}
	})
}

// Transient errors while waiting are retried until the context ends; permanent ones end the wait at once.
func TestWaitingThroughAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.set(refuse)
		l := openLink(t, n, &Options{TTL: testTTL})
		began := time.Now()
		time.AfterFunc(time.Minute, func() { n.set(up) })
		mustAcquire(t, l, "a")
		if d := time.Since(began); d < time.Minute || d > time.Minute+2*maxBackoff {
			t.Errorf("acquired after %v", d)
		}
		if got := n.count("try"); got > 2*60+20 {
			t.Errorf("%d attempts in a minute of outage", got)
		}
	})
}

func TestPermanentErrorsEndTheWait(t *testing.T) {
	for _, want := range []error{ErrDenied, ErrConfig, ErrConflict} {
		bubble(t, func(t *testing.T) {
			l := openLink(t, &scripted{try: func(context.Context, driver.Request) (driver.Hold, error) {
				return nil, fmt.Errorf("%w: no right to write", want)
			}}, nil)
			began := time.Now()
			_, err := l.Acquire(t.Context(), "a")
			wantErr(t, err, want)
			wantNot(t, err, ErrUnavailable, ErrHeld)
			if time.Since(began) != 0 {
				t.Errorf("took %v", time.Since(began))
			}
		})
	}
}

// A holder that goes without a notification is noticed at the end of its TTL, and a lost hint within a poll.
func TestLostHints(t *testing.T) {
	for _, remaining := range []time.Duration{0, time.Second, time.Hour} {
		bubble(t, func(t *testing.T) {
			free := time.Now().Add(10 * time.Second)
			s := &scripted{}
			s.try = func(_ context.Context, req driver.Request) (driver.Hold, error) {
				if time.Now().Before(free) {
					return nil, driver.Held(remaining)
				}
				return s.grant(), nil
			}
			s.watch = func(string) (<-chan struct{}, func()) { return make(chan struct{}), func() {} }
			l := openLink(t, s, nil)
			mustAcquire(t, l, "a")
			if d := time.Since(free); d > defaultPoll {
				t.Errorf("remaining %v: noticed %v late", remaining, d)
			}
			least := int64(3)
			if remaining == time.Second {
				least = 9 // one after each second
			}
			if got := s.tries.Load(); got < least || got > 25 {
				t.Errorf("remaining %v: %d looks in 10 s", remaining, got)
			}
		})
	}
}

// The engine subscribes, then looks: what is freed in between is found by the look.
func TestSubscribeThenLook(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &scripted{}
		var subscribed atomic.Bool
		s.try = func(context.Context, driver.Request) (driver.Hold, error) {
			if subscribed.Load() {
				return s.grant(), nil
			}
			return nil, ErrHeld
		}
		unwatched := 0
		s.watch = func(string) (<-chan struct{}, func()) {
			subscribed.Store(true) // and the holder releases in the same moment
			return make(chan struct{}), func() { unwatched++ }
		}
		began := time.Now()
		l := openLink(t, s, nil)
		mustAcquire(t, l, "a")
		if time.Since(began) != 0 {
			t.Errorf("granted after %v", time.Since(began))
		}
		if unwatched != 1 {
			t.Errorf("%d subscriptions ended, want 1", unwatched)
		}
	})
}

// A hint brings a look at once; a storm of them doesn't bring a storm of looks.
func TestHints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &scripted{}
		var free atomic.Bool
		hints := make(chan struct{}, 1)
		s.try = func(context.Context, driver.Request) (driver.Hold, error) {
			if free.Load() {
				return s.grant(), nil
			}
			return nil, ErrHeld
		}
		s.watch = func(string) (<-chan struct{}, func()) { return hints, func() {} }
		l := openLink(t, s, nil)
		granted := make(chan time.Time)
		go func() {
			l.Acquire(t.Context(), "a")
			granted <- time.Now()
		}()
		storm := time.Now()
		for time.Since(storm) < 10*time.Second {
			select {
			case hints <- struct{}{}:
			default:
			}
			time.Sleep(time.Millisecond)
		}
		if got := s.tries.Load(); got > 200 {
			t.Errorf("%d looks in 10 s of spurious hints", got)
		}
		time.Sleep(30 * time.Second)
		before := s.tries.Load()
		time.Sleep(30 * time.Second)
		if got := s.tries.Load() - before; got > 2*30 {
			t.Errorf("%d looks in 30 idle seconds", got)
		}
		free.Store(true)
		freed := time.Now()
		hints <- struct{}{}
		if d := (<-granted).Sub(freed); d > 2*maxHintPause {
			t.Errorf("granted %v after the hint", d)
		}
	})
}

// A subscription that breaks is made anew, after a look.
func TestBrokenSubscription(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &scripted{}
		s.try = func(context.Context, driver.Request) (driver.Hold, error) { return nil, ErrHeld }
		watches := 0
		s.watch = func(string) (<-chan struct{}, func()) {
			watches++
			broken := make(chan struct{})
			time.AfterFunc(time.Millisecond, func() { close(broken) })
			return broken, func() {}
		}
		l := openLink(t, s, nil)
		_, err := l.Acquire(t.Context(), "a", WithMaxWait(time.Minute))
		wantErr(t, err, ErrHeld)
		if watches < 10 || watches > 1500 {
			t.Errorf("subscribed %d times in a minute", watches)
		}
	})
}

// The engine calls Renew without holds while a queued wait or an unresolved entry needs it, and no longer.
func TestHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		a, b := openLink(t, memory.New(), nil), openLink(t, n, &Options{TTL: testTTL})
		_ = a
		holder := openLink(t, n.store, &Options{TTL: time.Hour})
		lease := mustAcquire(t, holder, "a")
		got := make(chan error)
		go func() {
			lease, err := b.Acquire(t.Context(), "a")
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		time.Sleep(10 * testTTL)
		beats := n.count("batch")
		if beats < 25 || beats > 31 {
			t.Errorf("%d renewals in ten TTLs of waiting, want one each third of a TTL", beats)
		}
		lease.Release(t.Context())
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(testTTL)
		beats = n.count("batch")
		time.Sleep(10 * testTTL)
		if n.count("batch") != beats {
			t.Error("renewed while there is nothing to renew")
		}

		n.set(dropReply)
		_, err := b.TryAcquire(t.Context(), "b")
		wantErr(t, err, ErrUnavailable)
		n.set(up)
		time.Sleep(2 * testTTL)
		if n.count("batch") == beats {
			t.Error("not renewed although an entry was unresolved")
		}
	})
}

// A driver that breaks its contract by granting no token doesn't make a lease.
func TestInvalidTokenIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &scripted{}
		s.try = func(context.Context, driver.Request) (driver.Hold, error) {
			g := s.grant().(*lateHold)
			g.grant.Token = 0
			return g, nil
		}
		l := openLink(t, s, nil)
		_, err := l.TryAcquire(t.Context(), "a")
		wantErr(t, err, ErrUnavailable)
	})
}

// scripted is a driver that does what the test says.
type scripted struct {
	now   func() driver.Instant
	ttl   time.Duration
	tries atomic.Int64
	token atomic.Uint64
	freed atomic.Int64

	try   func(context.Context, driver.Request) (driver.Hold, error)
	watch func(name string) (<-chan struct{}, func())
}

func (s *scripted) Info() driver.Info {
	return driver.Info{Backend: "scripted", Correctness: true, MonotonicOnly: true}
}
func (s *scripted) Connect(_ context.Context, cfg driver.Config) (driver.Conn, error) {
	s.now, s.ttl = cfg.Now, cfg.TTL
	return s, nil
}
func (s *scripted) grant() driver.Hold {
	return &lateHold{driver.Grant{Token: s.token.Add(1), Renewal: driver.Renewal{Sent: s.now(), TTL: s.ttl}}, &s.freed}
}
func (s *scripted) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	s.tries.Add(1)
	return s.try(ctx, req)
}
func (s *scripted) Undo(context.Context, driver.Request) error { return nil }
func (s *scripted) Renew(_ context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	for i := range holds {
		report(i, driver.Renewal{Sent: s.now(), TTL: s.ttl})
	}
	return 0
}
func (s *scripted) Watch(_ context.Context, name string) (<-chan struct{}, func(), error) {
	if s.watch == nil {
		return nil, nil, errRefused
	}
	hints, stop := s.watch(name)
	return hints, stop, nil
}
func (s *scripted) Close() error { return nil }
