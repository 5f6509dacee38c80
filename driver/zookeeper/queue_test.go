package zookeeper

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

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
