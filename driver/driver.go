// Package driver is the interface between the engine of package locker and a backend.
//
// A program that takes locks doesn't import this package. An author of a driver implements [Connector], [Conn] and
// [Hold], adds the optional [Waiter] or [Queuer] where the backend can tell that a lock became free, calls [Register]
// in an init function, and runs the conformance suite. All that takes time belongs to the engine and is not written
// again: deadlines, renewal, waiting, retries, clean-up.
//
// # Answers and unknowns
//
// An error that matches [ErrHeld], [ErrNotHeld], [ErrConfig], [ErrConflict] or [ErrDenied] is an answer: the backend,
// or what is known before asking it, has decided. Any other error means that the outcome is unknown: the request may
// have been applied, may be applied still, or never was. A driver must not turn an unknown into an answer; the engine
// reports it as ErrUnavailable and goes on from there (see [Conn], Undo).
//
// # Rules for all methods
//
//  1. They are safe for concurrent use.
//  2. They return promptly when ctx ends, even where the client library takes no context; every ctx from the engine has
//     a deadline, except those of [Waiter] and [Queuer].
//  3. They don't retry, wait for a holder or renew on their own, and start no goroutine for these. A client library's
//     own heartbeat is allowed, but a lease's TTL is never counted from it unless the time at which the heartbeat was
//     sent is known.
//  4. The only clock they read is [Config].Now.
//  5. No error text and no log record holds a password or a token of the backend.
package driver

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasekit/locker/internal/clock"
)

// Instant is a reading of the engine's clock, which goes on while the machine is suspended. Drivers get it from
// [Config].Now and hand it back in [Renewal].Sent; they may compare two of them with Sub, Add and Before.
type Instant = clock.Instant

// Connector is a parsed, valid configuration of one backend. Making one causes no traffic.
type Connector interface {
	// Info describes the backend. It is called before Connect, so that what the caller requires is checked before any
	// traffic.
	Info() Info
	// Connect returns a Conn. It succeeds while servers are away: connections are made when they are first needed. It
	// may ask a server that answers whether the configuration is right, for at most a few seconds and not beyond ctx,
	// and fails only with an answer (ErrConfig, ErrConflict or ErrDenied).
	Connect(ctx context.Context, cfg Config) (Conn, error)
}

// Info describes a backend.
type Info struct {
	Backend     string // as it stands in errors and events: "redis"
	Correctness bool   // grants are backed by consensus or a kernel; false is efficiency, so that a forgetful driver is the weaker kind

	MinTTL      time.Duration // a TTL below is refused with ErrConfig; 0: no more than the engine's own minimum
	MaxTTL      time.Duration // a TTL above is refused with ErrConfig; 0: no less than the engine's own maximum
	Granularity time.Duration // TTLs are rounded up to a multiple of it; 0: any TTL is possible

	Margin       time.Duration // taken off each TTL when that is more than the engine's own margin of 1 % + 2 ms
	RenewDivisor int           // renewal is due TTL/RenewDivisor after Sent; 0 means 3
	Poll         time.Duration // the longest pause between two looks at a held name; 0 means 3 s

	// SharedSession says that entries live as long as a session which all holds of a Conn share, and don't expire one by
	// one. An entry that is left behind would then stay as long as anything else is held, so the engine never gives up
	// removing it.
	SharedSession bool
	// MonotonicOnly says that the backend's own time stops with the process, so that the suspend-aware clock isn't read.
	// Locks of such a driver work inside testing/synctest bubbles.
	MonotonicOnly bool
}

// Config is what the engine gives to a Conn.
type Config struct {
	TTL    time.Duration  // what is asked of the backend for each entry or session; within Info's bounds
	Owner  string         // the label of this process, for people; [Request].Owner repeats it
	Logger *slog.Logger   // never nil
	Now    func() Instant // the only clock a driver reads; virtual in tests
}

