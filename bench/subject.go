package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// setup is what a backend is measured with. The first subject is the raw client, which the ratios refer to.
type setup struct {
	server   string // what was measured, with its version
	subjects []subject
	close    func()
}

func (s *setup) settings() map[string]string {
	settings := make(map[string]string)
	for _, x := range s.subjects {
		settings[x.name] = x.settings
	}
	return settings
}

// subject is one way to lock.
type subject struct {
	name     string
	settings string // for the reader
	peer     bool   // another library, which we compare ourselves with
	// acquire takes the lock of a name, waiting if need be, and returns the function that releases it.
	acquire func(ctx context.Context, name string) (release func(context.Context) error, err error)
}

func (s subject) cycle(ctx context.Context, name string) error {
	release, err := s.acquire(ctx, name)
	if err != nil {
		return err
	}
	return release(ctx)
}

// withLocker acquires through a Locker, whatever its backend.
func withLocker(l locker.Locker) func(context.Context, string) (func(context.Context) error, error) {
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		lease, err := l.Acquire(ctx, name)
		if err != nil {
			return nil, err
		}
		return lease.Release, nil
	}
}

// withDriver connects a driver, to measure it without the engine.
func withDriver(ctx context.Context, c driver.Connector, o options) (driver.Conn, error) {
	return c.Connect(ctx, driver.Config{TTL: o.ttl, Owner: "bench:1", Logger: slog.New(slog.DiscardHandler), Now: clock.System})
}

// withConn acquires through a driver alone.
func withConn(c driver.Conn) func(context.Context, string) (func(context.Context) error, error) {
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		var b [16]byte
		rand.Read(b[:])
		hold, err := c.TryLock(ctx, driver.Request{Name: name, ID: hex.EncodeToString(b[:]), Owner: "bench:1"})
		if err != nil {
			return nil, err
		}
		return hold.Release, nil
	}
}
