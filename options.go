package locker

import (
	"context"
	"log/slog"
	"time"
)

const (
	defaultTTL = 15 * time.Second
	minTTL     = 100 * time.Millisecond
	maxTTL     = 24 * time.Hour
)

// Options are what the code depends on. What the deployment decides belongs into the URL, where ttl=, require=,
// max-hold= and owner= set the same things; giving one of them twice with different values is an error. A nil *Options
// stands for defaults.
type Options struct {
	TTL     time.Duration // how long others wait after a crash; 0 means 15 s, otherwise from 100 ms to 24 h
	Require Kind          // the least kind that is accepted; 0 means any
	MaxHold time.Duration // ends each lease after this time, unless WithMaxHold says otherwise; 0 means no limit
	Owner   string        // a label for people, at most 128 bytes; "" means host:pid. It never grants anything
	Logger  *slog.Logger  // nil means silent
	Hooks   Hooks
}

// AcquireOptions are what AcquireOption functions set. It is exported so that a fake Locker can read them.
type AcquireOptions struct {
	MaxWait time.Duration // 0: as long as the context lasts; negative: one attempt
	MaxHold time.Duration // 0: as Options.MaxHold says; negative: no limit
}

// AcquireOption changes one acquisition.
type AcquireOption func(*AcquireOptions)

// WithMaxWait bounds the wait and not the work; d <= 0 means one attempt, as TryAcquire makes it. When it has run out,
// the error matches ErrHeld or ErrUnavailable and not context.DeadlineExceeded.
func WithMaxWait(d time.Duration) AcquireOption {
	return func(o *AcquireOptions) {
		if d <= 0 {
			d = -1
		}
		o.MaxWait = d
	}
}

// WithMaxHold ends the lease d after it was granted, with ErrMaxHold as the cause, and stops renewing it: a job that hangs
// doesn't keep the lock for ever. The name is freed by Release, as the work may still be running, or one TTL later.
// d <= 0 means no limit, whatever Options.MaxHold says.
func WithMaxHold(d time.Duration) AcquireOption {
	return func(o *AcquireOptions) {
		if d <= 0 {
			d = -1
		}
		o.MaxHold = d
	}
}

// Hooks are called synchronously when something happens, on the goroutine where it does. They must not block: renewals
// wait for them. Each may be nil. The context is the caller's for Acquired, AcquireFailed and Released, and the lease's
// for the others.
type Hooks struct {
	Acquired      func(context.Context, Event) // Token, Wait, Remaining
	AcquireFailed func(context.Context, Event) // Wait, Err
	Renewed       func(context.Context, Event) // Token, Held, Remaining
	RenewalFailed func(context.Context, Event) // Token, Held, Remaining, Err; it will be tried again
	Lost          func(context.Context, Event) // Token, Held, Err: what context.Cause says
	Released      func(context.Context, Event) // Token, Held, Err: nil, or why the release wasn't confirmed
}

// Event says what happened. Fields will be added.
type Event struct {
	Backend   string
	Name      string
	Kind      Kind
	Token     Token
	Wait      time.Duration // from the call of Acquire to its return
	Held      time.Duration // since the grant
	Remaining time.Duration // until the lease ends unless it is renewed before
	Err       error
}
