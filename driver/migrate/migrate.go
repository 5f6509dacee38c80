// Package migrate moves a running fleet from one backend to another with mutual exclusion and rising tokens at every
// moment. It registers the scheme migrate:
//
//	migrate:?from=<url>&to=<url>&phase=both
//
// from and to are URLs of other drivers, percent-encoded as a whole, with those drivers' own parameters; what all URLs can
// hold (ttl, require, max-hold, owner) belongs to the outer one. Their drivers have to be imported.
//
// # Phases
//
// The fleet is deployed phase by phase, each to all of it before the next one begins:
//
//	old    locks on from alone
//	both   locks on from, then on to
//	new    locks on to alone
//
// Processes of two neighbouring phases exclude each other: those of old and both meet on from, those of both and new on
// to. Processes of old and new don't meet anywhere, and neither can know of the other. So look that no process of phase
// old is left before the first one of phase new starts; going back is the same way in the other direction.
//
// In phase both a lease's token is the larger one of both sides, and both are raised to it before the lease is returned, so
// that tokens rise across all phases. Raising needs [driver.Advancer] on both sides: redis, etcd, zookeeper, consul and
// memory have it. etcd, ZooKeeper and Consul are raised as a whole, for all names under the prefix; Redis is raised name by
// name and takes its server's time as the least. Let each fence that matters see one lease of phase both before phase new
// begins: what was never locked in phase both was never raised on a side that counts by name.
//
// A lease of phase both ends as soon as it is lost on either side. Its kind is the weaker one, and each bound is the
// worse one of both: the shortest TTL, the time of a take-over. A grant takes the round trips of both sides and one or two for
// raising, one after the other: take a TTL of at least ten round trips.
//
// Moving from a lock that isn't locker's (written by hand, redsync, consul lock) needs no phase, as long as the driver's
// prefix and the name give the very same entry.
package migrate

import (
	"context"
	"fmt"
	"time"

	"github.com/leasekit/locker/driver"
)

// Phase is how far a migration has gone.
type Phase string

const (
	Old  Phase = "old"  // locks on the old backend alone
	Both Phase = "both" // locks on the old backend, then on the new one
	New  Phase = "new"  // locks on the new backend alone
)

// Connect returns the connector of a phase, for a program that has its drivers' connectors already: in phase Old it is from
// and in phase New it is to. An unknown phase is ErrConfig.
func Connect(from, to driver.Connector, phase Phase) (driver.Connector, error) {
	switch phase {
	case Old:
		return from, nil
	case New:
		return to, nil
	case Both:
		return &connector{from, to}, nil
	}
	return nil, fmt.Errorf("%w: the phase of a migration is old, both or new, not %q", driver.ErrConfig, string(phase))
}

// connector is phase both.
type connector struct{ from, to driver.Connector }

// Info takes the worse of both sides, so that a lease keeps what either needs.
func (c *connector) Info() driver.Info {
	from, to := c.from.Info(), c.to.Info()
	return driver.Info{
		Backend:       "migrate",
		Correctness:   from.Correctness && to.Correctness,
		MinTTL:        max(from.MinTTL, to.MinTTL),
		MaxTTL:        smaller(from.MaxTTL, to.MaxTTL),
		Granularity:   multiple(from.Granularity, to.Granularity),
		Margin:        max(from.Margin, to.Margin),
		RenewDivisor:  max(from.RenewDivisor, to.RenewDivisor),
		Poll:          smaller(from.Poll, to.Poll),
		SharedSession: from.SharedSession || to.SharedSession,
		MonotonicOnly: from.MonotonicOnly && to.MonotonicOnly,
	}
}

// smaller returns the smaller of two durations of which 0 sets no bound.
func smaller(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// multiple returns the smallest duration that both divide; 0 divides all.
func multiple(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	d, rest := a, b
	for rest != 0 {
		d, rest = rest, d%rest
	}
	return a / d * b
}

func (c *connector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	from, err := connect(ctx, "from", c.from, cfg)
	if err != nil {
		return nil, err
	}
	to, err := connect(ctx, "to", c.to, cfg)
	if err != nil {
		from.conn.Close()
		return nil, err
	}
	return &conn{
		sides:   [2]*side{from, to},
		now:     cfg.Now,
		attempt: max(cfg.TTL/2, 2*time.Second),
		waiting: make(map[*waiting]struct{}),
		past:    make(map[string]*past),
	}, nil
}

func connect(ctx context.Context, role string, c driver.Connector, cfg driver.Config) (*side, error) {
	s := &side{role: role, info: c.Info()}
	var err error
	if s.conn, err = c.Connect(ctx, cfg); err != nil {
		return nil, s.said(err)
	}
	s.queuer, _ = s.conn.(driver.Queuer)
	s.waiter, _ = s.conn.(driver.Waiter)
	var ok bool
	if s.advancer, ok = s.conn.(driver.Advancer); !ok {
		s.conn.Close()
		return nil, fmt.Errorf("%w: %s: tokens of %s can't be raised, which a migration needs", driver.ErrConfig, role, s.info.Backend)
	}
	return s, nil
}
