package consul

import (
	"context"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

// manners make a process that has released a name let others try first. Consul has no queue: the next local contender
// would always win against those who still have to hear of the release, and they would starve.
//
// So an attempt that follows a release of the same name by this Conn starts a moment later: long enough for the others'
// blocking queries to return and their transactions to be sent. It does so each time while somebody else was seen to
// hold the name lately, and otherwise now and then, since who waits can't be seen: one part in idleShare of the time.
type manners struct {
	mu     sync.Mutex
	names  map[string]*seen // those that were used lately
	before map[string]*seen // those that were used before that
	turned driver.Instant
	grant  time.Duration // how long a grant takes, smoothed
}

// seen is what is known of a name.
type seen struct {
	held     driver.Instant // when somebody else was last seen to hold it; zero if it has become free since
	foreign  driver.Instant // the same, and kept
	released driver.Instant // when this Conn last released it
	gave     driver.Instant // when this Conn last gave way
}

const (
	memory     = 10 * time.Second // what was seen is known for that long, up to twice
	minWay     = 2 * time.Millisecond
	maxWay     = 50 * time.Millisecond
	grantsAway = 3  // the way given, in grants
	idleShare  = 64 // ways given while nobody else is seen
)

// get returns what is known of a name, and with make an empty record if it is nothing. The mutex is held.
func (m *manners) get(now driver.Instant, name string, make bool) *seen {
	if m.names == nil || now.Sub(m.turned) > memory {
		m.names, m.before, m.turned = map[string]*seen{}, m.names, now
	}
	s := m.names[name]
	if s == nil {
		if s = m.before[name]; s == nil {
			if !make {
				return nil
			}
			s = &seen{}
		}
		m.names[name] = s
	}
	return s
}

// took notes how long a grant took.
func (m *manners) took(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.grant == 0 {
		m.grant = d
	}
	m.grant += (d - m.grant) / 8
}

// taken notes that somebody else holds the name.
func (m *manners) taken(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.foreign = now, now
}

// freed notes that nobody holds the name.
func (m *manners) freed(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.get(now, name, false); s != nil {
		s.held = driver.Instant{}
	}
}

// released notes that this Conn has released the name.
func (m *manners) released(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.released, s.held = now, driver.Instant{}
}

// seemsHeld reports whether somebody else was seen to hold the name, and not seen to release it.
func (m *manners) seemsHeld(now driver.Instant, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, false)
	return s != nil && !s.held.IsZero()
}

// giveWay waits as long as others should have to try first.
func (m *manners) giveWay(ctx context.Context, now driver.Instant, name string) error {
	d := m.way(now, name)
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// way returns how long to give way from now on.
func (m *manners) way(now driver.Instant, name string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, false)
	if s == nil || s.released.IsZero() {
		return 0
	}
	way := min(max(grantsAway*m.grant, minWay), maxWay)
	left := way - now.Sub(s.released)
	contended := !s.foreign.IsZero() && now.Sub(s.foreign) < memory
	if left <= 0 || !contended && !s.gave.IsZero() && now.Sub(s.gave) < idleShare*way {
		return 0
	}
	s.gave = now
	return left
}
