package zookeeper

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

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
