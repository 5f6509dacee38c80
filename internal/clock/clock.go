// Package clock measures elapsed time in a way that a suspended machine cannot hide.
//
// Go's monotonic clock stands still on Linux while the machine sleeps (CLOCK_MONOTONIC), and a lease does not: the
// server has long given the name to somebody else. An [Instant] therefore holds two readings, the monotonic one and one
// of a clock that goes on during suspend, and the time between two instants is the larger difference.
package clock

import (
	"sync/atomic"
	"time"
)

// Instant is a reading of the clocks. The zero Instant stands for "never": it lies before every other one.
type Instant struct {
	mono time.Duration // since base; virtual inside a testing/synctest bubble
	boot time.Duration // since an arbitrary point, suspend included; 0 where it isn't read
}

// base is what monotonic readings count from. It lies an hour back so that no reading is 0.
var base = time.Now().Add(-time.Hour)

// Monotonic reads the monotonic clock alone. Inside a testing/synctest bubble it reads the bubble's clock.
func Monotonic() Instant { return Instant{mono: time.Since(base)} }

// System reads the monotonic clock and the one that goes on during suspend.
//
// The second one costs a system call, so it is read only when it can have moved apart from the first. A suspend moves the
// wall clock and leaves the monotonic one, and time.Now reads both of them cheaply: as long as the distance between those
// two is what it was, so is the distance between the boot-time and the monotonic clock.
func System() Instant {
	now := time.Now()
	mono := now.Sub(base)
	apart := time.Duration(now.UnixNano()) - mono
	if s := last.Load(); s != nil && (apart-s.apart).Abs() < tolerance {
		return Instant{mono: mono, boot: mono + s.ahead}
	}
	s := readBoot(apart)
	last.Store(s)
	return Instant{mono: mono, boot: mono + s.ahead}
}

// tolerance is how far the wall clock may move against the monotonic clock unnoticed. Slewing moves both alike, so that
// only steps and suspends show; two readings a preemption apart show too, and cost no more than another system call.
const tolerance = time.Millisecond

// spread holds the distances between the clocks when the boot-time clock was last read.
type spread struct {
	apart time.Duration // the wall clock ahead of the monotonic one
	ahead time.Duration // the boot-time clock ahead of the monotonic one
}

var last atomic.Pointer[spread]

// readBoot reads the boot-time clock between two readings of the monotonic one, and again if they are so far apart that
// the goroutine was preempted in between: the error would later look like time gone.
func readBoot(apart time.Duration) *spread {
	for try := 0; ; try++ {
		before := time.Since(base)
		b := boot()
		if after := time.Since(base); try == 3 || after-before < tolerance/10 {
			return &spread{apart: apart, ahead: b - before}
		}
	}
}

// At makes an Instant out of two readings. It is for tests that play a suspended machine.
func At(mono, boot time.Duration) Instant { return Instant{mono: mono, boot: boot} }

// IsZero reports whether i is the zero Instant.
func (i Instant) IsZero() bool { return i == Instant{} }

// Sub returns the time from u to i: the larger of what the two clocks say. When u is after i it returns a negative
// duration, or one that is too large if the clocks disagree: an error on the side of more time gone.
func (i Instant) Sub(u Instant) time.Duration {
	if i.boot == 0 || u.boot == 0 {
		return i.mono - u.mono
	}
	return max(i.mono-u.mono, i.boot-u.boot)
}

// Add returns the instant d after i, on both clocks.
func (i Instant) Add(d time.Duration) Instant {
	i.mono += d
	if i.boot != 0 {
		i.boot += d
	}
	return i
}

// Before reports whether i lies before u on every clock that both have read. It is the test for "not yet": an instant
// that has been reached on either clock isn't before.
func (i Instant) Before(u Instant) bool { return i.Sub(u) < 0 }
