package zookeeper

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestNAME03NamesOnTheServer(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	ctx := within(t, 60*time.Second)
	names := []string{
		"file:///var/x", "a//b", ".", "..", "...", "a/../b", "zookeeper", "\x00", "\x1f", " ", "\x7f", "\u0085", "\u00a0", "\ud7ff", "\ue000",
		"\uf8ff", "\uf900", "\uffef", "\ufff0", "\uffff", "\U0001f512", "%", "%2E", "a", "a/", "a/b", "a/b/c", "ab", "a.b",
		strings.Repeat("n", 512), strings.Repeat("/", 512), "lock-0000000001", "_c_x-lock-0000000001",
	}
	c := dialTTL(t, s.Addr, uniquePrefix(t), 30*time.Second, nil)
	var holds []driver.Hold
	for _, name := range names { // all at once: no name stands in another's way
		h, err := c.TryLock(ctx, newRequest(name))
		require.NoError(t, err, "%q", name)
		holds = append(holds, h)
		_, err = c.TryLock(ctx, newRequest(name))
		require.ErrorIs(t, err, driver.ErrHeld, "%q", name)
	}
	for _, h := range holds {
		require.NoError(t, h.Release(ctx))
	}
}

func TestRootAsPrefix(t *testing.T) {
	s := testserver.Private(t, testserver.ZooKeeper, nil)
	ctx := within(t, 60*time.Second)
	c := dial(t, s.Addr, "/", nil)
	for _, name := range []string{"zookeeper", "x", "zookeeper/quota"} {
		h, err := c.TryLock(ctx, newRequest(name))
		require.NoError(t, err)
		require.NoError(t, h.Release(ctx))
	}
	require.NoError(t, c.Close())
	z := admin(t, s.Addr)
	children, _, err := z.Children("/zookeeper")
	require.NoError(t, err)
	require.NotContains(t, strings.Join(children, " "), "lock-")
}

func TestCFG04PrefixesKeepApart(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 60*time.Second)
	var holds []driver.Hold
	for _, p := range []string{prefix + "/not/there/yet", prefix + "/other"} {
		for _, name := range []string{"not/there/yet", "x", p} {
			h, err := dial(t, s.Addr, p, nil).TryLock(ctx, newRequest(name))
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(h.(*hold).path, p+"/"))
			require.Equal(t, strings.Count(p, "/")+2, strings.Count(h.(*hold).path, "/"), "one level for the name, one for the contender")
			holds = append(holds, h)
		}
	}
	for _, h := range holds {
		require.NoError(t, h.Release(ctx))
	}
}

// TestParentsAreContainers waits until the server has removed what locks have left empty.
func TestParentsAreContainers(t *testing.T) {
	s := testserver.Private(t, testserver.ZooKeeper, &testserver.Options{Env: []string{
		"SERVER_JVMFLAGS=-Dznode.container.checkIntervalMs=200 -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"}})
	ctx := within(t, 60*time.Second)
	c := dial(t, s.Addr, "/app/locks", nil)
	z := admin(t, s.Addr)
	for range 2 {
		h, err := c.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		require.NoError(t, h.Release(ctx))
		require.Eventually(t, func() bool {
			there, _, err := z.Exists("/app/locks/x")
			return err == nil && !there
		}, 10*time.Second, 20*time.Millisecond)
	}
	children, _, err := z.Children("/app/locks")
	require.NoError(t, err)
	require.Equal(t, []string{offsetName}, children)
}

// TestLEAK09FolderDeletedAgainAndAgain has somebody delete the empty folder all the time.
func TestLEAK09FolderDeletedAgainAndAgain(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 2*time.Minute)
	z := admin(t, s.Addr)
	stop := make(chan struct{})
	var janitor, clients sync.WaitGroup
	var deleted atomic.Int32
	janitor.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if z.Delete(prefix+"/x", -1) == nil {
					deleted.Add(1)
				}
			}
		}
	})
	var inside atomic.Int32
	for range 2 {
		c := dialTTL(t, s.Addr, prefix, 20*time.Second, nil)
		clients.Go(func() {
			for range 60 {
				h, err := acquire(ctx, c, "x")
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				inside.Add(-1)
				if err := h.Release(ctx); err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(20 * time.Millisecond)) // leaves the folder empty now and then
			}
		})
	}
	clients.Wait()
	close(stop)
	janitor.Wait()
	require.Greater(t, deleted.Load(), int32(10))
}

