package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasekit/locker/internal/testserver"
)

// Both kinds of clients fight for one name; at no time do two of them have it.
func TestMutexAndLockerExcludeEachOther(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a := admin(t, s)
	var inside, grants atomic.Int64
	critical := func(who string) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%s: %d are inside", who, n)
		}
		time.Sleep(rand.N(5 * time.Millisecond)) // give the others time to get in
		inside.Add(-1)
		grants.Add(1)
	}
	const rounds = 15
	var all sync.WaitGroup
	for i := range 3 {
		session, err := concurrency.NewSession(a, concurrency.WithTTL(30))
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		all.Go(func() {
			for range rounds {
				m := concurrency.NewMutex(session, prefix+"/x")
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				critical(fmt.Sprint("mutex ", i))
				if err := m.Unlock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
		c := connect(t, url(s, prefix), 30*time.Second)
		all.Go(func() {
			for range rounds {
				h, err := c.Lock(t.Context(), request("x"))
				if err != nil {
					t.Error(err)
					return
				}
				critical(fmt.Sprint("locker ", i))
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			for n := 0; n < rounds; {
				h, err := c.TryLock(t.Context(), request("x"))
				if err != nil {
					time.Sleep(rand.N(time.Millisecond))
					if grants.Load() >= 6*rounds { // the queue may never be empty before
						return
					}
					continue
				}
				n++
				critical(fmt.Sprint("try ", i))
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if k := keys(t, a, prefix); len(k) != 0 {
		t.Errorf("left behind: %v", k)
	}
}

func TestMutexQueuesInBothDirections(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), time.Minute)
	session, err := concurrency.NewSession(a, concurrency.WithTTL(30))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	m := concurrency.NewMutex(session, prefix+"/x")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, c, request("x"))
	q := enqueue(t, a, c, request("x"))
	q.waits(t)
	if err := m.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	h, err := q.result(t)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.TryLock(t.Context()); err != concurrency.ErrLocked {
		t.Errorf("Mutex.TryLock: %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- m.Lock(t.Context()) }()
	eventually(t, "the mutex queues", func() bool { return len(keys(t, a, prefix)) == 2 })
	release(t, h)
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	wantHeld(t, c, request("x"))
	if err := m.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, tryLock(t, c, request("x")))
}

func TestEtcdctlLock(t *testing.T) {
	s := testserver.Private(t, testserver.Etcd, nil)
	a, c := admin(t, s), connect(t, s.URL("etcd")+"?prefix=", time.Minute)
	lock := []string{"etcdctl", "--endpoints=127.0.0.1:2379", "lock", "nightly", "--", "etcdctl", "--endpoints=127.0.0.1:2379"}

	// etcdctl holds and its command waits for a key to appear.
	ctx, stop := context.WithCancel(within(t, patience))
	ended := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, append(lock, "watch", "go")...)
		ended <- err
	}()
	eventually(t, "etcdctl holds", func() bool { return len(keys(t, a, "nightly/")) == 1 })
	wantHeld(t, c, request("nightly"))
	q := enqueue(t, a, c, request("nightly"))
	q.waits(t)
	resp, err := a.Get(t.Context(), keys(t, a, "nightly/")[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys(t, a, "nightly/") { // ending the client of docker exec doesn't end etcdctl
		if !strings.HasSuffix(k, q.req.ID) {
			if resp, err = a.Get(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := a.Delete(t.Context(), string(resp.Kvs[0].Key)); err != nil {
		t.Fatal(err)
	}
	h, err := q.result(t)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	<-ended

	// We hold and etcdctl waits.
	go func() {
		_, err := s.Exec(within(t, patience), append(lock, "put", "entered", "yes")...)
		ended <- err
	}()
	eventually(t, "etcdctl queues", func() bool { return len(keys(t, a, "nightly/")) == 2 })
	if k := keys(t, a, "entered"); len(k) != 0 {
		t.Error("etcdctl has entered while the lock was held")
	}
	release(t, h)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if k := keys(t, a, "entered"); len(k) != 1 {
		t.Error("etcdctl has never entered")
	}
}
