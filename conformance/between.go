package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker/conformance/proxy"
)

// between stands between the engine and a driver that has no servers, and does to calls what the proxy does to
// connections: a call is a request and its return a reply. So the cases about faults hold for every backend, and run
// under virtual time too.
//
// Where entries end with their process, nothing would ever end that of a client that is only cut off: there what removes
// entries gets through.
type between struct {
	tag   string
	frees bool // what removes entries gets through

	mu       sync.Mutex
	refused  bool
	hole     [2]bool // by proxy.Direction
	delay    [2]func() time.Duration
	changed  chan struct{} // closed and replaced when a fault is set or healed
	cutOff   chan struct{} // closed and replaced by Cut
	rules    []*callRule
	held     []*callRule
	conns    int
	requests int
	late     sync.WaitGroup // requests that arrive after their caller has gone
}

type callRule struct {
	left int
	done chan struct{}
	hold chan struct{} // nil: the reply is dropped
	once sync.Once
}

func (r *callRule) letGo() {
	if r.hold != nil {
		r.once.Do(func() { close(r.hold) })
	}
}

var (
	errCut     = errors.New("conformance: connection cut")
	errRefused = errors.New("conformance: connection refused")
)

func newBetween(tag string, frees bool) *between {
	return &between{tag: tag, frees: frees, changed: make(chan struct{}), cutOff: make(chan struct{})}
}

func (l *between) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *between) Cut() {
	l.set(func() {
		close(l.cutOff)
		l.cutOff = make(chan struct{})
	})
}

func (l *between) Refuse() { l.set(func() { l.refused = true }) }

func (l *between) BlackHole(ds ...proxy.Direction) {
	l.set(func() {
		for _, d := range both(ds) {
			l.hole[d] = true
		}
	})
}

func (l *between) Delay(f func() time.Duration, ds ...proxy.Direction) {
	l.set(func() {
		for _, d := range both(ds) {
			l.delay[d] = f
		}
	})
}

func both(ds []proxy.Direction) []proxy.Direction {
	if len(ds) == 0 {
		return []proxy.Direction{proxy.ToServer, proxy.ToClient}
	}
	return ds
}

func (l *between) Heal() error {
	l.set(func() {
		l.refused, l.hole, l.delay = false, [2]bool{}, [2]func() time.Duration{}
		for _, r := range append(l.rules, l.held...) {
			r.letGo()
		}
		l.rules, l.held = nil, nil
	})
	return nil
}

func (l *between) DropReply(n int) func() bool {
	r := &callRule{left: n, done: make(chan struct{})}
	l.set(func() { l.rules = append(l.rules, r) })
	return anyClosed(r.done)
}

func (l *between) Hold(n int) (func() bool, func()) {
	r := &callRule{left: n, done: make(chan struct{}), hold: make(chan struct{})}
	l.set(func() { l.rules = append(l.rules, r) })
	return anyClosed(r.done), r.letGo
}

func (l *between) Conns() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns
}

func (l *between) Requests() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *between) Close() {
	l.Heal()
	l.late.Wait()
}

// down reports whether a notification gets lost.
func (l *between) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused || l.hole[proxy.ToClient]
}

// broken reports whether nothing gets through in one direction at least.
func (l *between) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused || l.hole[proxy.ToServer] || l.hole[proxy.ToClient]
}

func (l *between) cut() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cutOff
}

// pass waits until nothing stands in the way in one direction.
func (l *between) pass(ctx context.Context, d proxy.Direction, cut <-chan struct{}) error {
	l.mu.Lock()
	delay := l.delay[d]
	l.mu.Unlock()
	if delay != nil {
		t := time.NewTimer(delay())
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-cut:
			return errCut
		}
	}
	for {
		l.mu.Lock()
		refused, hole, changed := l.refused, l.hole[d], l.changed
		l.mu.Unlock()
		if refused && d == proxy.ToServer {
			return errRefused
		}
		if !hole {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-cut:
			return errCut
		}
	}
}

// match counts a request about names against the rules and returns the one that applies to it, if any.
func (l *between) match(names ...string) *callRule {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	about := false
	for _, name := range names {
		about = about || strings.Contains(name, l.tag)
	}
	if !about {
		return nil
	}
	for i, r := range l.rules {
		if r.left--; r.left == 0 {
			l.rules = append(l.rules[:i:i], l.rules[i+1:]...)
			if r.hold != nil {
				l.held = append(l.held, r)
			}
			return r
		}
	}
	return nil
}

// answer is what a call of a driver returned.
type answer[T any] struct {
	value T
	err   error
}

// call makes one call of a driver through the faults that are set.
func call[T any](ctx context.Context, l *between, do func(context.Context) (T, error), names ...string) (T, error) {
	var none T
	cut := l.cut()
	if err := l.pass(ctx, proxy.ToServer, cut); err != nil {
		return none, err
	}
	r := l.match(names...)
	if r != nil && r.hold != nil {
		close(r.done)
		select {
		case <-r.hold:
		case <-cut:
			return none, errCut
		case <-ctx.Done():
			// Its caller has gone; the request is still under way.
			l.late.Go(func() {
				<-r.hold
				ctx, stop := context.WithTimeout(context.Background(), time.Minute)
				defer stop()
				do(ctx)
			})
			return none, ctx.Err()
		}
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	var a answer[T]
	a.value, a.err = do(ctx)
	if r != nil && r.hold == nil {
		close(r.done)
		return none, errCut
	}
	if err := l.pass(ctx, proxy.ToClient, cut); err != nil {
		return none, err
	}
	return a.value, a.err
}

var _ link = (*between)(nil)
