package consul

import (
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

func TestRenewSetsTheTTLAnew(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), time.Second)
	h := lock(t, c, "a")
	sent := h.Grant().Sent
	for c.cfg.Now().Sub(h.Grant().Sent) < 4*time.Second {
		r, _ := renew(t, c, h)
		require.NoError(t, r[0].Err)
		require.Equal(t, time.Second, r[0].TTL)
		require.True(t, sent.Before(r[0].Sent))
		sent = r[0].Sent
		time.Sleep(100 * time.Millisecond)
	}
	release(t, h)
}

// Three times as many holds as fit into a transaction, some of them lost: each is reported for itself.
func TestRenewReportsEachHold(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	a := admin(t, s)
	var holds []driver.Hold
	for i := range 3*maxOps + 1 {
		holds = append(holds, lock(t, c, fmt.Sprint(i)))
	}
	lost := map[int]bool{0: true, 63: true, 64: true, 100: true, 3 * maxOps: true}
	for i := range lost {
		_, err := a.KV().Delete(holds[i].(*hold).key, nil)
		require.NoError(t, err)
	}
	r, _ := renew(t, c, holds...)
	for i := range r {
		if lost[i] {
			require.ErrorIs(t, r[i].Err, driver.ErrNotHeld, i)
		} else {
			require.NoError(t, r[i].Err, i)
		}
	}
}

func TestOWN17EntryChangedBehindTheHoldersBack(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	a := admin(t, s)
	p := prefix(t)
	c := connect(t, "consul://"+s.Addr+"/"+p+"?lockdelay=0s", 15*time.Second)
	other := connect(t, "consul://"+s.Addr+"/"+p+"?lockdelay=0s", 15*time.Second)
	keep := lock(t, c, "keep") // keeps the session alive
	check := func(h *hold) {
		t.Helper()
		r, _ := renew(t, c, h, keep)
		require.ErrorIs(t, r[0].Err, driver.ErrNotHeld)
		require.NoError(t, r[1].Err)
	}
	t.Run("deleted", func(t *testing.T) {
		h := lock(t, c, "a")
		_, err := a.KV().Delete(h.key, nil)
		require.NoError(t, err)
		check(h)
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
		release(t, lock(t, c, "a"))
	})
	t.Run("deleted and taken by the next local contender", func(t *testing.T) {
		h := lock(t, c, "b")
		_, err := a.KV().Delete(h.key, nil)
		require.NoError(t, err)
		next := lock(t, c, "b")
		require.Equal(t, h.s, next.s)
		check(h) // although the key is locked by its session
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
		r, _ := renew(t, c, next)
		require.NoError(t, r[0].Err, "the next holder's entry isn't touched")
		release(t, next)
	})
	t.Run("OWN-05 deleted and taken by another", func(t *testing.T) {
		h := lock(t, c, "c")
		_, err := a.KV().Delete(h.key, nil)
		require.NoError(t, err)
		next := lock(t, other, "c")
		before := entry(t, a, h.key)
		check(h)
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
		require.Equal(t, before, entry(t, a, h.key))
		release(t, next)
	})
	t.Run("overwritten", func(t *testing.T) {
		h := lock(t, c, "d")
		_, err := a.KV().Put(&api.KVPair{Key: h.key, Value: []byte("mine now")}, nil)
		require.NoError(t, err)
		require.Equal(t, h.s.id, entry(t, a, h.key).Session, "the name would be locked as long as the session lives")
		check(h)
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
		e := entry(t, a, h.key)
		require.Equal(t, "mine now", string(e.Value))
		require.Zero(t, e.Flags)
		require.Empty(t, e.Session)
	})
	t.Run("OWN-06 session destroyed", func(t *testing.T) {
		h := lock(t, c, "e")
		_, err := a.Session().Destroy(h.s.id, nil)
		require.NoError(t, err)
		r, _ := renew(t, c, h, keep)
		require.ErrorIs(t, r[0].Err, driver.ErrNotHeld)
		require.ErrorIs(t, r[1].Err, driver.ErrNotHeld)
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
		again := lock(t, c, "e")
		require.Greater(t, again.Grant().Token, h.Grant().Token)
		require.NotEqual(t, h.s, again.s)
	})
	t.Run("session destroyed, found by the next acquisition", func(t *testing.T) {
		req := request("f")
		told := make(chan error, 1)
		req.Lost = func(err error) { told <- err }
		got, err := c.TryLock(t.Context(), req)
		require.NoError(t, err)
		h := got.(*hold)
		_, err = a.Session().Destroy(h.s.id, nil)
		require.NoError(t, err)
		again := lock(t, c, "g")
		require.NotEqual(t, h.s, again.s)
		require.ErrorIs(t, <-told, driver.ErrNotHeld)
	})
}

