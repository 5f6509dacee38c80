package locker

import (
	"container/heap"
	"time"

	"github.com/leasekit/locker/driver"
)

// schedule orders the live leases by the time at which something is due for them: their renewal or their end. A timer
// looks at the first; while there is no lease, there is neither timer nor goroutine. Times are those since the engine's
// start on the suspend-aware clock.
type schedule struct {
	e      *engine
	leases []*lease
	timer  *time.Timer
	fires  time.Duration // when the timer fires; never if it is idle
	last   time.Duration // when it looked last
}

const never = time.Duration(1<<63 - 1)

// tick is how long a timer runs at most while leases are held, as timers stand still while the machine is suspended.
const tick = time.Second

func (s *schedule) Len() int           { return len(s.leases) }
func (s *schedule) Less(i, j int) bool { return s.leases[i].at < s.leases[j].at }
func (s *schedule) Swap(i, j int) {
	s.leases[i], s.leases[j] = s.leases[j], s.leases[i]
	s.leases[i].index, s.leases[j].index = i, j
}
func (s *schedule) Push(x any) {
	l := x.(*lease)
	l.index = len(s.leases)
	s.leases = append(s.leases, l)
}
func (s *schedule) Pop() any {
	n := len(s.leases) - 1
	l := s.leases[n]
	s.leases[n], l.index = nil, -1
	s.leases = s.leases[:n]
	return l
}

// add, fix and remove need the engine's mutex.
func (s *schedule) add(l *lease, now driver.Instant) {
	l.at = s.due(l)
	heap.Push(s, l)
	s.arm(now)
}

func (s *schedule) fix(l *lease) {
	l.at = s.due(l)
	heap.Fix(s, l.index)
}

func (s *schedule) remove(l *lease) { heap.Remove(s, l.index) }

// due returns when something is due for a lease.
func (s *schedule) due(l *lease) time.Duration {
	l.mu.Lock()
	at := l.deadline
	l.mu.Unlock()
	due := at.Sub(s.e.start)
	if l.maxHold > 0 {
		due = min(due, l.acquired.Add(l.maxHold).Sub(s.e.start))
	}
	if !l.renewing {
		due = min(due, l.renewAt.Sub(s.e.start))
	}
	return due
}

// arm sets the timer for the first lease, unless it fires early enough anyway.
func (s *schedule) arm(now driver.Instant) {
	if len(s.leases) == 0 {
		return
	}
	at := now.Sub(s.e.start)
	next := max(s.leases[0].at, at)
	if !s.e.info.MonotonicOnly {
		next = min(next, at+tick)
	}
	if next >= s.fires {
		return
	}
	s.fires = next
	if s.timer == nil {
		s.timer = time.AfterFunc(next-at, s.look)
	} else {
		s.timer.Reset(next - at)
	}
}

// look ends the leases that are over and renews those that are due, all of them in one batch.
func (s *schedule) look() {
	e := s.e
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	now := e.now()
	at := now.Sub(e.start)
	if at < s.last {
		// Only a wall clock that was stepped back does this, where it stands in for a boot-time clock: what was
		// computed with it is too late.
		for _, l := range s.leases {
			l.at = s.due(l)
		}
		heap.Init(s)
	}
	s.last, s.fires = at, never

	var over, renew []*lease
	soon := now.Add(e.ttl / 60) // those that are due soon go along
	for len(s.leases) > 0 {
		l := s.leases[0]
		if l.overdue(now) != nil {
			s.remove(l)
			over = append(over, l)
			continue
		}
		if !l.renewing && !soon.Before(l.renewAt) {
			l.renewing = true
			renew = append(renew, l)
			s.fix(l)
			continue
		}
		if l.at > at {
			break
		}
		s.fix(l) // its deadline has moved on
	}
	if len(renew) > 0 {
		e.work.Add(1)
		go e.renew(renew)
	}
	s.arm(now)
	e.mu.Unlock()

	for _, l := range over {
		l.cancelOverdue()
		e.ended(l)
	}
}
