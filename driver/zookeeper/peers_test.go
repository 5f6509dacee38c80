package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// TestNativePeersUnderContention lets this driver and the native recipe fight for one name, and counts who is inside.
func TestNativePeersUnderContention(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, time.Minute)
	const rounds = 40
	var inside, entered atomic.Int32
	visit := func() {
		if inside.Add(1) != 1 {
			t.Error("two holders")
		}
		entered.Add(1)
		time.Sleep(time.Millisecond)
		inside.Add(-1)
	}
	var wg sync.WaitGroup
	for range 3 {
		c := dial(t, s.Addr, prefix, nil)
		wg.Go(func() {
			for range rounds {
				h, err := acquire(ctx, c, "x")
				if err != nil {
					t.Error("ours:", err)
					return
				}
				visit()
				if err := h.Release(ctx); err != nil {
					t.Error("ours:", err)
				}
			}
		})
	}
	for range 3 {
		z := admin(t, s.Addr)
		wg.Go(func() {
			for range rounds {
				l := zk.NewLock(z, prefix+"/x", zk.WorldACL(zk.PermAll))
				if err := l.Lock(); err != nil {
					t.Error("zk.Lock:", err)
					return
				}
				visit()
				if err := l.Unlock(); err != nil {
					t.Error("zk.Lock:", err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 6*rounds, entered.Load())
}

// acquire does what the engine does: it tries, and queues if the name is held.
func acquire(ctx context.Context, c *conn, name string) (driver.Hold, error) {
	req := newRequest(name)
	h, err := c.TryLock(ctx, req)
	if errors.Is(err, driver.ErrHeld) {
		h, err = c.Lock(ctx, req)
	}
	return h, err
}

// TestNativePeersSeeEachOther checks both directions one by one.
func TestNativePeersSeeEachOther(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	c, z := dial(t, s.Addr, prefix, nil), admin(t, s.Addr)

	theirs := zk.NewLock(z, prefix+"/x", zk.WorldACL(zk.PermAll))
	require.NoError(t, theirs.Lock())
	_, err := c.TryLock(ctx, newRequest("x"))
	require.ErrorIs(t, err, driver.ErrHeld)
	require.NoError(t, theirs.Unlock())
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)

	got := make(chan error, 1)
	go func() { got <- theirs.Lock() }()
	require.Eventually(t, func() bool {
		children, _, err := z.Children(prefix + "/x")
		return err == nil && len(children) == 2
	}, 10*time.Second, time.Millisecond)
	select {
	case err := <-got:
		t.Fatal("zk.Lock came past our hold:", err)
	default:
	}
	require.NoError(t, h.Release(ctx))
	require.NoError(t, <-got)
	require.NoError(t, theirs.Unlock())
}

// TestCuratorOrder plays Curator's way of looking at the children: everything is sorted by what follows "lock-".
func TestCuratorOrder(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	c, z := dial(t, s.Addr, prefix, nil), admin(t, s.Addr)
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	// Curator's UUIDs have hyphens in them.
	theirs, err := z.Create(prefix+"/x/_c_01234567-89ab-4cde-8f01-23456789abcd-lock-", nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	children, _, err := z.Children(prefix + "/x")
	require.NoError(t, err)
	first := ""
	for _, name := range children {
		suffix := name[strings.LastIndex(name, "lock-")+5:]
		if first == "" || suffix < first[strings.LastIndex(first, "lock-")+5:] {
			first = name
		}
	}
	require.Equal(t, h.(*hold).path, prefix+"/x/"+first)
	require.NoError(t, h.Release(ctx))
	_, err = c.TryLock(ctx, newRequest("x"))
	require.ErrorIs(t, err, driver.ErrHeld)
	require.NoError(t, z.Delete(theirs, -1))
	_, err = c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
}

// TestNodesOfKazooAndCuratorAreInTheQueue puts nodes as those libraries write them before ours and behind it.
func TestNodesOfKazooAndCuratorAreInTheQueue(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	for name, form := range map[string]string{
		"kazoo":   "0123456789abcdef0123456789abcdef__lock__",
		"curator": "_c_01234567-89ab-4cde-8f01-23456789abcd-lock-",
	} {
		t.Run(name, func(t *testing.T) {
			prefix := uniquePrefix(t)
			ctx := within(t, 30*time.Second)
			c, z := dial(t, s.Addr, prefix, nil), admin(t, s.Addr)
			makePath(t, z, prefix+"/x")
			create := func() string {
				p, err := z.Create(prefix+"/x/"+form, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
				require.NoError(t, err)
				return p
			}
			theirs := create()
			_, err := c.TryLock(ctx, newRequest("x"))
			require.ErrorIs(t, err, driver.ErrHeld)

			type result struct {
				h   driver.Hold
				err error
			}
			got := make(chan result, 1)
			go func() {
				h, err := acquire(ctx, c, "x")
				got <- result{h, err}
			}()
			require.Eventually(t, func() bool {
				children, _, err := z.Children(prefix + "/x")
				return err == nil && len(children) == 2
			}, 10*time.Second, time.Millisecond)
			behind := create()
			require.Empty(t, got, "theirs holds")
			require.NoError(t, z.Delete(theirs, -1))
			r := <-got
			require.NoError(t, r.err, "ours is before the one that came later")
			_, err = c.TryLock(ctx, newRequest("x"))
			require.ErrorIs(t, err, driver.ErrHeld)
			require.NoError(t, r.h.Release(ctx))
			_, err = c.TryLock(ctx, newRequest("x"))
			require.ErrorIs(t, err, driver.ErrHeld, "it is theirs now")
			require.NoError(t, z.Delete(behind, -1))
		})
	}
}

func TestOWN10OrderBySequenceAlone(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	ctx := within(t, 30*time.Second)
	z := admin(t, s.Addr)
	for name, tc := range map[string]struct {
		id    string
		first bool
	}{"prefix sorts after, sequence before": {strings.Repeat("f", 32), true}, "prefix sorts before, sequence after": {strings.Repeat("0", 32), false}} {
		t.Run(name, func(t *testing.T) {
			prefix := uniquePrefix(t)
			c := dial(t, s.Addr, prefix, nil)
			h, err := c.TryLock(ctx, newRequest("x")) // makes the folder
			require.NoError(t, err)
			foreign := func() string {
				p, err := z.Create(prefix+"/x/_c_"+tc.id+"-lock-", nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
				require.NoError(t, err)
				return p
			}
			if tc.first {
				require.NoError(t, h.Release(ctx))
				p := foreign()
				got := make(chan error, 1)
				go func() {
					_, err := acquire(ctx, c, "x")
					got <- err
				}()
				require.Eventually(t, func() bool {
					children, _, err := z.Children(prefix + "/x")
					return err == nil && len(children) == 2
				}, 10*time.Second, time.Millisecond)
				require.Empty(t, got)
				require.NoError(t, z.Delete(p, -1))
				require.NoError(t, <-got)
			} else {
				foreign()
				r := renewOne(ctx, c, h)
				require.NoError(t, r.Err)
				_, err := dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
				require.ErrorIs(t, err, driver.ErrHeld)
				again, err := c.TryLock(ctx, h.(*hold).req)
				require.NoError(t, err)
				require.Equal(t, h.Grant().Token, again.Grant().Token)
			}
		})
	}
}

func renewOne(ctx context.Context, c *conn, h driver.Hold) (out driver.Renewal) {
	c.Renew(ctx, []driver.Hold{h}, func(_ int, r driver.Renewal) { out = r })
	return out
}

func TestForeignChildrenAreIgnored(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	c, z := dial(t, s.Addr, prefix, nil), admin(t, s.Addr)
	h, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))
	for _, name := range []string{"data", "lock-config", "block-1", "lock-99999999999", "__", "lock-"} {
		_, err := z.Create(prefix+"/x/"+name, []byte("mine"), 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	for range 2 {
		h, err := c.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		_, err = dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
		require.ErrorIs(t, err, driver.ErrHeld)
		require.NoError(t, h.Release(ctx))
	}
	children, _, err := z.Children(prefix + "/x")
	require.NoError(t, err)
	require.Len(t, children, 6)
}

// TestNAME07FolderWithData leaves a user's data as it is.
func TestNAME07FolderWithData(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	z := admin(t, s.Addr)
	makePath(t, z, prefix)
	_, err := z.Create(prefix+"/x", []byte("precious"), 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, before, err := z.Get(prefix + "/x")
	require.NoError(t, err)
	c := dial(t, s.Addr, prefix, nil)
	for range 2 {
		h, err := c.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		_, stat, err := z.Get(h.(*hold).path)
		require.NoError(t, err)
		require.EqualValues(t, stat.Czxid, h.Grant().Token)
		_, err = c.TryLock(ctx, newRequest("x"))
		require.ErrorIs(t, err, driver.ErrHeld)
		require.NoError(t, h.Release(ctx))
	}
	data, after, err := z.Get(prefix + "/x")
	require.NoError(t, err)
	require.Equal(t, "precious", string(data))
	require.Equal(t, before.Version, after.Version)
}

func makePath(t *testing.T, z *zk.Conn, path string) {
	t.Helper()
	for i := range path {
		if i > 0 && path[i] == '/' || i == len(path)-1 {
			p := path[:i]
			if i == len(path)-1 {
				p = path
			}
			if _, err := z.Create(p, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && err != zk.ErrNodeExists {
				t.Fatal(fmt.Errorf("%s: %w", p, err))
			}
		}
	}
}

// TestEphemeralWhereTheFolderShouldBe is a hand-written lock of another kind.
func TestEphemeralWhereTheFolderShouldBe(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	z := admin(t, s.Addr)
	makePath(t, z, prefix)
	_, err := z.Create(prefix+"/x", []byte("leader"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	c := dial(t, s.Addr, prefix, nil)
	_, err = c.TryLock(ctx, newRequest("x"))
	require.ErrorIs(t, err, driver.ErrConflict)
	data, _, err := z.Get(prefix + "/x")
	require.NoError(t, err)
	require.Equal(t, "leader", string(data))
}
