package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// setup is what a backend is measured with. The first subject is the raw client, which the ratios refer to.
type setup struct {
	server   string // what was measured, with its version
	subjects []subject
	ping     func(ctx context.Context) error // the least that a round trip can be
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
	alone    bool   // it can't wait, so it isn't measured under contention
	// open makes a client as a process would have it, with connections of its own. waits says that the client will have
	// to wait for others.
	open func(ctx context.Context, waits bool) (client, error)
}

// client is a subject that is connected.
type client struct {
	acquire acquire
	close   func()
}

// acquire takes the lock of a name, waiting if need be, and returns the function that releases it.
type acquire func(ctx context.Context, name string) (release func(context.Context) error, err error)

func (c client) cycle(ctx context.Context, name string) error {
	release, err := c.acquire(ctx, name)
	if err != nil {
		return err
	}
	return release(ctx)
}

// ofLocker is what a program does that knows nothing of the backend.
func ofLocker(open func(context.Context) (locker.Locker, error)) func(context.Context, bool) (client, error) {
	return func(ctx context.Context, _ bool) (client, error) {
		l, err := open(ctx)
		if err != nil {
			return client{}, err
		}
		return client{
			acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
				lease, err := l.Acquire(ctx, name)
				if err != nil {
					return nil, err
				}
				return lease.Release, nil
			},
			close: func() { l.Close() },
		}, nil
	}
}

// ofURL opens a Locker by its URL.
func ofURL(url string, o options) func(context.Context, bool) (client, error) {
	return ofLocker(func(ctx context.Context) (locker.Locker, error) {
		return locker.Open(ctx, url, &locker.Options{TTL: o.ttl})
	})
}

// ofDriver is a driver without the engine.
func ofDriver(url string, o options) func(context.Context, bool) (client, error) {
	return func(ctx context.Context, _ bool) (client, error) {
		connector, err := driver.Parse(url)
		if err != nil {
			return client{}, err
		}
		c, err := connector.Connect(ctx, driver.Config{TTL: o.ttl, Owner: "bench:1", Logger: slog.New(slog.DiscardHandler), Now: clock.System})
		if err != nil {
			return client{}, err
		}
		return client{
			acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
				hold, err := c.TryLock(ctx, driver.Request{Name: name, ID: random(), Owner: "bench:1"})
				if err != nil {
					return nil, err
				}
				return hold.Release, nil
			},
			close: func() { c.Close() },
		}, nil
	}
}

// random returns what tells one holder from another: 128 bits.
func random() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

var (
	errHeld    = errors.New("held by another")
	errNotHeld = errors.New("not held any more")
)
