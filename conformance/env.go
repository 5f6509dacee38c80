package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/stretchr/testify/require"
)

// env is what a case works with. It is a require.TestingT that knows nothing of package testing.
type env struct {
	*require.Assertions
	ctx     context.Context // ends when the case has taken far too long
	b       *Backend
	ttl     time.Duration
	tag     string // a part of every name that the case uses
	process *processes

	// patience is the upper bound for what happens at once on a quiet machine.
	patience time.Duration

	mu       sync.Mutex
	failures []string
	notes    []string
	skipped  string
	ended    bool
	cleanups []func()
	clients  []*client
	running  sync.WaitGroup
}

func newEnv(ctx context.Context, b *Backend, p *processes) *env {
	e := &env{ctx: ctx, b: b, ttl: b.TTL, tag: newTag(), process: p, patience: 15*b.TTL + 15*time.Second}
	e.Assertions = require.New(e)
	return e
}

// newTag returns a string that is the same in every encoding of names, and that nobody else has.
func newTag() string {
	var b [6]byte
	rand.Read(b[:])
	return "c" + hex.EncodeToString(b[:])
}

// long reports whether cases repeat what they do hundreds of times.
func long() bool { return os.Getenv("LOCKER_TEST_LONG") == "1" }

// times returns how often a case repeats what it does.
func times(short, inLong int) int {
	if long() {
		return inLong
	}
	return short
}

// Errorf notes a failure.
func (e *env) Errorf(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.failures = append(e.failures, strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

// FailNow ends the goroutine that calls it, and with it the case if it is the case's own.
func (e *env) FailNow() { runtime.Goexit() }

func (e *env) fail(format string, args ...any) {
	e.Errorf(format, args...)
	e.FailNow()
}

// note adds a line that is printed if the case fails.
func (e *env) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// skip ends the case without a verdict.
func (e *env) skip(format string, args ...any) {
	e.mu.Lock()
	e.skipped = fmt.Sprintf(format, args...)
	e.mu.Unlock()
	runtime.Goexit()
}

func (e *env) cleanup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}

// spawn runs f beside the case, which ends only after f.
func (e *env) spawn(f func()) { e.running.Go(f) }

// name returns a name of the case's own.
func (e *env) name(suffix string) string { return e.tag + "-" + suffix }

// sleep lets time pass: a case that says how long something lasts has to wait for it.
func (e *env) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.ctx.Done():
		e.fail("the case was ended while it slept")
	}
}

// settle gives what was started just now the time to get under way. No verdict depends on it.
func (e *env) settle() { e.sleep(max(e.ttl/8, 60*time.Millisecond)) }

// eventually waits until ok returns true.
func (e *env) eventually(within time.Duration, ok func() bool, what string, args ...any) {
	pause := time.Millisecond
	for end := time.Now().Add(within); !ok(); {
		if time.Now().After(end) {
			e.fail("%s: not within %v", fmt.Sprintf(what, args...), within)
		}
		e.sleep(pause)
		pause = min(2*pause, e.ttl/20+time.Millisecond)
	}
}

// client is one Locker and its link to the backend: one process of a fleet.
type client struct {
	locker.Locker
	link link
	e    *env
	once sync.Once
}

// open makes a client. Its TTL is the case's unless the options say otherwise.
func (e *env) open(opts ...func(*locker.Options)) *client {
	c, err := e.tryOpen(opts...)
	e.NoError(err, "open")
	return c
}

func withTTL(d time.Duration) func(*locker.Options) { return func(o *locker.Options) { o.TTL = d } }

func (e *env) tryOpen(opts ...func(*locker.Options)) (*client, error) {
	return e.openBehind(nil, opts...)
}

// openAway makes a client whose servers are unreachable from the start.
func (e *env) openAway() *client {
	c, err := e.openBehind(link.Refuse)
	e.NoError(err, "open succeeds while servers are away")
	return c
}

func (e *env) openBehind(fault func(link), opts ...func(*locker.Options)) (*client, error) {
	o := &locker.Options{TTL: e.ttl}
	for _, opt := range opts {
		opt(o)
	}
	c := &client{e: e}
	addrs := e.b.Addrs
	var wrap func(driver.Connector) driver.Connector
	if len(addrs) == 0 {
		l := newBetween(e.tag, e.b.ProcessBound)
		c.link, wrap = l, l.wrap
	} else {
		l, err := newProxies(addrs, e.tag)
		e.NoError(err, "the suite's own proxy")
		c.link, addrs = l, l.addrs()
	}
	if fault != nil {
		fault(c.link)
	}
	var err error
	if c.Locker, err = e.b.open(e.ctx, addrs, wrap, o); err != nil {
		c.link.Close()
		return nil, err
	}
	if c.Locker == nil {
		c.link.Close()
		e.fail("open returned neither a Locker nor an error")
	}
	e.mu.Lock()
	e.clients = append(e.clients, c)
	e.mu.Unlock()
	return c, nil
}

// end heals the link, closes the Locker and sees that its connections are gone.
func (c *client) end() {
	c.once.Do(func() {
		e := c.e
		c.heal()
		done := make(chan error, 1)
		go func() { done <- c.Close() }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			e.Errorf("Close hangs: it hasn't returned within 30s")
			return
		}
		for end := time.Now().Add(e.patience); c.link.Conns() > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				e.Errorf("%d connections are left after Close", c.link.Conns())
				break
			}
		}
		c.link.Close()
	})
}

func (c *client) heal() {
	if err := c.link.Heal(); err != nil {
		c.e.fail("the suite's own proxy doesn't heal: %v", err)
	}
}

// away makes the client's servers unreachable.
func (c *client) away() {
	c.link.Refuse()
	c.link.Cut()
}

// vanish ends the client as a crash does, as far as the backend can see: it hears nothing of it any more.
func (c *client) vanish() {
	c.link.BlackHole()
}

// finish cleans up after the case's function.
func (e *env) finish() {
	e.mu.Lock()
	cleanups := e.cleanups
	e.mu.Unlock()
	for i := len(cleanups) - 1; i >= 0; i-- {
		cleanups[i]()
	}
	e.mu.Lock()
	clients := e.clients
	e.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(c.end)
	}
	wg.Wait()
	e.running.Wait()
}
