package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/leasekit/locker"
)

// options returns what the flags say about the locker, and lets backend know the backend's name.
func (f *runFlags) options(backend *string) *locker.Options {
	o := &locker.Options{TTL: f.ttl.d, MaxHold: f.maxHold.d, Require: f.require.kind}
	o.Hooks.Acquired = func(_ context.Context, e locker.Event) {
		*backend = e.Backend
		if f.verbose {
			f.say("acquired %q: backend %s, kind %v, token %d, waited %v", e.Name, e.Backend, e.Kind, e.Token, e.Wait.Round(time.Millisecond))
		}
	}
	if f.verbose {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		o.Hooks.Released = func(_ context.Context, e locker.Event) {
			if e.Err == nil {
				f.say("released %q after %v", e.Name, e.Held.Round(time.Millisecond))
			}
		}
	}
	return o
}