// While renewals fail, a read that succeeds extends nothing; all reads that decide are consistent.
func TestOWN14ReadsProveNothing(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	url := "consul://" + p.addr() + "/" + prefix(t)
	c, b := connect(t, url, 4*time.Second), connect(t, url, 4*time.Second)
	h := lock(t, c, "a")
	_, err := b.TryLock(t.Context(), request("a"))
	require.ErrorIs(t, err, driver.ErrHeld)
	hints, stop, err := b.Watch(t.Context(), "a")
	require.NoError(t, err)
	p.set(func(r seenRequest) action {
		if strings.HasPrefix(r.path, "/v1/session/renew") {
			return action{status: http.StatusInternalServerError}
		}
		return action{}
	})
	r, _ := renew(t, c, h)
	require.Error(t, r[0].Err)
	require.False(t, driver.IsAnswer(r[0].Err))
	require.Zero(t, r[0].Sent)
	require.Zero(t, r[0].TTL)
	p.set(nil)
	_, err = b.TryLock(t.Context(), request("a"))
	require.ErrorIs(t, err, driver.ErrHeld)
	_, err = b.TryLock(t.Context(), request("a"))
	require.ErrorIs(t, err, driver.ErrHeld)
	r, _ = renew(t, c, h)
	require.NoError(t, r[0].Err)
	release(t, h)
	<-hints
	stop()
	reads := 0
	for _, r := range p.requests() {
		if r.isWatch() || r.path == "/v1/txn" {
			require.Contains(t, r.query, "consistent", r.path)
			require.NotContains(t, r.query, "stale")
			require.NotContains(t, r.query, "cached")
			reads++
		}
	}
	require.Greater(t, reads, 4)
}

// A session whose TTL has passed unrenewed isn't used and not renewed again, although the server has it for another TTL.
func TestPassedSessionIsGivenUp(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t)+"?lockdelay=0s", time.Second)
	h := lock(t, c, "a")
	eventually(t, 5*time.Second, "the TTL's end", func() bool { return c.cfg.Now().Sub(h.Grant().Sent) >= time.Second })
	next := lock(t, c, "b")
	require.NotEqual(t, h.s, next.s)
	r, unresolved := renew(t, c, h)
	require.ErrorIs(t, r[0].Err, driver.ErrNotHeld)
	require.Positive(t, unresolved)
	if err := h.Release(t.Context()); err != nil {
		require.ErrorIs(t, err, driver.ErrNotHeld)
	}
	_, unresolved = renew(t, c, next)
	require.Zero(t, unresolved)
	require.Len(t, c.sessions, 1)
}

func TestTryLockRenewsASessionPastHalfOfItsTTL(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 2*time.Second)
	h := lock(t, c, "a")
	eventually(t, 5*time.Second, "half of the TTL", func() bool { return c.cfg.Now().Sub(h.Grant().Sent) >= time.Second })
	next := lock(t, c, "b")
	require.Equal(t, h.s, next.s)
	require.True(t, h.Grant().Sent.Before(next.Grant().Sent))
	require.Less(t, c.cfg.Now().Sub(next.Grant().Sent), time.Second)
}
