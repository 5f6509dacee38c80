package consul

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

// witness sees whether two are inside at a time.
type witness struct {
	inside atomic.Int32
	max    atomic.Int32
}

func (w *witness) visit(d time.Duration) {
	n := w.inside.Add(1)
	for m := w.max.Load(); n > m && !w.max.CompareAndSwap(m, n); m = w.max.Load() {
	}
	time.Sleep(d)
	w.inside.Add(-1)
}

func open(t testing.TB, url string) locker.Locker {
	t.Helper()
	l, err := locker.Open(t.Context(), url, nil)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// Contenders that use api.Lock, and others that use ours, on one key.
func TestAPILockExcludesUsAndWeIt(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	dir := fmt.Sprintf("test/interop-%d", time.Now().UnixNano())
	for _, c := range []struct{ url, name string }{
		{"consul://" + s.Addr + "/" + dir, "job"},
		{"consul://" + s.Addr + "?prefix=", dir + "/job"},
	} {
		t.Run(c.url[len("consul://"):], func(t *testing.T) {
			key := dir + "/job"
			var w witness
			var ours, theirs atomic.Int32
			var wg sync.WaitGroup
			ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
			defer stop()
			enough := func() bool { return ours.Load() >= 20 && theirs.Load() >= 20 || ctx.Err() != nil }
			for range 2 {
				l := open(t, c.url)
				wg.Go(func() {
					var last locker.Token
					for !enough() {
						lease, err := l.Acquire(ctx, c.name)
						if err != nil {
							return
						}
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						w.visit(time.Millisecond)
						ours.Add(1)
						if err := lease.Release(ctx); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
				wg.Go(func() {
					for !enough() {
						lock, err := admin(t, s).LockOpts(&api.LockOptions{Key: key, SessionTTL: "10s", LockWaitTime: time.Second})
						if err != nil {
							t.Error(err)
							return
						}
						lost, err := lock.Lock(ctx.Done())
						if err != nil {
							t.Errorf("api.Lock: %v", err)
							return
						}
						if lost == nil {
							return
						}
						w.visit(time.Millisecond)
						theirs.Add(1)
						lock.Unlock()
					}
				})
			}
			wg.Wait()
			t.Log("ours", ours.Load(), "theirs", theirs.Load())
			require.EqualValues(t, 1, w.max.Load())
			require.GreaterOrEqual(t, ours.Load(), int32(20))
			require.GreaterOrEqual(t, theirs.Load(), int32(20))
		})
	}
}

func TestWaitersForAPILock(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	dir := fmt.Sprintf("test/interop-%d", time.Now().UnixNano())
	l := open(t, "consul://"+s.Addr+"/"+dir)
	theirs, err := admin(t, s).LockOpts(&api.LockOptions{Key: dir + "/job", SessionTTL: "10s", LockWaitTime: time.Second})
	require.NoError(t, err)
	lost, err := theirs.Lock(nil)
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "job")
	require.ErrorIs(t, err, locker.ErrHeld)
	granted := make(chan locker.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "job")
		if err == nil {
			granted <- lease
		}
	}()
	time.Sleep(300 * time.Millisecond)
	require.Empty(t, granted)
	require.NoError(t, theirs.Unlock())
	<-lost
	var lease locker.Lease
	select {
	case lease = <-granted:
	case <-time.After(3 * time.Second):
		t.Fatal("an api.Lock was unlocked, and we didn't get the name")
	}
	stop := make(chan struct{})
	time.AfterFunc(500*time.Millisecond, func() { close(stop) })
	lost, err = theirs.Lock(stop)
	require.NoError(t, err)
	require.Nil(t, lost, "api.Lock waits for us")
	require.NoError(t, lease.Release(t.Context()))
	lost, err = theirs.Lock(nil)
	require.NoError(t, err)
	require.NotNil(t, lost)
	require.NoError(t, theirs.Unlock())
}

// The command consul lock runs inside the server's container; what it locks is PREFIX/.lock.
func TestConsulLockExcludesUsAndWeIt(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	if _, err := s.Exec(t.Context(), "consul", "version"); err != nil {
		t.Skip("no consul command beside this server:", err)
	}
	dir := fmt.Sprintf("test/interop-%d", time.Now().UnixNano())
	l := open(t, "consul://"+s.Addr+"/"+dir)

	lease, err := l.Acquire(t.Context(), ".lock")
	require.NoError(t, err)
	out, err := s.Exec(t.Context(), "consul", "lock", "-try=1s", "-shell=false", dir, "consul", "version")
	require.Error(t, err, "it must not get what we hold: %s", out)
	require.NoError(t, lease.Release(t.Context()))

	// Its child writes a key, which must not change while we hold the lock.
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	written := func() (index uint64) {
		e, _, err := admin(t, s).KV().Get(dir+"/written", &api.QueryOptions{RequireConsistent: true})
		require.NoError(t, err)
		if e != nil {
			index = e.ModifyIndex
		}
		return index
	}
	var wg sync.WaitGroup
	var theirs, ours atomic.Int32
	const commands, each = 2, 4
	for i := range commands {
		wg.Go(func() {
			for n := range each {
				out, err := s.Exec(ctx, "consul", "lock", "-shell=false", dir, "consul", "kv", "put", dir+"/written", fmt.Sprint(i, n))
				if err != nil {
					t.Errorf("consul lock: %v: %s", err, out)
					return
				}
				theirs.Add(1)
			}
		})
	}
	for ctx.Err() == nil && theirs.Load() < commands*each {
		lease, err := l.Acquire(ctx, ".lock")
		require.NoError(t, err)
		before := written()
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, before, written(), "consul lock's child ran while we held the lock")
		ours.Add(1)
		require.NoError(t, lease.Release(ctx))
	}
	wg.Wait()
	t.Log("ours", ours.Load(), "theirs", theirs.Load())
	require.Positive(t, ours.Load())
	require.Positive(t, written())
}
