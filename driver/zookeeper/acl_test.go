package zookeeper

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestDigestUserAndACL(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	makePath(t, admin(t, s.Addr), prefix)
	// Below the top, everything belongs to the user.
	mine := dial(t, p.Addr(), prefix+"/mine", &Options{User: "u", Password: "p:w@%"})
	h, err := mine.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	z := admin(t, s.Addr)
	for _, path := range []string{prefix + "/mine", prefix + "/mine/x", mine.offsetPath(), h.(*hold).path} {
		acl, _, err := z.GetACL(path)
		if err == zk.ErrNoAuth { // not even that, for others
			continue
		}
		require.NoError(t, err)
		require.Equal(t, zk.DigestACL(zk.PermAll, "u", "p:w@%"), acl, path)
	}
	// The credentials are given again on a new connection.
	p.Cut()
	require.Eventually(t, func() bool { return renewOne(ctx, mine, h).Err == nil }, 3*time.Second, 20*time.Millisecond)
	require.NoError(t, h.Release(ctx))

	for name, o := range map[string]*Options{"nobody": nil, "wrong password": {User: "u", Password: "wrong"}} {
		start := time.Now()
		_, err := dial(t, s.Addr, prefix+"/mine", o).TryLock(ctx, newRequest("x"))
		require.ErrorIs(t, err, driver.ErrDenied, name)
		require.ErrorContains(t, err, "right", name)
		require.NotContains(t, err.Error(), "wrong", name)
		require.Less(t, time.Since(start), 3*time.Second)
	}
	// A neighbour's user sees the same locks if the ACL says so.
	shared := append(zk.DigestACL(zk.PermAll, "u", "p"), zk.DigestACL(zk.PermAll, "v", "q")...)
	u := dial(t, s.Addr, prefix+"/shared", &Options{User: "u", Password: "p", ACL: shared})
	v := dial(t, s.Addr, prefix+"/shared", &Options{Credentials: func(context.Context) (string, string, error) { return "v", "q", nil }, ACL: shared})
	h, err = u.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	_, err = v.TryLock(ctx, newRequest("x"))
	require.ErrorIs(t, err, driver.ErrHeld)
	require.NoError(t, h.Release(ctx))
	h, err = v.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))
}

// TestCFG08RightsThatAreMissing takes one right after the other away from the folder.
func TestCFG08RightsThatAreMissing(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	ctx := within(t, 60*time.Second)
	z := admin(t, s.Addr)
	t.Run("WRITE isn't needed", func(t *testing.T) {
		prefix := uniquePrefix(t)
		makePath(t, z, prefix)
		_, err := z.Create(prefix+"/x", nil, 0, zk.WorldACL(zk.PermAll&^zk.PermWrite))
		require.NoError(t, err)
		c := dial(t, s.Addr, prefix, nil)
		for range 2 {
			h, err := c.TryLock(ctx, newRequest("x"))
			require.NoError(t, err)
			_, stat, err := z.Get(h.(*hold).path)
			require.NoError(t, err)
			require.EqualValues(t, stat.Czxid, h.Grant().Token)
			require.NoError(t, h.Release(ctx))
		}
	})
	for name, right := range map[string]int32{"CREATE": zk.PermCreate, "READ": zk.PermRead, "DELETE": zk.PermDelete} {
		t.Run(name, func(t *testing.T) {
			prefix := uniquePrefix(t)
			makePath(t, z, prefix)
			_, err := z.Create(prefix+"/x", nil, 0, zk.WorldACL(zk.PermAll&^right))
			require.NoError(t, err)
			_, err = z.Create(prefix+"/x/_c_other-lock-", nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
			if right != zk.PermCreate {
				require.NoError(t, err)
			}
			l := open(t, s.Addr, prefix, 4*time.Second, nil)
			start := time.Now()
			_, err = l.Acquire(ctx, "x")
			require.ErrorIs(t, err, locker.ErrDenied)
			require.ErrorContains(t, err, name)
			require.Less(t, time.Since(start), 3*time.Second)
			// What can't be deleted ends with its session.
			require.Eventually(t, func() bool {
				stat, _, err := exists(z, prefix+"/x")
				return err == nil && stat.NumChildren <= 1
			}, 5*time.Second, 20*time.Millisecond)
		})
	}
	t.Run("the prefix", func(t *testing.T) {
		prefix := uniquePrefix(t)
		makePath(t, z, prefix)
		_, err := z.SetACL(prefix, zk.WorldACL(zk.PermRead), -1)
		require.NoError(t, err)
		_, err = dial(t, s.Addr, prefix+"/deeper/still", nil).TryLock(ctx, newRequest("x"))
		require.ErrorIs(t, err, driver.ErrDenied)
		require.ErrorContains(t, err, "CREATE")
		require.ErrorContains(t, err, prefix)
	})
}

func exists(z *zk.Conn, path string) (*zk.Stat, bool, error) {
	ok, stat, err := z.Exists(path)
	return stat, ok, err
}
