// Package locker holds locks that live outside the process, on whichever backend the deployment has: Redis, Redlock,
// etcd, ZooKeeper, Consul, a local directory or memory.
//
//	err := locker.Do(ctx, l, "nightly", func(ctx context.Context, lease locker.Lease) error {
//		return report(ctx) // only here, as long as ctx lasts
//	}, locker.WithMaxWait(0))
//
// A lock of this kind is a lease: it can end while its holder still works, because the process was paused, the network
// was cut or the server lost it. Three things follow, and the package gives each of them its place:
//
//   - The holder is told. [Lease].Context ends when the lease ends, at the latest before the backend can grant the name
//     to somebody else, with no help from the backend.
//   - Being told isn't enough, since a process that is paused right before a write writes when it wakes up. Every lease
//     has a [Token] that is greater than those of all earlier holders, so that what is written to can refuse.
//   - Locks differ in what they can promise. [Kind] says whether two holders are possible when timing assumptions break.
//
// Locks aren't re-entrant, on any backend: each acquisition has an identity of its own, and acquiring a name that the
// same process holds waits like any other.
//
// A driver is chosen by importing it and by a URL:
//
//	import _ "github.com/leasekit/locker/driver/redis"
//
//	l, err := locker.Open(ctx, "redis://127.0.0.1:6379", nil)
package locker

import (
	"context"
	"time"
)

// Token orders the holders of a name: it is greater than the token of every earlier holder. It is never 0 and at most
// math.MaxInt64, so that it fits an SQL BIGINT. The documentation of each driver says what its order survives.
type Token uint64

// Locker is one backend. It is safe for concurrent use.
//
// Locker and [Lease] are complete: no method will be added within a major version, new abilities become functions of
// this package. A fake for tests can embed the interface.
//
// Errors are of type *[Error].
type Locker interface {
	// Acquire waits until the name is held or ctx ends. ctx bounds the wait only, as in net.Dialer.DialContext: its end
	// afterwards doesn't end the lease. Without a deadline it waits for as long as it takes, also while the backend is
	// away.
	//
	// It returns a live lease or an error, and never an error that matches ErrLost. An error matches ErrHeld or
	// ErrUnavailable if the wait ran out, and then ctx's error too, unless it was WithMaxWait that bounded the wait;
	// ErrConfig, ErrInvalidName, ErrConflict or ErrDenied if waiting is of no use; ErrClosed.
	//
	// Goroutines of one Locker that wait for the same name are served first come, first served, and only the first of
	// them contends at the backend.
	Acquire(ctx context.Context, name string, opts ...AcquireOption) (Lease, error)

	// TryAcquire makes one attempt and doesn't wait for a holder: the error matches ErrHeld if there is one, or if this
	// process has waiters for the name already. It takes at most 10 s if ctx has no deadline; an error of a backend that
	// doesn't answer by then matches ErrUnavailable.
	TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (Lease, error)

	// Kind says what the locks may be used for.
	Kind() Kind

	// Close ends waits with ErrClosed, ends all leases, lets functions that run in Do return, and releases everything,
	// within 5 s. It returns an error matching ErrUnavailable if not every release was confirmed; those entries end with
	// their TTL. Further calls return nil.
	Close() error
}

// Lease is one acquisition of a name. It is safe for concurrent use.
type Lease interface {
	// Name returns the name as it was given to Acquire.
	Name() string

	// Context returns a context that ends when the lease ends, whatever the reason: at the latest when the TTL, less a
	// margin, has passed since the last confirmed renewal was sent. context.Cause says why: an error matching ErrLost
	// (also ErrMaxHold or ErrClosed), or ErrReleased. It has the values of Acquire's context, but not its cancellation.
	//
	// Its methods look at the clock when they are called, so that a process that was paused past the deadline sees an
	// ended context before any timer has fired. A context derived from it sees the end once this one was asked or the
	// timer fired: after a pause, ask this one before an action that matters. Err is context.DeadlineExceeded after
	// MaxHold and context.Canceled otherwise; Deadline reports a MaxHold limit only.
	Context() context.Context

	// Token returns the fencing token. It is fixed for the lease's life.
	Token() Token

	// Kind returns the kind of the Locker.
	Kind() Kind

	// TTL returns the time to live that the backend has granted, which some backends round up.
	TTL() time.Duration

	// Remaining returns how long the lease lasts unless it is renewed before; it is <= 0 once the lease has ended.
	Remaining() time.Duration

	// Release ends the lease and frees the name. It takes at most 5 s, or what is left of the entry's TTL if that is
	// less. Cancelling ctx doesn't cut it short, so that a cancelled request still frees its lock; a deadline of ctx that
	// is still ahead does.
	//
	// It returns nil once the name is free; an error matching ErrLost if the lease had ended before; an error matching
	// ErrUnavailable if the release wasn't confirmed in time: the entry is then removed in the background, or ends with
	// its TTL. It never touches another holder's entry. A second call returns the result of the first.
	Release(ctx context.Context) error
}
