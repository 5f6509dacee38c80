package zookeeper

import (
	"context"
	"net"
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
