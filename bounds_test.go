package locker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

// TryAcquire ends within 10 s, also when no attempt is answered.
func TestTryAcquireIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		l := openLink(t, n, &Options{TTL: time.Minute})
		n.set(blackHole)
		began := time.Now()
		_, err := l.TryAcquire(t.Context(), "a")
		wantErr(t, err, ErrUnavailable)
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("it took %v", d)
		}
		n.set(up)
	})
}

// An attempt has 2 s or half of the TTL, if that is more: connecting may take longer than a short TTL. And it ends with the
// caller's context if that is earlier.
func TestAttemptsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, c := range []struct{ ttl, ctx, want time.Duration }{
			{100 * time.Millisecond, time.Hour, 2 * time.Second},
			{5 * time.Second, time.Hour, 5 * time.Second / 2},
			{time.Minute, time.Hour, tryBound / tryAttempts},
			{time.Minute, time.Second, time.Second},
		} {
			var got time.Duration
			s := &scripted{}
			s.try = func(ctx context.Context, _ driver.Request) (driver.Hold, error) {
				d, ok := ctx.Deadline()
				if !ok {
					t.Error("an attempt has no deadline")
				}
				got = time.Until(d)
				return s.grant(), nil
			}
			l, err := New(t.Context(), s, &Options{TTL: c.ttl})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), c.ctx)
			lease, err := l.Acquire(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			lease.Release(ctx)
			stop()
			l.Close()
			if got != c.want {
				t.Errorf("TTL %v, %v left: an attempt has %v, want %v", c.ttl, c.ctx, got, c.want)
			}
		}
	})
}

// A renewal has a sixth of the TTL, so that several fit in before the deadline; after one that failed it has a third, which
// is enough to connect anew on a slow network.
func TestRenewalsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		c := &deadlines{link: n}
		l := openLink(t, c, &Options{TTL: testTTL})
		lease := mustAcquire(t, l, "a")
		n.set(refuse)
		<-lease.Context().Done()
		n.set(up)
		if len(c.seen) < 3 {
			t.Fatalf("%d renewals", len(c.seen))
		}
		for i, got := range c.seen {
			if want := map[bool]time.Duration{true: testTTL / 6, false: testTTL / 3}[i == 0]; got != want {
				t.Errorf("renewal %d has %v, want %v", i, got, want)
			}
		}
	})
}

// deadlines notes how long renewals may take.
type deadlines struct {
	*link
	seen []time.Duration
}

func (c *deadlines) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	conn, err := c.link.Connect(ctx, cfg)
	return &deadlinesConn{conn, c}, err
}

type deadlinesConn struct {
	driver.Conn
	c *deadlines
}

func (d *deadlinesConn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	if at, ok := ctx.Deadline(); ok && len(holds) > 0 {
		d.c.seen = append(d.c.seen, time.Until(at))
	}
	return d.Conn.Renew(ctx, holds, report)
}

// Where grants say nothing about the network, since a session was renewed before, renewals do.
func TestRenewalOfASessionOnASlowNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.info.SharedSession = true
		n.latency, n.steady = testTTL/10, true
		failed := 0
		l := openLink(t, n, &Options{TTL: testTTL, Hooks: Hooks{RenewalFailed: func(context.Context, Event) { failed++ }}})
		lease := mustAcquire(t, l, "a")
		time.Sleep(20 * testTTL)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("lost: %v", context.Cause(lease.Context()))
		}
		if failed > 1 {
			t.Errorf("%d renewals failed, want one at most", failed)
		}
	})
}

// However often something is in doubt, Renew is called at the usual interval.
func TestHeartbeatIsNotPutOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newLink(memory.New())
		n.info.SharedSession = true
		e := openLink(t, n, &Options{TTL: testTTL}).(*engine)
		const rounds = 5
		for range rounds * 10 {
			e.beat.doubt()
			time.Sleep(testTTL / 30)
		}
		if got := n.count("batch"); got < rounds-1 || got > rounds+1 {
			t.Errorf("Renew was called %d times in %d intervals", got, rounds)
		}
	})
}

// Do leaves nothing behind at the caller's context, which may live for as long as the program.
func TestDoDetachesFromTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLink(t, memory.New(), nil)
		ctx := &watched{Context: context.Background(), done: make(chan struct{})}
		var work context.Context
		err := Do(ctx, l, "a", func(ctx context.Context, _ Lease) error {
			work = ctx
			return errors.New("failed")
		})
		if err == nil || work.Err() == nil {
			t.Errorf("error %v; the work's context ended: %v", err, work.Err() != nil)
		}
		if ctx.attached != 0 {
			t.Errorf("%d functions are left to be called at the end of the caller's context", ctx.attached)
		}
	})
}

// watched is a context that counts what waits for its end, as context.AfterFunc lets a context do.
type watched struct {
	context.Context
	done     chan struct{}
	attached int
}

func (w *watched) Done() <-chan struct{} { return w.done }

func (w *watched) AfterFunc(func()) (stop func() bool) {
	w.attached++
	stopped := false
	return func() bool {
		if stopped {
			return false
		}
		stopped = true
		w.attached--
		return true
	}
}
