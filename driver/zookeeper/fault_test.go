package zookeeper

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// nodesOf returns the nodes of an ID.
func nodesOf(t testing.TB, addr, folder, id string) []string {
	t.Helper()
	z := admin(t, addr)
	children, _, err := z.Children(folder)
	require.NoError(t, err)
	var out []string
	for _, name := range children {
		if strings.Contains(name, id) {
			out = append(out, name)
		}
	}
	return out
}

// untilGranted asks with the same ID again while the outcome is unknown, as the engine does.
func untilGranted(t testing.TB, ctx context.Context, c *conn, req driver.Request) driver.Hold {
	t.Helper()
	for {
		attempt, stop := context.WithTimeout(ctx, time.Second)
		h, err := c.TryLock(attempt, req)
		stop()
		if err == nil {
			return h
		}
		require.False(t, driver.IsAnswer(err), "%v", err)
		require.NoError(t, ctx.Err(), "%v", err)
		time.Sleep(20 * time.Millisecond)
	}
}

func TestWAIT03CreatedAndReplyLost(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	for name, down := range map[string]time.Duration{"short": 0, "the look-up fails too": time.Second} {
		t.Run(name, func(t *testing.T) {
			p := through(t, s.Addr)
			prefix := uniquePrefix(t)
			c := dial(t, p.Addr(), prefix, nil)
			ctx := within(t, 30*time.Second)
			h, err := c.TryLock(ctx, newRequest("x"))
			require.NoError(t, err)
			require.NoError(t, h.Release(ctx))

			dropped := p.DropReply(1, op(opMulti), proxy.ThenCut)
			req := newRequest("x")
			got := make(chan driver.Hold)
			go func() { got <- untilGranted(t, ctx, c, req) }()
			<-dropped
			p.Refuse()
			p.Cut()
			time.Sleep(down)
			require.NoError(t, p.Heal())
			granted := <-got
			require.Len(t, nodesOf(t, s.Addr, prefix+"/x", req.ID), 1)
			_, err = dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
			require.ErrorIs(t, err, driver.ErrHeld)
			require.NoError(t, renewOne(ctx, c, granted).Err)
			require.NoError(t, granted.Release(ctx))
			require.Empty(t, nodesOf(t, s.Addr, prefix+"/x", req.ID))
		})
	}
}

// TestUndoAfterALostReply gives up after the node was made, and checks that the driver goes on looking for a late one as
// long as one may come.
func TestUndoAfterALostReply(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	c := dial(t, p.Addr(), prefix, nil)
	ctx := within(t, 30*time.Second)
	keep, err := c.TryLock(ctx, newRequest("keep")) // keeps the session
	require.NoError(t, err)
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))

	dropped := p.DropReply(1, op(opMulti), proxy.ThenCut)
	req := newRequest("x")
	failed := make(chan error, 1)
	go func() {
		_, err := c.TryLock(ctx, req)
		failed <- err
	}()
	<-dropped
	p.Cut()
	require.NoError(t, p.Heal())
	err = <-failed
	require.Error(t, err)
	require.False(t, driver.IsAnswer(err), "%v", err)
	require.Len(t, nodesOf(t, s.Addr, prefix+"/x", req.ID), 1)
	require.Eventually(t, func() bool { return c.Undo(ctx, req) == nil }, 10*time.Second, 20*time.Millisecond)
	require.Empty(t, nodesOf(t, s.Addr, prefix+"/x", req.ID))

	// A request that a server had in hand yet.
	holds := []driver.Hold{keep}
	renew := func() int { return c.Renew(ctx, holds, func(_ int, r driver.Renewal) { require.NoError(t, r.Err) }) }
	require.Equal(t, 1, renew())
	z := admin(t, s.Addr)
	_, err = z.Create(newNode(prefix+"/x", req.ID), nil, 3, c.acl())
	require.NoError(t, err)
	renew()
	require.Empty(t, nodesOf(t, s.Addr, prefix+"/x", req.ID))
	require.Eventually(t, func() bool { return renew() == 0 }, 3*ttl, ttl/8)
}

// TestCreateArrivesAfterGivingUp holds the request on its way.
func TestCreateArrivesAfterGivingUp(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	c := dialTTL(t, p.Addr(), prefix, 20*time.Second, nil)
	ctx := within(t, 30*time.Second)
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))

	held, release := p.Hold(1, op(opMulti))
	req := newRequest("x")
	_, err = c.TryLock(within(t, 300*time.Millisecond), req)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	<-held
	require.ErrorIs(t, c.Undo(within(t, 200*time.Millisecond), req), context.DeadlineExceeded)
	release()
	require.NoError(t, c.Undo(ctx, req))
	require.Empty(t, nodesOf(t, s.Addr, prefix+"/x", req.ID))
	h, err = c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))
}

