package redis

import (
	"context"
	"testing"
	"time"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// watchAndRelease checks that a watcher of the name is told of the hold's release.
func watchAndRelease(t testing.TB, c *conn, name string, h driver.Hold) {
	t.Helper()
	hints, stop, err := c.Watch(within(t, patient), name)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	mustRelease(t, h)
	select {
	case _, ok := <-hints:
		if !ok {
			t.Fatal("the subscription broke")
		}
	case <-time.After(patient):
		t.Fatal("no hint")
	}
}

func TestWatch(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	c, holder := connectURL(t, s.URL("redis"), 30*time.Second), connectURL(t, s.URL("redis"), 30*time.Second)
	channels := func() int { return len(a.PubSubChannels(ctx, "*").Val()) }
	subscribers := func() int { return clients(t, a, "pubsub") }

	// One connection for all names, and one hint for each watcher.
	const names = 20
	var stops []func()
	for range names {
		name := newName(t)
		h := mustLock(t, holder, newRequest(name))
		for range 2 {
			_, stop, err := c.Watch(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		watchAndRelease(t, c, name, h)
	}
	if channels() != names || subscribers() != 1 {
		t.Errorf("%d channels, %d connections", channels(), subscribers())
	}
	// An Undo frees a name as well.
	name, req := newName(t), newRequest(newName(t))
	req.Name = name
	mustLock(t, holder, req)
	hints, stop, err := c.Watch(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Undo(ctx, req); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(patient):
		t.Error("no hint")
	}
	for _, stop := range append(stops, stop) {
		stop()
	}
	eventually(t, patient, "no channel is left", func() bool { return channels() == 0 })
	eventually(t, patient, "no connection is left", func() bool { return subscribers() == 0 })
	// And again.
	name = newName(t)
	watchAndRelease(t, c, name, mustLock(t, holder, newRequest(name)))
}

// A name that is watched again while its unsubscribing is under way is subscribed when Watch returns.
func TestWatchAgain(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	c := connectURL(t, s.URL("redis"), 30*time.Second)
	name := newName(t)
	for range 200 {
		h := mustLock(t, c, newRequest(name))
		_, stop, err := c.Watch(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, stop, err := c.Watch(ctx, name); err == nil {
			stop()
		}
		watchAndRelease(t, c, name, h)
	}
}

// A broken subscription closes the hints, and the next Watch makes a new one.
func TestWatchBreaks(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	p := through(t, s)
	c := connectURL(t, "redis://"+p.Addr(), 30*time.Second)
	name := newName(t)
	hints, stop, err := c.Watch(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	p.Cut()
	select {
	case _, ok := <-hints:
		if ok {
			t.Error("a hint out of nothing")
		}
	case <-time.After(patient):
		t.Fatal("nobody noticed")
	}
	stop()
	p.Refuse()
	if _, _, err := c.Watch(within(t, patient), name); err == nil || driver.IsAnswer(err) {
		t.Errorf("refused: %v", err)
	}
	p.Heal()
	p.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := c.Watch(ctx, name); err == nil || driver.IsAnswer(err) {
		t.Errorf("black hole: %v", err)
	}
	p.Cut()
	p.Heal()
	eventually(t, patient, "a subscription", func() bool {
		_, stop, err := c.Watch(within(t, time.Second), name)
		if err == nil {
			stop()
		}
		return err == nil
	})
	watchAndRelease(t, c, name, mustLock(t, c, newRequest(name)))
}

// A watcher that may not subscribe disturbs no other one.
func TestWatchDenied(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	if err := a.Do(ctx, "ACL", "SETUSER", "app", "on", ">pw", "~*", "resetchannels", "&{lock:locker}*", "&{lock:good*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	c := connectURL(t, "redis://app:pw@"+s.Addr, 30*time.Second)
	hints, stop, err := c.Watch(ctx, "good")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for range 3 {
		_, _, err = c.Watch(ctx, "bad")
		wantAnswer(t, err, driver.ErrDenied)
	}
	mustRelease(t, mustLock(t, c, newRequest("good")))
	if _, ok := <-hints; !ok {
		t.Error("the other watcher's subscription broke")
	}
	// A release without the right to publish releases (trap 2).
	mustRelease(t, mustLock(t, c, newRequest("bad")))
	if got := a.Exists(ctx, "lock:bad").Val(); got != 0 {
		t.Error("the key is still there")
	}
}

// Close ends watches, also those that are being made.
func TestWatchClosed(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	p := through(t, s)
	c := connectURL(t, "redis://"+p.Addr(), 30*time.Second)
	hints, _, err := c.Watch(t.Context(), newName(t))
	if err != nil {
		t.Fatal(err)
	}
	p.BlackHole(proxy.ToClient)
	failed := make(chan error)
	go func() {
		_, _, err := c.Watch(t.Context(), newName(t))
		failed <- err
	}()
	start := time.Now()
	eventually(t, patient, "a request", func() bool {
		c.hints.mu.Lock()
		defer c.hints.mu.Unlock()
		return len(c.hints.session.sent) > 0
	})
	c.Close()
	if d := time.Since(start); d > patient {
		t.Errorf("Close took %v", d)
	}
	if _, ok := <-hints; ok {
		t.Error("a hint out of nothing")
	}
	if err := <-failed; err == nil || driver.IsAnswer(err) {
		t.Error(err)
	}
	if _, _, err := c.Watch(t.Context(), "x"); err == nil {
		t.Error("a closed Conn watches")
	}
}