func TestAdvance(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 60*time.Second)
	a, b := dialTTL(t, s.Addr, prefix, 30*time.Second, nil), dialTTL(t, s.Addr, prefix, 30*time.Second, nil)
	before, err := b.TryLock(ctx, newRequest("x")) // b has a copy of the old offset now
	require.NoError(t, err)
	require.NoError(t, before.Release(ctx))

	h, err := a.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	queued := make(chan driver.Hold, 1)
	go func() {
		h, err := b.Lock(ctx, newRequest("x"))
		if err != nil {
			t.Error(err)
		}
		queued <- h
	}()
	z := admin(t, s.Addr)
	require.Eventually(t, func() bool {
		children, _, err := z.Children(prefix + "/x")
		return err == nil && len(children) == 2
	}, 10*time.Second, time.Millisecond)

	const floor = uint64(1) << 60
	require.NoError(t, a.Advance(ctx, h, floor))
	require.NoError(t, a.Advance(ctx, h, floor-1), "lower changes nothing")
	require.NoError(t, h.Release(ctx))
	next := <-queued
	require.Greater(t, next.Grant().Token, floor, "a queued grant reads the offset anew")
	require.NoError(t, next.Release(ctx))
	last := next.Grant().Token
	for _, c := range []*conn{a, b, dial(t, s.Addr, prefix, nil)} {
		h, err := c.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		require.Greater(t, h.Grant().Token, last)
		last = h.Grant().Token
		require.NoError(t, h.Release(ctx))
	}
	require.ErrorIs(t, a.Advance(ctx, h, floor+1<<40), driver.ErrNotHeld)
	require.ErrorIs(t, a.Advance(ctx, h, 1<<63-1), driver.ErrConfig)

	// Somebody deletes the node: the offset doesn't fall as long as anybody remembers it.
	require.NoError(t, z.Delete(a.offsetPath(), -1))
	h, err = a.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.Greater(t, h.Grant().Token, last)
	require.NoError(t, h.Release(ctx))
	_, err = z.Set(a.offsetPath(), []byte("nonsense"), -1)
	require.NoError(t, err)
	_, err = b.TryLock(ctx, newRequest("x"))
	require.ErrorIs(t, err, driver.ErrConflict)
}

// TestOffsetRaisedUnnoticed keeps the event of the change from a client that has a copy.
func TestOffsetRaisedUnnoticed(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	ctx := within(t, 60*time.Second)
	a, b := dialTTL(t, s.Addr, prefix, 60*time.Second, nil), dialTTL(t, p.Addr(), prefix, 60*time.Second, nil)
	h, err := b.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))

	p.BlackHole(proxy.ToClient)
	h, err = a.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	const floor = uint64(1) << 60
	require.NoError(t, a.Advance(ctx, h, floor))
	require.NoError(t, h.Release(ctx))
	sent := p.Count(op(opMulti))
	got := make(chan driver.Hold, 1)
	go func() {
		h, err := b.TryLock(ctx, newRequest("x"))
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	require.Eventually(t, func() bool { return sent.N() == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, p.Heal())
	require.Greater(t, (<-got).Grant().Token, floor)
}

// TestOWN17DeletionIsToldAtOnce checks the short cut that the first renewal sets up.
func TestOWN17DeletionIsToldAtOnce(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 60*time.Second)
	z := admin(t, s.Addr)
	for name, change := range map[string]func(path string) error{
		"deleted":     func(path string) error { return z.Delete(path, -1) },
		"overwritten": func(path string) error { _, err := z.Set(path, []byte("me"), -1); return err },
		"replaced": func(path string) error {
			if err := z.Delete(path, -1); err != nil {
				return err
			}
			_, err := z.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialTTL(t, s.Addr, prefix, 60*time.Second, nil)
			lost := make(chan error, 10)
			req := newRequest(name)
			req.Lost = func(err error) { lost <- err }
			h, err := c.TryLock(ctx, req)
			require.NoError(t, err)
			require.NoError(t, renewOne(ctx, c, h).Err)
			require.NoError(t, change(h.(*hold).path))
			select {
			case err := <-lost:
				require.ErrorIs(t, err, driver.ErrNotHeld)
			case <-time.After(5 * time.Second):
				t.Fatal("not told")
			}
			require.ErrorIs(t, renewOne(ctx, c, h).Err, driver.ErrNotHeld)
			require.ErrorIs(t, h.Release(ctx), driver.ErrNotHeld)
			require.Empty(t, lost)
		})
	}
	t.Run("a release is no loss", func(t *testing.T) {
		c := dialTTL(t, s.Addr, prefix, 60*time.Second, nil)
		lost := make(chan error, 10)
		req := newRequest("x")
		req.Lost = func(err error) { lost <- err }
		h, err := c.TryLock(ctx, req)
		require.NoError(t, err)
		require.NoError(t, renewOne(ctx, c, h).Err)
		require.NoError(t, h.Release(ctx))
		require.Empty(t, lost)
	})
}

// TestWatchesDontPileUp gives up many waits for one holder.
func TestWatchesDontPileUp(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	ctx := within(t, 60*time.Second)
	holder, err := dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	c := dialTTL(t, p.Addr(), prefix, 60*time.Second, nil)
	watching := p.Count(func(b []byte) bool {
		return op(opGetData)(b) && b[len(b)-1] == 1 && strings.Contains(string(b), holder.(*hold).path)
	})
	for range 20 {
		req := newRequest("x")
		_, err := c.Lock(within(t, 50*time.Millisecond), req)
		require.Error(t, err)
		require.NoError(t, c.Undo(ctx, req))
	}
	require.LessOrEqual(t, watching.N(), 2)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.places)
	require.Empty(t, c.current.wakers)
	require.LessOrEqual(t, len(c.current.watched), 3)
}