// TestUndoWaitsForTheLibrary has the request still in the library's hands.
func TestUndoWaitsForTheLibrary(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	c := dialTTL(t, s.Addr, prefix, 20*time.Second, nil)
	ctx := within(t, 30*time.Second)
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	req, now := newRequest("x"), make(chan struct{})
	p, err := c.current.place(ctx, req)
	require.NoError(t, err)
	p.sent = start(c.current, func(z *zk.Conn) (multi, error) {
		<-now
		results, err := z.Multi(&zk.CheckVersionRequest{Path: "/", Version: -1},
			&zk.CreateRequest{Path: newNode(p.folder, req.ID), Acl: c.acl(), Flags: zk.FlagEphemeralSequential})
		return multi{results, -1}, err
	})
	p.end(false)
	require.ErrorIs(t, c.Undo(within(t, 100*time.Millisecond), req), context.DeadlineExceeded)
	close(now)
	require.NoError(t, c.Undo(ctx, req))
	require.Empty(t, nodesOf(t, s.Addr, prefix+"/x", req.ID))
	require.NoError(t, h.Release(ctx))
}

func TestReleaseAgainAfterALostReply(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	c := dial(t, p.Addr(), uniquePrefix(t), nil)
	ctx := within(t, 30*time.Second)
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	dropped := p.DropReply(1, op(opDelete), proxy.ThenCut)
	failed := make(chan error, 1)
	go func() { failed <- h.Release(ctx) }()
	<-dropped
	p.Cut()
	require.NoError(t, p.Heal())
	err = <-failed
	require.Error(t, err)
	require.NotErrorIs(t, err, driver.ErrNotHeld)
	require.NoError(t, h.Release(ctx))
}

func TestOWN02NodeDeletedWhileQueued(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	a, b := dial(t, s.Addr, prefix, nil), dial(t, s.Addr, prefix, nil)
	z := admin(t, s.Addr)
	first, err := a.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	req := newRequest("x")
	type result struct {
		h   driver.Hold
		err error
	}
	got := make(chan result, 1)
	go func() {
		h, err := b.Lock(ctx, req)
		got <- result{h, err}
	}()
	var own []string
	require.Eventually(t, func() bool { own = nodesOf(t, s.Addr, prefix+"/x", req.ID); return len(own) == 1 }, 5*time.Second, 5*time.Millisecond)
	require.NoError(t, z.Delete(prefix+"/x/"+own[0], -1))
	select {
	case r := <-got:
		require.Error(t, r.err)
		require.False(t, driver.IsAnswer(r.err), "%v", r.err)
	case <-time.After(2 * time.Second):
		t.Fatal("the loss of the queued node isn't noticed")
	}
	// The engine asks again with the same ID.
	go func() {
		h, err := b.Lock(ctx, req)
		got <- result{h, err}
	}()
	require.Eventually(t, func() bool { return len(nodesOf(t, s.Addr, prefix+"/x", req.ID)) == 1 }, 5*time.Second, 5*time.Millisecond)
	require.NoError(t, first.Release(ctx))
	r := <-got
	require.NoError(t, r.err)
	require.Greater(t, r.h.Grant().Token, first.Grant().Token)
}

func TestOWN02SessionExpiresWhileQueued(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 60*time.Second)
	p := through(t, s.Addr)
	a, b := dial(t, s.Addr, prefix, nil), dialTTL(t, p.Addr(), prefix, time.Second, nil)
	first, err := a.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	req := newRequest("x")
	got := make(chan error, 1)
	go func() {
		_, err := b.Lock(ctx, req)
		got <- err
	}()
	require.Eventually(t, func() bool { return len(nodesOf(t, s.Addr, prefix+"/x", req.ID)) == 1 }, 5*time.Second, 5*time.Millisecond)
	p.Refuse()
	p.Cut()
	require.Eventually(t, func() bool { return len(nodesOf(t, s.Addr, prefix+"/x", req.ID)) == 0 }, 10*time.Second, 20*time.Millisecond)
	require.NoError(t, p.Heal())
	err = <-got
	require.Error(t, err)
	require.False(t, driver.IsAnswer(err), "%v", err)
	require.NoError(t, renewOne(ctx, a, first).Err)
}

