package zookeeper

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestInspectAndList(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	c, z := dial(t, s.Addr, prefix, nil), admin(t, s.Addr)
	e, err := c.Inspect(ctx, "a/b")
	require.NoError(t, err)
	require.Equal(t, driver.Entry{Name: "a/b"}, e)
	there, _, err := z.Exists(prefix)
	require.NoError(t, err)
	require.False(t, there, "to look leaves nothing")
	require.NoError(t, c.List(ctx, func(driver.Entry) bool { t.Error("nothing is held"); return false }))

	req := newRequest("a/b")
	h, err := c.TryLock(ctx, req)
	require.NoError(t, err)
	require.NoError(t, c.Advance(ctx, h, 1<<50))
	require.NoError(t, h.Release(ctx))
	h, err = c.TryLock(ctx, req)
	require.NoError(t, err)
	_, err = z.Create(prefix+"/a%2Fb/_c_x-lock-", nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	e, err = c.Inspect(ctx, "a/b")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), e.Since, time.Minute)
	e.Since = time.Time{}
	require.Equal(t, driver.Entry{Name: "a/b", Held: true, Owner: req.Owner, ID: req.ID, Token: h.Grant().Token, Waiters: 1}, e)

	theirs := zk.NewLock(z, prefix+"/theirs", zk.WorldACL(zk.PermAll))
	require.NoError(t, theirs.Lock())
	free, err := c.TryLock(ctx, newRequest("free"))
	require.NoError(t, err)
	require.NoError(t, free.Release(ctx))
	var names []string
	require.NoError(t, c.List(ctx, func(e driver.Entry) bool { names = append(names, e.Name); return true }))
	require.ElementsMatch(t, []string{"a/b", "theirs"}, names)
}

func TestCheck(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	ctx := within(t, 30*time.Second)
	check := func(c *conn) map[string]driver.Finding {
		findings, err := c.Check(ctx)
		require.NoError(t, err)
		out := make(map[string]driver.Finding)
		for _, f := range findings {
			require.NotContains(t, out, f.Check)
			require.Equal(t, f.Severity == driver.Pass, f.Advice == "", "%+v", f)
			out[f.Check] = f
		}
		return out
	}
	prefix := uniquePrefix(t)
	z := admin(t, s.Addr)
	c := dial(t, s.Addr, prefix, nil)
	f := check(c)
	require.Equal(t, driver.Pass, f["timeout"].Severity)
	require.Equal(t, driver.Pass, f["rights"].Severity, "%+v", f["rights"])
	require.Equal(t, driver.Note, f["server"].Severity)
	require.Contains(t, f["server"].Detail, "standalone")
	require.Equal(t, driver.Pass, f["ticks"].Severity)
	require.Contains(t, f["ticks"].Detail, "tickTime 200")
	require.Contains(t, f, "connections")
	require.Contains(t, f, "latency")
	children, _, err := z.Children(prefix + "/" + checkName)
	if err == nil {
		require.Empty(t, children)
	}
	require.Equal(t, driver.Note, check(dialTTL(t, s.Addr, prefix, 100*time.Millisecond, nil))["timeout"].Severity)

	closed := uniquePrefix(t)
	makePath(t, z, closed)
	_, err = z.SetACL(closed, zk.WorldACL(zk.PermRead), -1)
	require.NoError(t, err)
	require.Equal(t, driver.Fail, check(dial(t, s.Addr, closed, nil))["rights"].Severity)

	for conf, want := range map[string]driver.Severity{"tickTime=2000\nminSessionTimeout=4000\n": driver.Pass, "tickTime=2000\nminSessionTimeout=1000\n": driver.Warn} {
		require.Equal(t, want, checkConf(conf+"maxClientCnxns=60\n", nil)[0].Severity)
	}
	require.Equal(t, driver.Warn, checkConf("tickTime=2000\nminSessionTimeout=4000\nmaxClientCnxns=1\n", nil)[1].Severity)
	require.Equal(t, driver.Note, checkConf("conf is not executed because it is not in the whitelist.", nil)[0].Severity)
	require.Equal(t, driver.Warn, checkServer("Zookeeper version: 3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf, built\nMode: follower\n", nil).Severity)
	require.Equal(t, driver.Note, checkServer(strings.Repeat("x", 10), nil).Severity)
}