// Conn is a connection to a backend, or a pool of them.
type Conn interface {
	// TryLock makes one attempt to take a name and never waits for a holder.
	//
	//  1. If nobody holds the name, it creates the entry with the TTL of Config and returns a Hold. The token is minted
	//     by the grant itself: not before it, and never for an attempt that fails.
	//  2. If the entry is this request's own, that is if it carries req.ID, it sets the TTL anew and returns a Hold with
	//     the token of the first grant. The engine asks again with the same ID when a reply was lost. Any other ID,
	//     also one of this process, is a stranger.
	//  3. If somebody else holds the name, it returns an error that matches ErrHeld, made by [Held] where the holder's
	//     remaining TTL is known, and leaves nothing behind.
	//  4. If something that isn't a lock stands where the entry should be, it returns ErrConflict and leaves it as it is.
	//  5. After any other error the engine either asks again with the same ID or calls Undo with it, never both.
	//
	// A driver with a shared session renews it first when less than half of its TTL is left, and makes a new one when it
	// is gone; entries of the session before are not this request's own.
	TryLock(ctx context.Context, req Request) (Hold, error)

	// Undo removes whatever TryLock or [Queuer].Lock may have left under req.ID: an entry, a place in a queue. The
	// engine calls it, and repeats it until it returns nil, for each ID that it gives up while the outcome of the last
	// request is unknown, and never asks with that ID again.
	//
	//  1. It returns nil once nothing of the ID is there. An entry that can still appear later, because its request is
	//     on its way, must either expire by itself within its TTL, or be found and removed by a later Renew (which then
	//     reports that there is something unresolved), or belong to a session that is given up.
	//  2. It never touches an entry with another ID.
	//  3. It waits, as long as ctx lasts, for a request of that ID that is still under way in the client library.
	Undo(ctx context.Context, req Request) error

	// Renew proves that the holds' entries are still theirs, and sets their TTL anew to exactly the TTL of Config.
	//
	//  1. It calls report once for each hold, with its index, as soon as that hold's result is known, and returns after
	//     the last. report may be called from several goroutines and doesn't block. A hold whose result isn't known when
	//     ctx ends is reported with ctx's error.
	//  2. Renewal.Err is nil if the entry was there and carried the hold's ID, and Renewal.Sent is the time at which the
	//     request that set the TTL was sent. Renewing a shared session proves no entry: each one is looked at as well.
	//  3. ErrNotHeld says that the entry is gone or somebody else's: the lease has ended, and nothing is created anew.
	//  4. Any other error is an unknown; the engine tries again until the lease's deadline.
	//  5. Holds that live on different servers are renewed independently, so that one server that is silent delays no
	//     other hold's report.
	//
	// The engine calls Renew, with no holds if need be, as long as there are holds, calls of Queuer.Lock under way, or
	// unresolved entries: after a failed call that may have left something, and while Renew returns unresolved > 0. A
	// driver with a shared session renews it here and removes entries of its session that nobody asked for.
	Renew(ctx context.Context, holds []Hold, report func(i int, r Renewal)) (unresolved int)

	// Close ends all calls under way, gives up the session if there is one, and closes what the driver opened, but no
	// client that the program brought. It is called once, when no hold is left that the engine could still release, and
	// returns within a second.
	Close() error
}

// Request asks for a name.
type Request struct {
	Name  string // valid as by CheckName
	ID    string // 32 hexadecimal digits, random, of this acquisition alone
	Owner string // the label of the process, for people; no control characters

	// Lost tells the engine at once that the hold was lost, where a backend notifies. It is called with an error that
	// matches ErrNotHeld and says how it was lost, from any goroutine, also before TryLock or Lock returns; it doesn't
	// block, and calls after the first have no effect. It is a short cut: the next Renew finds the loss as well. nil
	// where nobody listens.
	Lost func(err error)
}

// Hold is an entry that was granted to this process.
type Hold interface {
	// Grant returns what the backend granted. It never changes; later renewals are reported by Renew.
	Grant() Grant
	// Release removes the entry if it is still this hold's, in one atomic step at the backend. It returns nil once the
	// entry is gone by this hold's release, ErrNotHeld if it was gone before or is somebody else's, and any other error
	// if that isn't known. The engine may call it again then.
	Release(ctx context.Context) error
}

// Grant is what a backend granted.
type Grant struct {
	Token uint64 // greater than that of every earlier grant of the name; at least 1, at most math.MaxInt64
	Renewal
}

// Renewal is the outcome of a grant or of a renewal.
type Renewal struct {
	// Sent is when the request was sent that last set the TTL at the server: under a shared session that is the
	// session's last keep-alive, not the acquire. The lease's deadline is Sent + TTL less a margin.
	Sent Instant
	TTL  time.Duration // what the backend granted, which may differ from what was asked
	Err  error         // of a renewal only: ErrNotHeld is a loss, any other error an unknown
}

// Waiter is implemented by a Conn that can tell when a name may have become free.
type Waiter interface {
	// Watch subscribes to a name and returns once it is subscribed, so that a change after Watch has returned is either
	// seen by the next look or hinted at. A hint says "look now": it may be spurious and it may be lost, since the engine
	// looks from time to time anyway. The channel has room for one hint and may be closed when the subscription broke;
	// the engine then looks and subscribes anew. ctx bounds the subscribing only. stop ends the subscription and
	// releases what it used; it is called once and doesn't block for long.
	Watch(ctx context.Context, name string) (hints <-chan struct{}, stop func(), err error)
}

// Queuer is implemented by a Conn whose backend has a queue, first come first served.
type Queuer interface {
	// Lock waits in the backend's own queue until the name is granted or ctx ends. The engine calls it after TryLock
	// has returned ErrHeld, for one waiter of a name at a time.
	//
	//  1. It takes a place in the queue, or finds the place that the same ID has taken before.
	//  2. It returns a Hold only after it has seen, later than the grant, that its own entry is there and belongs to the
	//     living session: an entry can be removed, or its session can end, while it is queued.
	//  3. If its own entry has gone while it was queued, it takes a new place or fails with an unknown error, at once.
	//  4. It returns ctx's error when ctx ends. After any error but an answer the engine calls Lock again with the same
	//     ID or calls Undo.
	//
	// It may keep timers for its own waiting. While it waits, the engine calls Conn.Renew at the usual interval.
	Lock(ctx context.Context, req Request) (Hold, error)
}

// Advancer is implemented by a Conn that can raise its tokens: see the migration between backends.
type Advancer interface {
	// Advance makes every later grant of the hold's name, by anyone who uses the same backend and prefix, carry a token
	// above floor. Tokens of other names may rise too. It never lowers a token, and fails with ErrNotHeld when the hold
	// is known to be lost.
	Advance(ctx context.Context, h Hold, floor uint64) error
}