// open opens a Locker on the driver.
func open(t testing.TB, addr, prefix string, ttl time.Duration, o *locker.Options) locker.Locker {
	t.Helper()
	var opts locker.Options
	if o != nil {
		opts = *o
	}
	opts.TTL = ttl
	l, err := locker.Open(context.Background(), "zk://"+addr+prefix, &opts)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func TestEXP02LocalDeadline(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	for name, fault := range map[string]func(p *proxy.Proxy){
		"cut and refuse": func(p *proxy.Proxy) { p.Refuse(); p.Cut() },
		"black hole":     func(p *proxy.Proxy) { p.BlackHole() },
	} {
		t.Run(name, func(t *testing.T) {
			p := through(t, s.Addr)
			prefix := uniquePrefix(t)
			const ttl = 3 * time.Second
			a, b := open(t, p.Addr(), prefix, ttl, nil), open(t, s.Addr, prefix, ttl, nil)
			ctx := within(t, 30*time.Second)
			lease, err := a.Acquire(ctx, "x")
			require.NoError(t, err)
			time.Sleep(ttl + ttl/3) // over renewals
			require.NoError(t, lease.Context().Err())
			fault(p)
			start := time.Now()
			got := make(chan time.Time, 1)
			go func() {
				next, err := b.Acquire(ctx, "x")
				if err != nil {
					t.Error(err)
				} else if next.Token() <= lease.Token() {
					t.Error("the token hasn't risen")
				}
				got <- time.Now()
			}()
			<-lease.Context().Done()
			ended := time.Now()
			require.Less(t, ended.Sub(start), ttl)
			require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
			require.True(t, ended.Before(<-got), "two holders")
		})
	}
}

func TestRECON05OneConnection(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	l := open(t, p.Addr(), uniquePrefix(t), 4*time.Second, nil)
	ctx := within(t, 60*time.Second)
	lease, err := l.Acquire(ctx, "x")
	require.NoError(t, err)
	for range 10 {
		p.Cut()
		require.Eventually(t, func() bool {
			h, err := l.TryAcquire(ctx, "y")
			return err == nil && h.Release(ctx) == nil
		}, 10*time.Second, 20*time.Millisecond)
	}
	require.NoError(t, lease.Context().Err())
	require.Equal(t, 1, p.Conns())
	require.NoError(t, lease.Release(ctx))
}

func TestEXP06Blips(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	l := open(t, p.Addr(), prefix, 6*time.Second, nil)
	ctx := within(t, 60*time.Second)
	lease, err := l.Acquire(ctx, "x")
	require.NoError(t, err)
	for range 3 {
		time.Sleep(2 * time.Second)
		p.Refuse()
		p.Cut()
		time.Sleep(2 * time.Second)
		require.NoError(t, p.Heal())
	}
	time.Sleep(time.Second)
	require.NoError(t, lease.Context().Err())
	require.Greater(t, lease.Remaining(), 2*time.Second)
	require.NoError(t, lease.Release(ctx))
}

func TestRECON06DeadHosts(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	for range 3 { // the library shuffles
		start := time.Now()
		c := dial(t, "does-not-exist.invalid:2181,"+gone.Addr().String()+","+s.Addr, uniquePrefix(t), nil)
		_, err = c.TryLock(within(t, 10*time.Second), newRequest("x"))
		require.NoError(t, err)
		require.Less(t, time.Since(start), 3*time.Second)
	}
	for range 4 {
		start := time.Now()
		c := dial(t, silent.Addr().String()+","+silent.Addr().String()+","+s.Addr, uniquePrefix(t), nil)
		_, err = c.TryLock(within(t, 10*time.Second), newRequest("x"))
		require.NoError(t, err)
		require.Less(t, time.Since(start), ttl)
	}
}

func TestUnavailableIsSaidAtOnce(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone.Close()
	c := dial(t, gone.Addr().String(), "/x", nil)
	for range 3 {
		start := time.Now()
		_, err = c.TryLock(within(t, 10*time.Second), newRequest("x"))
		require.Error(t, err)
		require.False(t, driver.IsAnswer(err))
		require.ErrorContains(t, err, "refused")
		require.Less(t, time.Since(start), 3*time.Second)
	}
}

// TestExpiredSession tells the holder, and makes a new session for the next acquire.
func TestExpiredSession(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	c := dialTTL(t, p.Addr(), prefix, time.Second, nil)
	ctx := within(t, 60*time.Second)
	var lost atomic.Value
	req := newRequest("x")
	req.Lost = func(err error) { lost.Store(err) }
	h, err := c.TryLock(ctx, req)
	require.NoError(t, err)
	p.Refuse()
	p.Cut()
	require.Eventually(t, func() bool { return len(nodesOf(t, s.Addr, prefix+"/x", req.ID)) == 0 }, 10*time.Second, 20*time.Millisecond)
	require.Nil(t, lost.Load(), "nobody can know it yet")
	require.NoError(t, p.Heal())
	require.Eventually(t, func() bool { return lost.Load() != nil }, 5*time.Second, 5*time.Millisecond)
	require.ErrorIs(t, lost.Load().(error), driver.ErrNotHeld)
	require.ErrorIs(t, h.Release(ctx), driver.ErrNotHeld)
	require.ErrorIs(t, renewOne(ctx, c, h).Err, driver.ErrNotHeld)
	again := untilGranted(t, ctx, c, newRequest("x"))
	require.Greater(t, again.Grant().Token, h.Grant().Token)
	require.Eventually(t, func() bool { return p.Conns() == 1 }, 5*time.Second, 10*time.Millisecond)
}

// TestIdleSession makes a lease that begins with all of its TTL, however long ago the last one was.
func TestIdleSession(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	const ttl = 2 * time.Second
	c := dialTTL(t, s.Addr, uniquePrefix(t), ttl, nil)
	ctx := within(t, 60*time.Second)
	for range 3 {
		h, err := c.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		require.Less(t, c.cfg.Now().Sub(h.Grant().Sent), ttl/2)
		require.NoError(t, h.Release(ctx))
		time.Sleep(ttl)
	}
}

func TestSHUT01CloseWhileTheServerIsSilent(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	for name, fault := range map[string]func(p *proxy.Proxy){
		"away":   func(p *proxy.Proxy) { p.Refuse(); p.Cut() },
		"silent": func(p *proxy.Proxy) { p.BlackHole() },
	} {
		t.Run(name, func(t *testing.T) {
			p := through(t, s.Addr)
			prefix := uniquePrefix(t)
			c := dial(t, p.Addr(), prefix, nil)
			ctx := within(t, 30*time.Second)
			_, err := c.TryLock(ctx, newRequest("x"))
			require.NoError(t, err)
			_, err = dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("y"))
			require.NoError(t, err)
			waiting := make(chan error, 1)
			go func() {
				_, err := c.Lock(ctx, newRequest("y"))
				waiting <- err
			}()
			require.Eventually(t, func() bool {
				children, _, err := admin(t, s.Addr).Children(prefix + "/y")
				return err == nil && len(children) == 2
			}, 5*time.Second, 20*time.Millisecond)
			fault(p)
			start := time.Now()
			require.NoError(t, c.Close())
			require.Less(t, time.Since(start), time.Second)
			require.Error(t, <-waiting)
			_, err = c.TryLock(ctx, newRequest("z"))
			require.ErrorIs(t, err, errClosed)
		})
	}
}

