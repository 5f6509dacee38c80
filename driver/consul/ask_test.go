package consul

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestSameIDGetsTheSameGrant(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	c := connect(t, "consul://"+p.addr()+"/"+prefix(t), 4*time.Second)
	var grants atomic.Int32
	p.set(func(r seenRequest) action {
		if r.isGrant() {
			grants.Add(1)
			return action{drop: true}
		}
		return action{}
	})
	req := request("a")
	_, err := c.TryLock(within(t, 5*time.Second), req)
	require.Error(t, err)
	require.False(t, driver.IsAnswer(err), "%v", err)
	require.EqualValues(t, 1, grants.Load(), "the client library must not repeat it")
	e := entry(t, admin(t, s), c.key("a"))
	require.NotNil(t, e)

	p.set(nil)
	_, err = c.TryLock(within(t, 5*time.Second), request("a"))
	require.ErrorIs(t, err, driver.ErrHeld, "another ID doesn't benefit")
	h, err := c.TryLock(within(t, 5*time.Second), req)
	require.NoError(t, err)
	require.Equal(t, e.ModifyIndex, h.Grant().Token)
	r, unresolved := renew(t, c, h)
	require.NoError(t, r[0].Err)
	require.Positive(t, unresolved, "a request may still come")
	release(t, h)
	_, unresolved = renew(t, c)
	require.Zero(t, unresolved)
	require.Empty(t, c.asks)
	require.LessOrEqual(t, len(c.sessions), 1)
}

func TestUndoRemovesWhatALostReplyLeft(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	c := connect(t, "consul://"+p.addr()+"/"+prefix(t), 4*time.Second)
	p.set(func(r seenRequest) action { return action{drop: r.isGrant()} })
	req := request("a")
	_, err := c.TryLock(within(t, 5*time.Second), req)
	require.False(t, driver.IsAnswer(err), "%v", err)
	require.NotNil(t, entry(t, admin(t, s), c.key("a")))
	other := request("a")
	require.NoError(t, c.Undo(t.Context(), other))
	require.NotNil(t, entry(t, admin(t, s), c.key("a")), "another ID's entry stays")
	require.NoError(t, c.Undo(t.Context(), req))
	require.Nil(t, entry(t, admin(t, s), c.key("a")))
	require.NoError(t, c.Undo(t.Context(), req))
}

func TestUndoWaitsForARequestUnderWay(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	c := connect(t, "consul://"+p.addr()+"/"+prefix(t), 4*time.Second)
	for _, later := range []bool{false, true} {
		arrived := make(chan struct{}, 1)
		hold := make(chan struct{})
		arrive := sync.OnceFunc(func() { close(hold) })
		t.Cleanup(arrive)
		p.set(func(r seenRequest) action {
			if r.isGrant() {
				arrived <- struct{}{}
				<-hold
			}
			return action{}
		})
		req := request("a")
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() { _, err := c.TryLock(ctx, req); failed <- err }()
		<-arrived
		stop()
		require.ErrorIs(t, <-failed, context.Canceled)
		require.ErrorIs(t, c.Undo(within(t, 50*time.Millisecond), req), context.DeadlineExceeded)
		undone := make(chan error, 1)
		if !later {
			go func() { undone <- c.Undo(within(t, 5*time.Second), req) }()
			arrive()
		} else {
			arrive()
			eventually(t, 5*time.Second, "the grant", func() bool { return entry(t, admin(t, s), c.key("a")) != nil })
			go func() { undone <- c.Undo(within(t, 5*time.Second), req) }()
		}
		require.NoError(t, <-undone)
		require.Nil(t, entry(t, admin(t, s), c.key("a")))
		release(t, lock(t, c, "a"))
		require.Empty(t, c.asks)
	}
	require.Len(t, c.sessions, 1, "nothing was in doubt, so that the session is still the first")
}

// A request that was lost on its way arrives after Undo has found nothing: it must not leave an entry, although another
// lock keeps the session alive.
func TestLateRequestIsRemoved(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	c := connect(t, "consul://"+p.addr()+"/"+prefix(t), 4*time.Second)
	other := lock(t, c, "other")
	forward, done := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(forward) })
	t.Cleanup(arrive)
	p.set(func(r seenRequest) action {
		if r.isGrant() {
			return action{forward: forward, done: done}
		}
		return action{}
	})
	req := request("a")
	_, err := c.TryLock(within(t, 10*time.Second), req)
	require.False(t, driver.IsAnswer(err), "%v", err)
	p.set(nil)
	require.NoError(t, c.Undo(within(t, 5*time.Second), req))
	_, unresolved := renew(t, c, other)
	require.Positive(t, unresolved)
	fresh := lock(t, c, "fresh")
	require.NotEqual(t, other.s, fresh.s, "the session takes no more locks")

	arrive()
	<-done
	require.NotNil(t, entry(t, admin(t, s), c.key("a")), "the late request was granted")
	r, _ := renew(t, c, other, fresh)
	require.NoError(t, r[0].Err)
	require.NoError(t, r[1].Err)
	require.Nil(t, entry(t, admin(t, s), c.key("a")))

	release(t, other)
	_, unresolved = renew(t, c, fresh)
	require.Zero(t, unresolved)
	se, _, err := admin(t, s).Session().Info(other.s.id, nil)
	require.NoError(t, err)
	require.Nil(t, se, "the retired session has ended with its last lock")
}
