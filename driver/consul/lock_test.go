package consul

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestLockAndRelease(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := prefix(t)
	a, b, client := connect(t, "consul://"+s.Addr+"/"+p, 15*time.Second), connect(t, "consul://"+s.Addr+"/"+p, 15*time.Second), admin(t, s)

	var last uint64
	for range 3 {
		before := a.cfg.Now()
		h := lock(t, a, "job")
		g := h.Grant()
		require.Greater(t, g.Token, last)
		require.Equal(t, 15*time.Second, g.TTL)
		require.Less(t, a.cfg.Now().Sub(g.Sent), 8*time.Second)
		require.False(t, before.Add(15*time.Second).Before(g.Sent))
		last = g.Token

		e := entry(t, client, p+"/job")
		require.NotNil(t, e)
		require.Equal(t, uint64(api.LockFlagValue), e.Flags)
		require.True(t, carries(e, h.id))
		require.Equal(t, g.Token, e.ModifyIndex)

		_, err := b.TryLock(t.Context(), request("job"))
		require.ErrorIs(t, err, driver.ErrHeld)
		_, err = a.TryLock(t.Context(), request("job"))
		require.ErrorIs(t, err, driver.ErrHeld, "another ID of the same session is a stranger")
		require.Equal(t, e, entry(t, client, p+"/job"))

		release(t, h)
		require.Nil(t, entry(t, client, p+"/job"))
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
	}
	h := lock(t, b, "job")
	require.Greater(t, h.Grant().Token, last)
}

func TestTwoRequestsPerCycle(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	c := connect(t, "consul://"+p.addr()+"/"+prefix(t), time.Minute)
	release(t, lock(t, c, "a"))
	p.requests()
	const cycles = 20
	for i := range cycles {
		release(t, lock(t, c, fmt.Sprint("n", i%3)))
	}
	require.Len(t, p.requests(), 2*cycles)
}

func TestSessionIsSentAsDocumented(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	for _, c := range []struct {
		query string
		delay time.Duration
	}{{"", 15 * time.Second}, {"?lockdelay=0s", 0}, {"?lockdelay=5s", 5 * time.Second}, {"?lockdelay=1ms", time.Millisecond}} {
		t.Run("EXP-17 "+c.query, func(t *testing.T) {
			p := newProxy(t, s.Addr)
			conn := connect(t, "consul://"+p.addr()+"/"+prefix(t)+c.query, 20*time.Second)
			h := lock(t, conn, "a")
			log := p.requests()
			require.Equal(t, "/v1/session/create", log[0].path)
			var body map[string]any
			require.NoError(t, json.Unmarshal([]byte(log[0].body), &body))
			require.Equal(t, map[string]any{
				"Name": "locker test", "TTL": "20s", "LockDelay": c.delay.String(), "Behavior": "delete", "NodeChecks": []any{},
			}, body)
			se, _, err := admin(t, s).Session().Info(h.s.id, nil)
			require.NoError(t, err)
			require.Equal(t, c.delay, se.LockDelay)
			require.Empty(t, se.NodeChecks)
			require.Empty(t, se.ServiceChecks)
			require.Empty(t, se.Checks)
			require.Equal(t, "20s", se.TTL)
			require.Equal(t, "delete", se.Behavior)
		})
	}
}

func TestNAME07ForeignEntries(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	a := admin(t, s)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	t.Run("data", func(t *testing.T) {
		_, err := a.KV().Put(&api.KVPair{Key: c.key("x"), Value: []byte("user data")}, nil)
		require.NoError(t, err)
		before := entry(t, a, c.key("x"))
		_, err = c.TryLock(t.Context(), request("x"))
		require.ErrorIs(t, err, driver.ErrConflict)
		require.Equal(t, before, entry(t, a, c.key("x")))
	})
	t.Run("a lock's remainder", func(t *testing.T) {
		_, err := a.KV().Put(&api.KVPair{Key: c.key("y"), Flags: api.LockFlagValue}, nil)
		require.NoError(t, err)
		h := lock(t, c, "y")
		require.Greater(t, h.Grant().Token, uint64(1))
		_, err = c.TryLock(t.Context(), request("y"))
		require.ErrorIs(t, err, driver.ErrHeld)
		release(t, h)
		require.Nil(t, entry(t, a, c.key("y")))
	})
	t.Run("locked by a session with other flags", func(t *testing.T) {
		id, _, err := a.Session().CreateNoChecks(&api.SessionEntry{TTL: "60s"}, nil)
		require.NoError(t, err)
		defer a.Session().Destroy(id, nil)
		_, _, err = a.KV().Acquire(&api.KVPair{Key: c.key("z"), Session: id}, nil)
		require.NoError(t, err)
		_, err = c.TryLock(t.Context(), request("z"))
		require.ErrorIs(t, err, driver.ErrHeld)
	})
}