func TestCloseRemovesEverything(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	c := dial(t, s.Addr, prefix, nil)
	ctx := within(t, 30*time.Second)
	_, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	h, err := dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))
}

// TestNothingRunsUnderAnotherSession queues a creation in the library while there is no connection, and lets the session
// expire: the library would make a new one and carry the request out there.
func TestNothingRunsUnderAnotherSession(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	c := dialTTL(t, p.Addr(), prefix, time.Second, nil)
	ctx := within(t, 60*time.Second)
	req := newRequest("x")
	_, err := c.TryLock(ctx, req)
	require.NoError(t, err)
	old := c.current
	p.Refuse()
	p.Cut()
	require.Eventually(t, func() bool { _, err := old.sending(); return err != nil }, 5*time.Second, time.Millisecond)
	late := newRequest("x")
	call := start(old, func(z *zk.Conn) (string, error) {
		return z.Create(newNode(prefix+"/x", late.ID), nil, zk.FlagEphemeralSequential, c.acl())
	})
	require.Eventually(t, func() bool { return len(nodesOf(t, s.Addr, prefix+"/x", req.ID)) == 0 }, 10*time.Second, 20*time.Millisecond)
	require.NoError(t, p.Heal())
	<-call.done
	require.Error(t, call.err)
	<-old.ctx.Done()
	require.Empty(t, nodesOf(t, s.Addr, prefix+"/x", late.ID))
	require.Eventually(t, func() bool { return p.Conns() == 0 }, 5*time.Second, 10*time.Millisecond)
}
