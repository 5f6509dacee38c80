package locker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

// engine is the one implementation of Locker: everything that takes time, over a driver that knows nothing of it.
type engine struct {
	conn   driver.Conn
	waiter driver.Waiter // nil if the driver has none
	queuer driver.Queuer // nil if the driver has none
	info   driver.Info
	kind   Kind
	now    func() driver.Instant
	start  driver.Instant

	ttl     time.Duration
	margin  time.Duration
	maxHold time.Duration
	owner   string
	log     *slog.Logger
	hooks   Hooks

	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	calls    sync.WaitGroup // acquisitions under way
	releases sync.WaitGroup // releases under way that began before Close
	work     sync.WaitGroup // renewals and sweeps under way

	mu       sync.Mutex
	closed   bool
	done     chan struct{}  // closed when Close is done
	doing    sync.WaitGroup // leases that Do will release
	queues   map[string]queue
	schedule schedule
	trip     time.Duration // from sending to the reply, of the newest grant or renewal
	sweep    sweep
	beat     heartbeat

	random randomIDs
}

func newEngine(info driver.Info, ttl time.Duration, o settings, now func() driver.Instant) *engine {
	e := &engine{
		info:    info,
		kind:    kindOf(info),
		now:     now,
		start:   now(),
		ttl:     ttl,
		margin:  max(info.Margin, marginOf(ttl)),
		maxHold: o.maxHold,
		owner:   o.owner,
		log:     o.logger.With("backend", info.Backend),
		hooks:   o.hooks,
		queues:  make(map[string]queue),
		done:    make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.schedule = schedule{e: e, fires: never}
	e.sweep = sweep{e: e}
	e.beat = heartbeat{e: e}
	return e
}

func (e *engine) connected(c driver.Conn) *engine {
	e.conn = c
	e.waiter, _ = c.(driver.Waiter)
	e.queuer, _ = c.(driver.Queuer)
	return e
}

func kindOf(info driver.Info) Kind {
	if info.Correctness {
		return Correctness
	}
	return Efficiency
}

// marginOf is how much earlier than the backend a holder believes that its lease is over: 1 % for clocks that run at
// different speeds, and 2 ms for expiry that the backend rounds. It is Redlock's drift allowance
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
func marginOf(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// interval is the time between renewals.
func (e *engine) interval() time.Duration {
	if n := e.info.RenewDivisor; n > 0 {
		return e.ttl / time.Duration(n)
	}
	return e.ttl / 3
}

func (e *engine) Kind() Kind { return e.kind }

// event fills in what all events have.
func (e *engine) event(name string) Event {
	return Event{Backend: e.info.Backend, Name: name, Kind: e.kind}
}

// report calls a hook about a lease and writes a record of it.
func (e *engine) report(hook func(context.Context, Event), ctx context.Context, l *lease, err error) {
	if hook == nil {
		return
	}
	ev := e.event(l.name)
	ev.Token, ev.Err = l.token, err
	ev.Held = e.now().Sub(l.acquired)
	ev.Remaining = l.Remaining()
	hook(ctx, ev)
}

// randomIDs makes identities of 128 random bits each, several at a time, since a system call and two allocations for each
// would cost more than everything else that the engine does for an acquisition. The engine's mutex guards it.
type randomIDs struct {
	bits [8 * 16]byte
	left string // of those made last
}

func (r *randomIDs) next() string {
	if r.left == "" {
		rand.Read(r.bits[:]) // it never fails: see crypto/rand
		r.left = hex.EncodeToString(r.bits[:])
		clear(r.bits[:])
	}
	id := r.left[:32]
	r.left = r.left[32:]
	return id
}
