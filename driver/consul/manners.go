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
// Those who hear of a release would all try at once, and all but one in vain, at the cost of a log entry each, and the
// quickest would win each time. So they order themselves. Whoever waits counts the releases that it has missed, and the
// sessions that have held the name lately. Where everybody takes turns, the one who has waited longest has missed one
// release fewer than there are other sessions, and tries at once; the next one tries a moment later unless the name is
// taken by then, and so on.
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
	hinted   bool           // an attempt that follows is due to a hint

	holders map[string]int // other sessions that have held it, with the count of their last grant that was seen
	grants  int            // of other sessions, as far as they were seen
	last    uint64         // the index that made the newest of them
}

const (
	memory      = 10 * time.Second // what was seen is known for that long, up to twice
	minGrant    = 500 * time.Microsecond
	maxGrant    = 15 * time.Millisecond
	grantsAway  = 3  // the way given, in grants
	idleShare   = 64 // ways given while nobody else is seen
	grantsApart = 2  // from one turn to the next, in grants
	maxAhead    = 32 // how many are let go first, at most
	maxHolders  = 128
	maxTurn     = 100 * time.Millisecond
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
	if s := m.get(now, name, false); s != nil {
		s.hinted = false
	}
}

// lost notes that an attempt was in vain, as somebody else holds the name.
func (m *manners) lost(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.foreign = now, now
	s.hinted = false
}

// taken notes that another session holds the name, since a grant with the given index. It reports whether that is a grant
// that wasn't seen before.
func (m *manners) taken(now driver.Instant, name, session string, index uint64) (anew bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.foreign = now, now
	if s.last == index {
		return false
	}
	s.last = index
	s.grants++
	if s.holders == nil {
		s.holders = make(map[string]int)
	}
	s.holders[session] = s.grants
	expired := s.grants - min(3*len(s.holders)+8, maxHolders)
	for id, at := range s.holders {
		if at <= expired {
			delete(s.holders, id)
		}
	}
	return true
}

// hinted notes that the name is free, and that an attempt is due.
func (m *manners) hinted(now driver.Instant, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, true)
	s.held, s.hinted = driver.Instant{}, true
}

// turn returns how long to wait before an attempt at a name that is free and has become free a number of times before
// while this Conn waited for it, or -1 times if it doesn't wait yet: then everybody who does comes first.
func (m *manners) turn(now driver.Instant, name string, missed int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, false)
	if s == nil || now.Sub(s.foreign) > memory {
		return 0
	}
	ahead := min(len(s.holders)-1-missed, maxAhead)
	if ahead <= 0 {
		return 0
	}
	step := float64(max(m.grant, minGrant)) * grantsApart
	return min(time.Duration((float64(ahead)+rand.Float64()/2)*step), maxTurn)
}

// follows reports whether an attempt that begins now follows a hint, and so has waited for its turn.
func (m *manners) follows(now driver.Instant, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.get(now, name, false)
	return s != nil && s.hinted
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
	return await(ctx, m.way(now, name))
}

// await sleeps for d.
func await(ctx context.Context, d time.Duration) error {
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
