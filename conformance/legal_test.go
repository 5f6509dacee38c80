package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/stretchr/testify/require"
)

// oddBackend is correct, and odd in every way that the contract allows: it is slow, grants a longer TTL than was asked,
// gives no remaining time of a holder, hints late, twice and without a reason, closes subscriptions, reports losses twice
// and renewals from several goroutines, and has a poll of its own.
func oddBackend() conformance.Backend {
	store := memory.New()
	h := &hub{watchers: make(map[string][]chan struct{})}
	b := memoryBackend(time.Second)
	b.Admin = memoryAdmin(store)
	b.TakeOver = 3 * time.Second
	s := spoiled{Connector: longer{store}, info: func(i *driver.Info) { i.Poll = 700 * time.Millisecond }}
	s.spoil = func(c *spoiledConn) {
		c.mapped(func(req driver.Request) driver.Request {
			if lost := req.Lost; lost != nil {
				req.Lost = func(err error) { lost(err); lost(fmt.Errorf("again: %w", err)) }
			}
			return req
		})
		c.granting(func(next func() (driver.Hold, error), _ driver.Request) (driver.Hold, error) {
			slow()
			hold, err := next()
			slow()
			if errors.Is(err, driver.ErrHeld) {
				err = fmt.Errorf("odd: %w", driver.ErrHeld)
			}
			return hold, err
		})
		c.holding(func(req driver.Request, hold driver.Hold) spoiledHold {
			return spoiledHold{Hold: hold, release: func(ctx context.Context) error {
				err := hold.Release(ctx)
				slow()
				h.hint(req.Name)
				return err
			}}
		})
		undo := c.undo
		c.undo = func(ctx context.Context, req driver.Request) error {
			err := undo(ctx, req)
			h.hint(req.Name)
			return err
		}
		renew := c.renew
		c.renew = func(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
			slow()
			var wg sync.WaitGroup
			for i := range holds {
				wg.Go(func() {
					renew(ctx, holds[i:i+1], func(_ int, r driver.Renewal) { report(i, r) })
				})
			}
			wg.Wait()
			return 0
		}
		c.watch = h.watch
	}
	b.Connector = func([]string) (driver.Connector, error) { return s, nil }
	return b
}

// slow takes a while, which is short against the TTL.
func slow() { time.Sleep(3 * time.Millisecond) }

// longer grants half as much again as is asked for.
type longer struct{ *memory.Store }

func (l longer) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	cfg.TTL += cfg.TTL / 2
	return l.Store.Connect(ctx, cfg)
}

// hub hints at names, always twice and now and then without a reason.
type hub struct {
	mu       sync.Mutex
	watchers map[string][]chan struct{}
	n        int
}

func (h *hub) watch(_ context.Context, name string) (<-chan struct{}, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan struct{}, 1)
	h.watchers[name] = append(h.watchers[name], c)
	if h.n++; h.n%5 == 0 {
		return nil, nil, errors.New("no subscription this time")
	}
	if h.n%3 == 0 {
		c <- struct{}{} // for nothing
	}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, other := range h.watchers[name] {
			if other == c {
				h.watchers[name] = append(h.watchers[name][:i:i], h.watchers[name][i+1:]...)
			}
		}
	}, nil
}

