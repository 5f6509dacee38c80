package conformance_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
)

// brokenLockers are engines, each with one thing wrong.
var brokenLockers = []struct {
	what  string
	caseN string
	spoil func(*spoiledLocker)
	conn  func(*spoiledConn) // what it does with its driver
	info  func(*driver.Info)
	plain bool // it doesn't use the driver's queue
}{
	{what: "never tells the holder", caseN: "EXP-02a", spoil: leasing(func(_ context.Context, _ time.Time, l *spoiledLease) {
		l.ctx = context.Background()
	})},
	{what: "tells the holder when the server does", caseN: "EXP-02b", conn: func(c *spoiledConn) {
		// The deadline is far away; only an answer ends the lease.
		c.granting(func(next func() (driver.Hold, error), _ driver.Request) (driver.Hold, error) {
			h, err := next()
			if err != nil {
				return h, err
			}
			return spoiledHold{Hold: h, grant: func(g driver.Grant) driver.Grant { g.TTL += time.Hour; return g }}, nil
		})
		c.renew = unwrapping(c.renew)
	}},
	{what: "counts the deadline from the reply", caseN: "LEASE-1", conn: func(c *spoiledConn) {
		c.granting(func(next func() (driver.Hold, error), _ driver.Request) (driver.Hold, error) {
			h, err := next()
			now := c.cfg.Now()
			if err != nil {
				return h, err
			}
			return spoiledHold{Hold: h, grant: func(g driver.Grant) driver.Grant { g.Sent = now; return g }}, nil
		})
		c.renew = unwrapping(c.renew)
	}},
	{what: "counts the deadline from the first attempt", caseN: "EXP-04", spoil: leasing(func(_ context.Context, began time.Time, l *spoiledLease) {
		l.remaining = func(left time.Duration) time.Duration { return left - time.Since(began) }
	})},
	{what: "ends the lease with the acquisition's context", caseN: "EXP-20", spoil: leasing(func(ctx context.Context, _ time.Time, l *spoiledLease) {
		l.ctx = ctx
	})},
	{what: "takes any failed renewal for a loss", caseN: "EXP-06", conn: func(c *spoiledConn) {
		next := c.renew
		c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			return next(ctx, holds, func(i int, r driver.Renewal) {
				if r.Err != nil {
					r.Err = driver.ErrNotHeld
				}
				report(i, r)
			})
		}
	}},
	{what: "rounds the TTL down", caseN: "EXP-10", spoil: leasing(func(_ context.Context, _ time.Time, l *spoiledLease) {
		l.ttl = func(d time.Duration) time.Duration { return d.Truncate(time.Second) }
	})},
	{what: "releases on the dead context", caseN: "LEAK-05", spoil: leasing(func(_ context.Context, _ time.Time, l *spoiledLease) {
		l.release = func(ctx context.Context, next func(context.Context) error) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return next(ctx)
		}
	})},
	{what: "reports the second release as a loss", caseN: "SHUT-03", spoil: leasing(func(_ context.Context, _ time.Time, l *spoiledLease) {
		var released atomic.Bool
		l.release = func(ctx context.Context, next func(context.Context) error) error {
			if released.Swap(true) {
				return locker.ErrLost
			}
			return next(ctx)
		}
	})},
	{what: "panics at the second release", caseN: "SHUT-03", spoil: leasing(func(_ context.Context, _ time.Time, l *spoiledLease) {
		done := make(chan struct{})
		l.release = func(ctx context.Context, next func(context.Context) error) error {
			if ctx.Err() == nil {
				close(done)
			}
			return next(ctx)
		}
	})},
	{what: "grants token 0", caseN: "LEASE-3", spoil: leasing(func(_ context.Context, _ time.Time, l *spoiledLease) {
		l.token = func(locker.Token) locker.Token { return 0 }
	})},
	{what: "counts the token up", caseN: "TOK-05", spoil: leasing(func(_ context.Context, began time.Time, l *spoiledLease) {
		l.token = func(t locker.Token) locker.Token { return t + locker.Token(time.Since(began)/time.Second) }
	})},
	{what: "has no maximum hold", caseN: "LEAK-13", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, _ acquirer) (locker.Lease, error) {
			return s.Locker.Acquire(ctx, name)
		}
	}},
	{what: "reports success without a lease when it is cancelled", caseN: "OWN-01", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			l, err := next(ctx, name)
			if ctx.Err() != nil {
				return nil, nil
			}
			return l, err
		}
	}},
	{what: "swallows cancellation", caseN: "OWN-01", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			l, err := next(ctx, name)
			if ctx.Err() != nil {
				return nil, locker.ErrHeld
			}
			return l, err
		}
	}},
	{what: "leaves behind what a cancelled acquisition is granted", caseN: "LEAK-03", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, try bool, name string, next acquirer) (locker.Lease, error) {
			if try {
				return next(ctx, name)
			}
			type answer struct {
				l   locker.Lease
				err error
			}
			done := make(chan answer, 1)
			go func() {
				time.Sleep(150 * time.Microsecond) // what a network takes
				l, err := next(context.WithoutCancel(ctx), name)
				done <- answer{l, err}
			}()
			select {
			case a := <-done:
				return a.l, a.err
			case <-ctx.Done():
				return nil, &locker.Error{Op: "acquire", Name: name, Err: ctx.Err()}
			}
		}
	}},
	{what: "says held when the backend is away", caseN: "WAIT-12a", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			l, err := next(ctx, name)
			if errors.Is(err, locker.ErrUnavailable) {
				return nil, locker.ErrHeld
			}
			return l, err
		}
	}},
	{what: "tries without a bound", caseN: "WAIT-12b", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, try bool, name string, next acquirer) (locker.Lease, error) {
			for {
				l, err := next(ctx, name)
				if !try || !errors.Is(err, locker.ErrUnavailable) || ctx.Err() != nil {
					return l, err
				}
			}
		}
	}},
	{what: "waits no longer than a TTL", caseN: "WAIT-11", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			if _, has := ctx.Deadline(); !has {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, s.ttl)
				defer stop()
			}
			return next(ctx, name)
		}
	}},
	{what: "takes time off the wait that it hasn't", caseN: "WAIT-10", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			if d, has := ctx.Deadline(); has {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, time.Until(d)*9/10)
				defer stop()
			}
			return next(ctx, name)
		}
	}},
	{what: "gives up when the backend is away", caseN: "WAIT-24", conn: func(c *spoiledConn) {
		c.granting(func(next func() (driver.Hold, error), _ driver.Request) (driver.Hold, error) {
			h, err := next()
			if err != nil && !driver.IsAnswer(err) && !errors.Is(err, context.Canceled) {
				return nil, driver.ErrDenied
			}
			return h, err
		})
	}},
	{what: "never looks without a hint", caseN: "WAIT-07", plain: true, info: func(i *driver.Info) { i.Poll = 24 * time.Hour }, conn: func(c *spoiledConn) {
		c.watch = func(context.Context, string) (<-chan struct{}, func(), error) {
			return make(chan struct{}), func() {}, nil // the one hint was lost
		}
		c.granting(func(next func() (driver.Hold, error), _ driver.Request) (driver.Hold, error) {
			h, err := next()
			if errors.Is(err, driver.ErrHeld) {
				err = driver.ErrHeld // for an unknown time
			}
			return h, err
		})
	}},
	{what: "is re-entrant", caseN: "OWN-19", spoil: func(s *spoiledLocker) {
		var mine sync.Map
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			if l, ok := mine.Load(name); ok && l.(locker.Lease).Context().Err() == nil {
				return l.(locker.Lease), nil
			}
			l, err := next(ctx, name)
			if err == nil {
				mine.Store(name, l)
			}
			return l, err
		}
	}},
	{what: "keeps a name whose release has failed", caseN: "LEAK-07", spoil: func(s *spoiledLocker) {
		var stuck sync.Map
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			if _, is := stuck.Load(name); is {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			inner, err := next(ctx, name)
			if err != nil {
				return nil, err
			}
			return &spoiledLease{Lease: inner, release: func(ctx context.Context, next func(context.Context) error) error {
				err := next(ctx)
				if err != nil {
					stuck.Store(name, true)
				}
				return err
			}}, nil
		}
	}},
	{what: "starts a goroutine for each acquisition and forgets it", caseN: "LEAK-12", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			go time.Sleep(time.Hour)
			return next(ctx, name)
		}
	}},
	{what: "hangs in Close", caseN: "SHUT-01a", spoil: func(s *spoiledLocker) {
		s.close = func(next func() error) error {
			defer time.Sleep(time.Hour)
			return next()
		}
	}},
	{what: "doesn't release in Close", caseN: "SHUT-05", spoil: func(s *spoiledLocker) {
		s.close = func(func() error) error { return nil }
	}},
	{what: "works after Close", caseN: "WAIT-20", spoil: func(s *spoiledLocker) {
		s.close = func(func() error) error { return nil }
	}},
	{what: "doesn't say what failed", caseN: "WAIT-20", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			l, err := next(ctx, name)
			var le *locker.Error
			if errors.As(err, &le) {
				err = le.Err
			}
			return l, err
		}
	}},
	{what: "mends invalid names", caseN: "ERRORS-1", spoil: func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			return next(ctx, strings.ToValidUTF8(name, "?"))
		}
	}},
}

// unwrapping lets a Conn renew the holds that granting has wrapped.
func unwrapping(renew func(context.Context, []driver.Hold, func(int, driver.Renewal)) int) func(context.Context, []driver.Hold, func(int, driver.Renewal)) int {
	return func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
		inner := make([]driver.Hold, len(holds))
		for i, h := range holds {
			inner[i] = h.(spoiledHold).Hold
		}
		return renew(ctx, inner, report)
	}
}
