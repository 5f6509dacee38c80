package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// defaultTTL is package locker's.
const defaultTTL = 15 * time.Second

// lookBound is how long a command that only looks may take unless --timeout says otherwise.
const lookBound = 10 * time.Second

// backend is a connection for looking: the driver alone, since nothing is locked.
type backend struct {
	driver.Conn
	info driver.Info
	ttl  time.Duration
}

// connect connects to where a URL leads.
func connect(ctx context.Context, rawURL string) (*backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	// What all URLs can hold is package locker's, and matters here only for the TTL.
	ttl, _ := u.Duration("ttl")
	u.Duration("max-hold")
	u.Param("owner")
	var require locker.Kind
	if text, ok := u.Param("require"); ok {
		if err := require.UnmarshalText([]byte(text)); err != nil {
			u.Errorf("parameter %q: %q is neither efficiency nor correctness", "require", text)
		}
	}
	connector, err := u.Connector()
	if err != nil {
		return nil, err
	}
	b := &backend{info: connector.Info(), ttl: ttl}
	if require == locker.Correctness && !b.info.Correctness {
		return nil, fmt.Errorf("%w: %s gives locks of kind efficiency, and correctness is required", driver.ErrConfig, b.info.Backend)
	}
	if ttl == 0 {
		b.ttl = max(defaultTTL, b.info.MinTTL)
		if b.info.MaxTTL > 0 {
			b.ttl = min(b.ttl, b.info.MaxTTL)
		}
	}
	if g := b.info.Granularity; g > 0 {
		b.ttl = (b.ttl + g - 1) / g * g
	}
	now := clock.System
	if b.info.MonotonicOnly {
		now = clock.Monotonic
	}
	host, _ := os.Hostname()
	b.Conn, err = connector.Connect(ctx, driver.Config{
		TTL: b.ttl, Owner: fmt.Sprintf("%s:%d", host, os.Getpid()), Logger: slog.New(slog.DiscardHandler), Now: now,
	})
	return b, err
}

// inspector returns the connection's ability to look at locks.
func (b *backend) inspector() (driver.Inspector, error) {
	i, ok := b.Conn.(driver.Inspector)
	if !ok {
		return nil, fmt.Errorf("%w: locks of %s can't be looked at", driver.ErrConfig, b.info.Backend)
	}
	return i, nil
}

// looking runs f on a connection, within a time.
func (l *lookFlags) looking(ctx context.Context, f func(context.Context, *backend) error) error {
	rawURL, err := l.url.value()
	if err != nil {
		return lockError(fmt.Errorf("locker: %w", err))
	}
	bound := lookBound
	if l.timeout.set {
		bound = l.timeout.d
	}
	ctx, stop := context.WithTimeout(ctx, bound)
	defer stop()
	b, err := connect(ctx, rawURL)
	if err == nil {
		defer b.Close()
		err = f(ctx, b)
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit
	}
	if err != nil {
		return lockError(fmt.Errorf("locker: %w", err))
	}
	return nil
}
