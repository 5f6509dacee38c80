package consul

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

// manners make up for what Consul doesn't have: a queue.
//
// The next local contender after a release would always win against those in other processes, who still have to hear of
// the release, and they would starve. So an attempt that follows a release of the same name by this Conn starts a moment
// later: long enough for the others' blocking queries to return and their transactions to be sent. It does so each time
// while somebody else was seen to hold the name lately, and otherwise now and then, since who waits can't be seen: one
// part in idleShare of the time.
//
// Those who hear of a release would all try at once, and all but one in vain, at the cost of a log entry each. So each
// waits for a random part of a window, shorter the more releases it has missed, and doesn't try if the name is taken
// meanwhile. The window is zero until an attempt was in vain, grows with each and shrinks with each grant, so that it
// follows the number of contenders, and the one who has waited longest most probably comes first.
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
	window   float64        // in grants
	hinted   bool           // an attempt that follows is due to a hint
}

const (
	memory     = 10 * time.Second // what was seen is known for that long, up to twice
	minGrant   = 500 * time.Microsecond
	maxGrant   = 15 * time.Millisecond
	grantsAway = 3  // the way given, in grants
	idleShare  = 64 // ways given while nobody else is seen
	maxWindow  = 32 // in grants
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

// took notes that an attempt was granted, and how long that took.
func (m *manners) took(now driver.Instant, name string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d = min(max(d, minGrant), maxGrant)
	if m.grant == 0 {
		m.grant = d
	}
	m.grant += (d - m.grant) / 8
	if s := m.get(now, name, false); s != nil && s.hinted {
		s.hinted = false
		if s.window *= 0.9; s.window < 1 {
			s.window = 0
		}
	}
}

// lost notes that an attempt was in vain, as somebody else holds the name.
func (m *manners) lost(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.foreign = now, now
	if s.hinted {
		s.hinted = false
		s.window = min(2*s.window+1, maxWindow)
	}
}

// taken notes that somebody else holds the name.
func (m *manners) taken(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.foreign = now, now
}

// hinted notes that the name is free, and that an attempt is due.
func (m *manners) hinted(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.hinted = driver.Instant{}, true
}

// turn returns how long to wait before an attempt at a name that has just become free, after it has become free a number
// of times before.
func (m *manners) turn(now driver.Instant, name string, missed int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, false)
	if s == nil || s.window == 0 {
		return 0
	}
	return time.Duration(rand.Float64() * s.window / float64(1+missed) * float64(max(m.grant, minGrant)))
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
	way := grantsAway * max(m.grant, minGrant)
	left := way - now.Sub(s.released)
	contended := !s.foreign.IsZero() && now.Sub(s.foreign) < memory
	if left <= 0 || !contended && !s.gave.IsZero() && now.Sub(s.gave) < idleShare*way {
		return 0
	}
	s.gave = now
	if contended {
		s.held = now // most probably
	}
	return left
}
