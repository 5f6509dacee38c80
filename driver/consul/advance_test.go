package consul

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestAdvance(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := prefix(t)
	url := "consul://" + s.Addr + "/" + p
	c, other := connect(t, url, 15*time.Second), connect(t, url, 15*time.Second)
	a := admin(t, s)

	h := lock(t, c, "a")
	before := h.Grant().Token
	require.NoError(t, c.Advance(t.Context(), h, before-1))
	require.Nil(t, entry(t, a, c.offsetKey()), "nothing to raise")
	floor := uint64(1_700_000_000_000_000) // microseconds
	require.NoError(t, c.Advance(t.Context(), h, floor))
	raised := entry(t, a, c.offsetKey())
	require.NotNil(t, raised)
	require.NoError(t, c.Advance(t.Context(), h, floor-1))
	require.Equal(t, raised, entry(t, a, c.offsetKey()), "never lowered")
	require.Equal(t, before, h.Grant().Token)
	release(t, h)

	next := lock(t, other, "a")
	require.Greater(t, next.Grant().Token, floor)
	require.ErrorIs(t, c.Advance(t.Context(), h, 2*floor), driver.ErrNotHeld)
	require.Equal(t, raised, entry(t, a, c.offsetKey()))
	require.Greater(t, lock(t, c, "b").Grant().Token, floor, "the offset is the prefix's")
	release(t, next)

	// All names at once, each to another floor: the greatest counts.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			conn := []*conn{c, other}[i%2]
			h := lock(t, conn, fmt.Sprint("n", i))
			if err := conn.Advance(within(t, 20*time.Second), h, floor*uint64(i+2)); err != nil {
				t.Error(err)
			}
			release(t, h)
		})
	}
	wg.Wait()
	h = lock(t, c, "a")
	require.Greater(t, h.Grant().Token, 9*floor)
	require.ErrorIs(t, c.Advance(t.Context(), h, math.MaxInt64), driver.ErrConfig)
	require.NoError(t, c.Advance(t.Context(), h, math.MaxInt64-1_000_000))
	release(t, h)
	require.LessOrEqual(t, lock(t, c, "a").Grant().Token, uint64(math.MaxInt64))
}

// An offset that is no number, or too large, refuses grants instead of making wrong tokens.
func TestSpoiledOffset(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	a := admin(t, s)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	for _, bad := range []string{"", "x", "-1", "1.5", fmt.Sprint(uint64(math.MaxUint64)), fmt.Sprint(int64(math.MaxInt64))} {
		_, err := a.KV().Put(&api.KVPair{Key: c.offsetKey(), Value: []byte(bad)}, nil)
		require.NoError(t, err)
		_, err = c.TryLock(t.Context(), request("a"))
		require.ErrorIs(t, err, driver.ErrConflict, bad)
		require.Contains(t, err.Error(), "offset")
		require.Nil(t, entry(t, a, c.key("a")), "the grant was given back")
	}
}

func TestInspectAndList(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	a := admin(t, s)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	free, err := c.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, driver.Entry{Name: "a", Waiters: -1}, free)
	names := []string{"a", "a/b", "..", "x y%"}
	for _, n := range names {
		h := lock(t, c, n)
		e, err := c.Inspect(t.Context(), n)
		require.NoError(t, err)
		require.True(t, e.Held)
		require.Equal(t, "test", e.Owner)
		require.Equal(t, h.id, e.ID)
		require.Equal(t, h.Grant().Token, e.Token)
		require.Less(t, time.Since(e.Since).Abs(), time.Minute)
	}
	require.NoError(t, c.Advance(t.Context(), lock(t, c, "z"), 1_000_000_000))
	_, err = a.KV().Put(&api.KVPair{Key: c.key("data"), Value: []byte("x")}, nil)
	require.NoError(t, err)
	listed := map[string]driver.Entry{}
	require.NoError(t, c.List(t.Context(), func(e driver.Entry) bool { listed[e.Name] = e; return true }))
	require.Len(t, listed, len(names)+1)
	for _, n := range names {
		e, err := c.Inspect(t.Context(), n)
		require.NoError(t, err)
		require.Equal(t, e, listed[n])
	}
	n := 0
	require.NoError(t, c.List(t.Context(), func(driver.Entry) bool { n++; return false }))
	require.Equal(t, 1, n)

	foreign := "theirs"
	id, _, err := a.Session().CreateNoChecks(&api.SessionEntry{TTL: "60s"}, nil)
	require.NoError(t, err)
	defer a.Session().Destroy(id, nil)
	_, _, err = a.KV().Acquire(&api.KVPair{Key: c.key(foreign), Session: id, Flags: api.LockFlagValue}, nil)
	require.NoError(t, err)
	e, err := c.Inspect(t.Context(), foreign)
	require.NoError(t, err)
	require.Equal(t, driver.Entry{Name: foreign, Held: true, Waiters: -1}, e)
}

func TestCheck(t *testing.T) {
	s, acl := testserver.Need(t, testserver.Consul), testserver.Need(t, testserver.ConsulACL)
	find := func(c *conn, check string) driver.Finding {
		t.Helper()
		all, err := c.Check(within(t, 10*time.Second))
		require.NoError(t, err)
		require.Len(t, all, 5)
		for _, f := range all {
			require.Equal(t, f.Severity == driver.Pass, f.Advice == "", f)
			require.NotEmpty(t, f.Detail)
			if f.Check == check {
				return f
			}
		}
		t.Fatal("no finding", check)
		return driver.Finding{}
	}
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	for _, check := range []string{"leader", "session", "keys", "take-over", "version"} {
		require.Equal(t, driver.Pass, find(c, check).Severity, check)
	}
	require.Contains(t, find(c, "take-over").Detail, "45s")
	require.Equal(t, driver.Note, find(connect(t, "consul://"+s.Addr+"/"+prefix(t)+"?lockdelay=0s", 15*time.Second), "take-over").Severity)
	keys, _, err := admin(t, s).KV().Keys(c.under(), "", nil)
	require.NoError(t, err)
	require.Empty(t, keys, "it leaves nothing behind")

	p := prefix(t)
	rules := strings.ReplaceAll(`session_prefix "" { policy = "write" } key_prefix "PREFIX/" { policy = "read" }`, "PREFIX", p)
	denied := connect(t, "consul://"+token(t, admin(t, acl), rules)+"@"+acl.Addr+"/"+p, 15*time.Second)
	require.Equal(t, driver.Fail, find(denied, "keys").Severity)
	require.Contains(t, find(denied, "keys").Advice, p)
	require.Equal(t, driver.Note, find(denied, "version").Severity)
}