func TestLockDelayIsToldApart(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := prefix(t)
	a := connect(t, "consul://"+s.Addr+"/"+p+"?lockdelay=2s", 15*time.Second)
	b := connect(t, "consul://"+s.Addr+"/"+p+"?lockdelay=0s", 15*time.Second)
	h := lock(t, a, "x")
	_, err := admin(t, s).Session().Destroy(h.s.id, nil)
	require.NoError(t, err)
	_, err = b.TryLock(t.Context(), request("x"))
	require.ErrorIs(t, err, driver.ErrHeld)
	require.Contains(t, err.Error(), "lock-delay")
	require.Positive(t, driver.HeldFor(err))
	eventually(t, 10*time.Second, "a grant after the delay", func() bool {
		_, err := b.TryLock(t.Context(), request("x"))
		return err == nil
	})
}

func TestEXP14FloorOfTheServer(t *testing.T) {
	s := testserver.Need(t, testserver.ConsulDefault)
	p := newProxy(t, s.Addr)
	began := time.Now()
	_, err := tryConnect(t, "consul://"+p.addr()+"/"+prefix(t), 5*time.Second)
	require.ErrorIs(t, err, driver.ErrConfig)
	require.Contains(t, err.Error(), "10s")
	require.Less(t, time.Since(began), 3*time.Second)
	require.Len(t, p.requests(), 1, "no retries")

	t.Run("at the first attempt, if the server was away", func(t *testing.T) {
		p.set(func(seenRequest) action { return action{status: http.StatusInternalServerError} })
		c := connect(t, "consul://"+p.addr()+"/"+prefix(t), 5*time.Second)
		p.set(nil)
		p.requests()
		_, err := c.TryLock(t.Context(), request("a"))
		require.ErrorIs(t, err, driver.ErrConfig)
		require.Contains(t, err.Error(), "10s")
		require.Len(t, p.requests(), 1)
	})
	for _, ttl := range []time.Duration{10 * time.Second, 15 * time.Second} {
		h := lock(t, connect(t, "consul://"+s.Addr+"/"+prefix(t), ttl), "a")
		require.Equal(t, ttl, h.Grant().TTL)
		se, _, err := admin(t, s).Session().Info(h.s.id, nil)
		require.NoError(t, err)
		require.Equal(t, ttl.String(), se.TTL)
	}
}

func TestNAMEOddNames(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	names := []string{"file:///var/x", "a//b", ".", "..", "a/../b", "a/./b", "zookeeper", "\x00", "\x7f", "\u0085", "\ud7ff", "🔒", strings.Repeat("x", 512), " ",
		"/", "//", "/a", "a/", "a", "a/b", "a/b/c", "ab", "a.b", "a/x", "%", "%2F", "%offset", "a%b", "?x=y&z", "#", "+", "\\", "\"", "é", ".lock", "a/.lock", "...", "\n", "<b>", "\ufffd"}
	var holds []driver.Hold
	for _, n := range names {
		t.Run(fmt.Sprintf("NAME-01 NAME-03 %q", n), func(t *testing.T) {
			got, ok := decodeName(encodeName(n))
			require.True(t, ok)
			require.Equal(t, n, got)
			h := lock(t, c, n)
			holds = append(holds, h)
			// What a blocking query reads is that entry.
			e, _, err := c.block(within(t, 5*time.Second), h.key, 0)
			require.NoError(t, err)
			require.NotNil(t, e)
			require.True(t, carries(e, h.id))
		})
	}
	r, _ := renew(t, c, holds...)
	for i := range r {
		require.NoError(t, r[i].Err)
		release(t, holds[i])
	}
}
