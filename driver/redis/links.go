package redis

import (
	"sync"
	"time"
)

// links are connections of our own. A link serves one call at a time, on the caller's goroutine: handing calls to
// another goroutine, only to be able to leave them behind when their context ends, costs more than the rest of the
// client. Instead the connection is closed under the call.
type links struct {
	target *target

	mu     sync.Mutex
	closed bool
	free   []*link
	all    map[*link]struct{}
	timer  *time.Timer // runs watch while calls are under way
	armed  bool
	ticks  int // of the timer, and many at once when it had stopped
}

// patience is how long a call may last before its context is watched. Watching costs a timer and a few allocations, and
// most calls have returned long before.
const patience = 10 * time.Millisecond

func newLinks(t *target) *links {
	ls := &links{target: t, all: make(map[*link]struct{})}
	ls.timer = time.AfterFunc(time.Hour, ls.watch)
	ls.timer.Stop()
	return ls
}

// fresh is how many ticks a link may lie unused before it is looked at whether its server has hung up.
const fresh = 50

// idle is how many ticks a link is kept without being used.
const idle = 200

// take returns an unused link, which connects when it is used first.
func (ls *links) take() *link {
	ls.mu.Lock()
	if !ls.armed && !ls.closed {
		ls.armed = true
		ls.ticks += fresh
		ls.timer.Reset(patience)
	}
	for n := len(ls.free); n > 0; n = len(ls.free) {
		l := ls.free[n-1]
		ls.free = ls.free[:n-1]
		if l.dead.Err() == nil && (ls.ticks-l.used < fresh || l.alive()) {
			ls.mu.Unlock()
			return l
		}
		delete(ls.all, l)
		l.discard()
	}
	l := newLink(ls.target)
	ls.all[l] = struct{}{}
	closed := ls.closed
	ls.mu.Unlock()
	if closed {
		l.cut()
	}
	return l
}

// put gives a link back. One that isn't good is closed: whether the connection still works is for the next one to find
// out with a new one.
func (ls *links) put(l *link, good bool) {
	ls.mu.Lock()
	good = good && !ls.closed
	if good {
		l.used = ls.ticks
		ls.free = append(ls.free, l)
	} else {
		delete(ls.all, l)
	}
	ls.mu.Unlock()
	if !good {
		l.discard()
	}
}

// watch begins to watch the contexts of calls that last, and comes again as long as there are any calls. Links that are
// not used any more are closed on the way, but for one.
func (ls *links) watch() {
	ls.mu.Lock()
	if ls.closed {
		ls.mu.Unlock()
		return
	}
	busy, wasArmed := len(ls.all) > len(ls.free), ls.armed
	ls.armed = busy
	unused := 0 // the longest unused come first
	for unused < len(ls.free)-1 && (!busy && !wasArmed || ls.ticks-ls.free[unused].used > idle) {
		unused++
	}
	closing := append([]*link(nil), ls.free[:unused]...)
	ls.free = append(ls.free[:0], ls.free[unused:]...)
	for _, l := range closing {
		delete(ls.all, l)
	}
	for l := range ls.all {
		l.watch()
	}
	ls.ticks++
	switch {
	case busy:
		ls.timer.Reset(patience)
	case len(ls.free) > 1:
		ls.timer.Reset(idle * patience)
	}
	ls.mu.Unlock()
	for _, l := range closing {
		l.discard()
	}
}

func (ls *links) close() {
	ls.mu.Lock()
	ls.closed = true
	ls.timer.Stop()
	free, all := ls.free, ls.all
	ls.free, ls.all = nil, make(map[*link]struct{})
	ls.mu.Unlock()
	for l := range all {
		l.cut() // calls under way return, and put closes what they used
	}
	for _, l := range free {
		l.client.Close()
	}
}
