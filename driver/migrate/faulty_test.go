package migrate

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// faulty is a store behind a connection that fails as the test says.
type faulty struct {
	driver.Connector
	release func(apply func()) error // instead of a release
	advance error
	renew   error
}

func (f *faulty) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	c, err := f.Connector.Connect(ctx, cfg)
	return &faultyConn{c, f}, err
}

type faultyConn struct {
	driver.Conn
	f *faulty
}

type faultyHold struct {
	driver.Hold
	f *faulty
}

func (c *faultyConn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	h, err := c.Conn.TryLock(ctx, req)
	if err != nil {
		return nil, err
	}
	return &faultyHold{h, c.f}, nil
}

func (h *faultyHold) Release(ctx context.Context) error {
	if h.f.release != nil {
		return h.f.release(func() { h.Hold.Release(ctx) })
	}
	return h.Hold.Release(ctx)
}

func (c *faultyConn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) int {
	inner := make([]driver.Hold, len(holds))
	for i, h := range holds {
		inner[i] = h.(*faultyHold).Hold
	}
	return c.Conn.Renew(ctx, inner, func(i int, r driver.Renewal) {
		if c.f.renew != nil {
			r = driver.Renewal{Err: c.f.renew}
		}
		report(i, r)
	})
}

func (c *faultyConn) Advance(ctx context.Context, h driver.Hold, floor uint64) error {
	if c.f.advance != nil {
		return c.f.advance
	}
	return c.Conn.(driver.Advancer).Advance(ctx, h.(*faultyHold).Hold, floor)
}

func connectTo(t *testing.T, c driver.Connector) driver.Conn {
	t.Helper()
	conn, err := c.Connect(t.Context(), driver.Config{TTL: ttl, Owner: "test", Logger: slog.New(slog.DiscardHandler), Now: clock.Monotonic})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

var ids int

// request asks for a name with a new identity.
func request(name string) driver.Request {
	ids++
	return driver.Request{Name: name, ID: string(rune('a'+ids%26)) + "0000000000000000000000000000000"[:31], Owner: "test"}
}

// renew renews one hold.
func renew(t *testing.T, c driver.Conn, h driver.Hold) (result driver.Renewal) {
	t.Helper()
	c.Renew(t.Context(), []driver.Hold{h}, func(_ int, r driver.Renewal) { result = r })
	return result
}
