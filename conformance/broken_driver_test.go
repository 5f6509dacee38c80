package conformance_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/leasekit/locker/internal/clock"
)

// brokenDrivers are memory drivers, each with one thing wrong.
var brokenDrivers = []struct {
	what  string
	caseN string
	info  func(*driver.Info)
	spoil func(*spoiledConn, *memory.Store)
	plain bool // it has no queue
}{
	{what: "ignores the holder", caseN: "EXCLUSION-1", plain: true, spoil: func(c *spoiledConn, s *memory.Store) {
		next := c.tryLock
		c.tryLock = func(ctx context.Context, req driver.Request) (driver.Hold, error) {
			h, err := next(ctx, req)
			if errors.Is(err, driver.ErrHeld) {
				s.Expire(req.Name)
				return next(ctx, req)
			}
			return h, err
		}
		c.deaf()
	}},
	{what: "has one token for all", caseN: "TOK-01", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.holding(func(_ driver.Request, h driver.Hold) spoiledHold {
			return spoiledHold{Hold: h, grant: func(g driver.Grant) driver.Grant { g.Token = 7; return g }}
		})
	}},
	{what: "counts tokens anew in each client", caseN: "TOK-01", spoil: func(c *spoiledConn, _ *memory.Store) {
		n := uint64(0)
		c.holding(func(_ driver.Request, h driver.Hold) spoiledHold {
			n++
			token := n
			return spoiledHold{Hold: h, grant: func(g driver.Grant) driver.Grant { g.Token = token; return g }}
		})
	}},
	{what: "renews the dead", caseN: "OWN-17a", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.deaf()
		c.renew = func(_ context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			for i := range holds {
				report(i, driver.Renewal{Sent: clock.Monotonic(), TTL: c.cfg.TTL})
			}
			return 0
		}
	}},
	{what: "reads that the entry has gone as a failure of the moment", caseN: "OWN-06", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.deaf()
		next := c.renew
		c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			return next(ctx, holds, func(i int, r driver.Renewal) {
				if r.Err != nil {
					r.Err = errors.New("404")
				}
				report(i, r)
			})
		}
	}},
	{what: "creates the entry anew when it renews", caseN: "OWN-17a", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.deaf()
		reqs, again := new(sync.Map), c.tryLock
		c.holding(func(req driver.Request, h driver.Hold) spoiledHold {
			reqs.Store(h, req)
			return spoiledHold{Hold: h}
		})
		next := c.renew
		c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			return next(ctx, holds, func(i int, r driver.Renewal) {
				if r.Err != nil {
					req, _ := reqs.Load(holds[i].(spoiledHold).Hold)
					if _, err := again(ctx, req.(driver.Request)); err == nil {
						r = driver.Renewal{Sent: clock.Monotonic(), TTL: c.cfg.TTL}
					}
				}
				report(i, r)
			})
		}
	}},
	{what: "forgets to release", caseN: "RELEASE-1", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.holding(func(_ driver.Request, h driver.Hold) spoiledHold {
			return spoiledHold{Hold: h, release: func(context.Context) error { return nil }}
		})
	}},
	{what: "releases whoever holds the name", caseN: "OWN-05", spoil: func(c *spoiledConn, s *memory.Store) {
		c.deaf()
		c.holding(func(req driver.Request, h driver.Hold) spoiledHold {
			return spoiledHold{Hold: h, release: func(ctx context.Context) error {
				err := h.Release(ctx)
				s.Expire(req.Name)
				return err
			}}
		})
	}},
	{what: "undoes by name", caseN: "WAIT-01", spoil: func(c *spoiledConn, s *memory.Store) {
		undo := c.undo
		c.undo = func(ctx context.Context, req driver.Request) error {
			err := undo(ctx, req)
			s.Expire(req.Name)
			return err
		}
	}},
	{what: "takes a repeated request for a stranger", caseN: "WAIT-03", spoil: func(c *spoiledConn, _ *memory.Store) {
		tryLock := c.tryLock
		seen := new(sync.Map)
		c.tryLock = func(ctx context.Context, req driver.Request) (driver.Hold, error) {
			if _, again := seen.LoadOrStore(req.ID, true); again {
				req.ID += "-again"
			}
			return tryLock(ctx, req)
		}
		lock := c.lock
		c.lock = func(ctx context.Context, req driver.Request) (driver.Hold, error) {
			req.ID += "-again"
			return lock(ctx, req)
		}
	}},
	{what: "never lets an entry expire", caseN: "EXP-02b", spoil: func(c *spoiledConn, s *memory.Store) {
		forever, _ := s.Connect(context.Background(), driver.Config{TTL: 1000 * time.Hour, Logger: c.cfg.Logger, Now: c.cfg.Now})
		c.tryLock, c.renew, c.undo = forever.TryLock, forever.Renew, forever.Undo
		c.lock = forever.(driver.Queuer).Lock
		c.holding(func(_ driver.Request, h driver.Hold) spoiledHold {
			return spoiledHold{Hold: h, grant: func(g driver.Grant) driver.Grant { g.TTL = c.cfg.TTL; return g }}
		})
		renew := c.renew
		c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			return renew(ctx, holds, func(i int, r driver.Renewal) { r.TTL = c.cfg.TTL; report(i, r) })
		}
	}},
	{what: "adds to the TTL when it renews", caseN: "EXP-09", spoil: func(c *spoiledConn, s *memory.Store) {
		more, _ := s.Connect(context.Background(), driver.Config{TTL: 3 * c.cfg.TTL, Logger: c.cfg.Logger, Now: c.cfg.Now})
		c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			return more.Renew(ctx, holds, func(i int, r driver.Renewal) { r.TTL = c.cfg.TTL; report(i, r) })
		}
	}},
	{what: "folds case", caseN: "NAMES-1", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.mapped(func(req driver.Request) driver.Request { req.Name = strings.ToLower(req.Name); return req })
	}},
	{what: "decodes percent signs", caseN: "NAMES-1", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.mapped(func(req driver.Request) driver.Request {
			req.Name = strings.ReplaceAll(req.Name, "%2F", "/")
			return req
		})
	}},
	{what: "takes a name for all below it", caseN: "NAME-01", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.mapped(func(req driver.Request) driver.Request { req.Name, _, _ = strings.Cut(req.Name, "/"); return req })
	}},
	{what: "can't take control characters", caseN: "NAME-03", spoil: func(c *spoiledConn, _ *memory.Store) {
		c.granting(func(next func() (driver.Hold, error), req driver.Request) (driver.Hold, error) {
			if strings.ContainsAny(req.Name, "\x00\n") {
				return nil, driver.ErrConfig
			}
			return next()
		})
	}},
	{what: "renews whatever it has ever created", caseN: "FAULTS-1", spoil: func(c *spoiledConn, _ *memory.Store) {
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		renew := c.renew
		c.holding(func(_ driver.Request, h driver.Hold) spoiledHold {
			wg.Go(func() { // the heartbeat of a client library
				for ctx.Err() == nil {
					select {
					case <-time.After(c.cfg.TTL / 3):
					case <-ctx.Done():
					}
					renew(ctx, []driver.Hold{h}, func(int, driver.Renewal) {})
				}
			})
			return spoiledHold{Hold: h}
		})
		closeInner := c.close
		c.close = func() error { stop(); wg.Wait(); return closeInner() }
	}},
	{what: "asks all the time", caseN: "WAIT-16", plain: true, info: func(i *driver.Info) { i.Poll = 5 * time.Millisecond }},
}