func (h *hub) hint(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.watchers[name] {
		for range 2 {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

// TestOddVirtual shows that the suite has no false alarms about what is allowed.
func TestOddVirtual(t *testing.T) { conformance.RunVirtual(t, oddBackend) }

// TestCheck runs all cases that Check runs at once, in one store.
func TestCheck(t *testing.T) {
	b := memoryBackend(time.Second)
	var mu sync.Mutex
	var log []string
	b.Log = func(text string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, text)
	}
	synctest.Test(t, func(t *testing.T) {
		inside := memoryBackend(time.Second)
		inside.Log = b.Log
		require.NoError(t, conformance.Check(t.Context(), inside))
	})
	require.Contains(t, log, "OWN-02: excused, needs Admin.DropWaiter: a place in the queue is a value that nobody else can reach")
	for _, line := range log {
		require.Contains(t, line, "excused")
	}
}

// TestNotReady shows what the suite says about a backend that it can't test.
func TestNotReady(t *testing.T) {
	good := memoryBackend(time.Second)
	held := memoryBackend(time.Second)
	c, err := held.Connector(nil)
	require.NoError(t, err)
	l, err := locker.New(t.Context(), c, nil)
	require.NoError(t, err)
	defer l.Close()
	_, err = l.Acquire(t.Context(), "somebody's")
	require.NoError(t, err)

	for _, test := range []struct {
		what string
		b    func() conformance.Backend
		says string
	}{
		{"nothing", func() conformance.Backend { return conformance.Backend{} }, "Backend.Name is missing"},
		{"no URL", func() conformance.Backend {
			return conformance.Backend{Name: "x", TTL: time.Second}
		}, "Backend.URL of x is missing"},
		{"no TTL", func() conformance.Backend {
			return conformance.Backend{Name: "x", URL: func([]string) string { return "memory://" }}
		}, "Backend.TTL of x is missing"},
		{"an unknown driver", func() conformance.Backend {
			return conformance.Backend{Name: "x", TTL: time.Second, URL: func([]string) string { return "nobody://" }}
		}, "can't be opened"},
		{"an unknown case", func() conformance.Backend { b := good; b.RequireAll, b.Only = false, []string{"OWN-99"}; return b }, `no case "OWN-99"`},
		{"an unknown excuse", func() conformance.Backend {
			b := good
			b.Excuses = map[string]string{"Admin.Anything": "why not"}
			return b
		}, `no case and no need "Admin.Anything"`},
		{"part of what is required", func() conformance.Backend { b := good; b.Only = []string{"OWN-01"}; return b }, "exclude each other"},
		{"a store in use", func() conformance.Backend { return held }, `isn't empty: it has 1 entries, such as "somebody's"`},
		{"a server that isn't there", func() conformance.Backend {
			b := good
			b.NewLocker = func(ctx context.Context, c driver.Connector, o *locker.Options) (locker.Locker, error) {
				return locker.New(ctx, spoiled{Connector: c, spoil: func(c *spoiledConn) {
					c.tryLock = func(context.Context, driver.Request) (driver.Hold, error) { return nil, errors.New("no route to host") }
				}}, o)
			}
			return b
		}, "isn't there or doesn't grant a free name"},
		{"no lease", func() conformance.Backend {
			b := good
			b.NewLocker = func(ctx context.Context, c driver.Connector, o *locker.Options) (locker.Locker, error) {
				l, err := locker.New(ctx, c, o)
				return &spoiledLocker{Locker: l, acquire: func(context.Context, bool, string, acquirer) (locker.Lease, error) { return nil, nil }}, err
			}
			return b
		}, "without a lease and without an error"},
	} {
		t.Run(test.what, func(t *testing.T) {
			err := conformance.Check(t.Context(), test.b())
			require.ErrorContains(t, err, test.says)
			require.True(t, strings.HasPrefix(err.Error(), "conformance: "), "%v", err)
		})
	}
}

// TestRequireAll shows that a case which can't be run is a failure where all are required, and an excuse isn't one.
func TestRequireAll(t *testing.T) {
	b := memoryBackend(time.Second)
	delete(b.Excuses, "Admin.DropWaiter")
	var err error
	synctest.Test(t, func(t *testing.T) {
		inside := memoryBackend(time.Second)
		inside.Excuses = b.Excuses
		err = conformance.Check(t.Context(), inside)
	})
	require.ErrorContains(t, err, "OWN-02: ")
	require.ErrorContains(t, err, "not run: needs Admin.DropWaiter")
	require.NotContains(t, err.Error(), "OWN-17c")
}
