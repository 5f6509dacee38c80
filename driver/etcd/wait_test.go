package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// queued is a call of Lock under way.
type queued struct {
	req  driver.Request
	done chan struct{}
	hold driver.Hold
	err  error
	stop context.CancelFunc
}

// enqueue calls Lock and returns once its place in the queue is there.
func enqueue(t testing.TB, a *clientv3.Client, c *conn, req driver.Request) *queued {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	q := &queued{req: req, done: make(chan struct{}), stop: stop}
	go func() {
		defer close(q.done)
		q.hold, q.err = c.Lock(ctx, req)
	}()
	t.Cleanup(func() { stop(); <-q.done })
	key := c.key(req)
	eventually(t, "the place in the queue", func() bool {
		resp, err := a.Get(t.Context(), key, clientv3.WithCountOnly())
		return err == nil && resp.Count == 1
	})
	return q
}

// result waits until Lock has returned.
func (q *queued) result(t testing.TB) (driver.Hold, error) {
	t.Helper()
	select {
	case <-q.done:
	case <-time.After(patience):
		t.Fatal("Lock doesn't return")
	}
	return q.hold, q.err
}

func (q *queued) waits(t testing.TB) {
	t.Helper()
	select {
	case <-q.done:
		t.Fatalf("Lock returned %v, %v", q.hold, q.err)
	default:
	}
}

func TestQueueIsFirstComeFirstServed(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a := admin(t, s)
	var conns []*conn
	for range 3 {
		conns = append(conns, connect(t, url(s, prefix), time.Minute))
	}
	h := tryLock(t, conns[0], request("x"))
	last := h.Grant().Token
	var queue []*queued
	for i := range 9 {
		queue = append(queue, enqueue(t, a, conns[i%3], request("x")))
	}
	release(t, h)
	for i, q := range queue {
		h, err := q.result(t)
		if err != nil {
			t.Fatalf("waiter %d: %v", i, err)
		}
		for _, later := range queue[i+1:] {
			later.waits(t)
		}
		if token := h.Grant().Token; token <= last {
			t.Errorf("waiter %d: token %d after %d", i, token, last)
		} else {
			last = token
		}
		wantHeld(t, conns[i%3], request("x"))
		release(t, h)
	}
	if k := keys(t, a, prefix); len(k) != 0 {
		t.Errorf("left behind: %v", k)
	}
}

func TestOWN02TheOwnPlaceGoesWhileQueued(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, holder, c := admin(t, s), connect(t, url(s, prefix), time.Minute), connect(t, url(s, prefix), 10*time.Second)
	for _, test := range []struct {
		name string
		do   func(key string, lease clientv3.LeaseID) error
	}{
		{"deleted", func(key string, _ clientv3.LeaseID) error { _, err := a.Delete(t.Context(), key); return err }},
		{"replaced", func(key string, _ clientv3.LeaseID) error {
			_, err := a.Txn(t.Context()).Then(clientv3.OpPut(key, "mine")).Commit()
			return err
		}},
		{"lease revoked", func(_ string, id clientv3.LeaseID) error { _, err := a.Revoke(t.Context(), id); return err }},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := test.name
			h := tryLock(t, holder, request(name))
			req := request(name)
			q := enqueue(t, a, c, req)
			c.mu.Lock()
			lease := c.claims[c.key(req)].session.id
			c.mu.Unlock()
			start := time.Now()
			if err := test.do(c.key(req), lease); err != nil {
				t.Fatal(err)
			}
			if h, err := q.result(t); err == nil || driver.IsAnswer(err) {
				t.Fatalf("Lock = %v, %v; want an unknown", h, err)
			}
			if d := time.Since(start); d > max(2*time.Second, testTTL) {
				t.Errorf("noticed after %v", d)
			}
			if test.name == "replaced" {
				if _, err := a.Delete(t.Context(), c.key(req)); err != nil {
					t.Fatal(err)
				}
			}
			q = enqueue(t, a, c, req) // as the engine does
			release(t, h)
			h2, err := q.result(t)
			if err != nil {
				t.Fatal(err)
			}
			if kv, err := a.Get(t.Context(), h2.(*hold).key); err != nil || len(kv.Kvs) != 1 || kv.Kvs[0].Lease != int64(h2.(*hold).session.id) {
				t.Errorf("the granted entry: %v, %v", kv, err)
			}
			release(t, h2)
		})
	}
}

func TestLockIsCancelled(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), time.Minute)
	h := tryLock(t, c, request("x"))
	q := enqueue(t, a, c, request("x"))
	behind := enqueue(t, a, c, request("x"))
	q.stop()
	if _, err := q.result(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock: %v", err)
	}
	if err := c.Undo(within(t, patience), q.req); err != nil {
		t.Fatal(err)
	}
	if n := len(keys(t, a, prefix)); n != 2 {
		t.Errorf("%d keys, want the holder's and one waiter's", n)
	}
	behind.waits(t)
	release(t, h)
	next, err := behind.result(t)
	if err != nil {
		t.Fatal(err)
	}
	release(t, next)
}

// After a lost reply or a broken connection the same ID keeps its place.
func TestLockAgainKeepsItsPlace(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), time.Minute)
	h := tryLock(t, c, request("x"))
	first := enqueue(t, a, c, request("x"))
	second := enqueue(t, a, c, request("x"))
	first.stop()
	first.result(t)
	again := enqueue(t, a, c, first.req)
	release(t, h)
	h1, err := again.result(t)
	if err != nil {
		t.Fatal(err)
	}
	second.waits(t)
	release(t, h1)
	h2, err := second.result(t)
	if err != nil {
		t.Fatal(err)
	}
	release(t, h2)
}

// What a waiter watches was compacted while it was cut off.
func TestLockAfterCompaction(t *testing.T) {
	s := testserver.Private(t, testserver.Etcd, nil)
	a, p := admin(t, s), newProxy(t, s.Addr)
	holder, c := connect(t, url(s, "/x"), time.Minute), connect(t, "etcd://"+p.Addr+"/x", time.Minute)
	h := tryLock(t, holder, request("x"))
	q := enqueue(t, a, c, request("x"))
	eventually(t, "the watches", func() bool { return watchers(t, s) == 2 })
	p.up.close()
	p.down.close()
	p.cut() // the watch resumes at a revision that is gone by then
	release(t, h)
	for range 5 {
		if _, err := a.Put(t.Context(), "/other", ""); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := a.Get(t.Context(), "/other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	p.up.open()
	p.down.open()
	next, err := q.result(t)
	if err != nil && !driver.IsAnswer(err) { // a look was cut off; the engine asks again
		next, err = c.Lock(within(t, patience), q.req)
	}
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if c.await(t.Context(), next.(*hold).session, "/x/x/before", "/x/x/own", 2) || time.Since(start) > recheck {
		t.Error("a watch of a compacted revision didn't fail")
	}
	release(t, next)
}

// watchers reads the number of watches at the server.
func watchers(t testing.TB, s *testserver.Server) int {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\netcd_debugging_mvcc_watcher_total ")
	n := 0
	if _, err := fmt.Sscan(after, &n); !ok || err != nil {
		t.Fatalf("no such metric: %v", err)
	}
	return n
}

func TestRES06WatchesEnd(t *testing.T) {
	s := testserver.Private(t, testserver.Etcd, nil)
	a, c := admin(t, s), connect(t, url(s, "/x"), time.Minute)
	h := tryLock(t, c, request("x"))
	const waiters = 100
	for range 3 {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var reqs []driver.Request
		for range waiters {
			req := request("x")
			reqs = append(reqs, req)
			all.Go(func() {
				if _, err := c.Lock(ctx, req); err == nil {
					t.Error("granted while held")
				}
			})
		}
		eventually(t, "all wait", func() bool { return watchers(t, s) == 2*waiters })
		start := time.Now()
		stop()
		all.Wait()
		eventually(t, "no watch is left", func() bool { return watchers(t, s) == 0 })
		if d := time.Since(start); d >= recheck { // when they would have ended anyway
			t.Errorf("it took %v", d)
		}
		for _, req := range reqs {
			all.Go(func() {
				if err := c.Undo(within(t, patience), req); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := len(keys(t, a, "/x")); n != 1 {
			t.Errorf("%d keys", n)
		}
	}
	release(t, h)
	release(t, tryLock(t, c, request("x")))
	if n := len(c.sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

func TestIdleWaiterCosts(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	p := newProxy(t, s.Addr)
	holder, c := connect(t, url(s, prefix), time.Minute), connect(t, "etcd://"+p.Addr+prefix, time.Minute)
	tryLock(t, holder, request("x"))
	enqueue(t, admin(t, s), c, request("x"))
	before, start := p.calls.Load(), time.Now()
	eventually(t, "looks", func() bool { return p.calls.Load() >= before+3 })
	if rate := 3 / time.Since(start).Seconds(); rate > 2 {
		t.Errorf("an idle waiter costs %.1f requests per second", rate)
	}
}

func TestAdvance(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c, other := admin(t, s), connect(t, url(s, prefix), time.Minute), connect(t, url(s, prefix), time.Minute)
	h := tryLock(t, c, request("x"))
	q := enqueue(t, a, other, request("x")) // has its create revision before the offset is raised
	floor := uint64(1_700_000_000_000_000)
	if err := c.Advance(within(t, patience), h, floor); err != nil {
		t.Fatal(err)
	}
	if err := c.Advance(within(t, patience), h, floor-5); err != nil { // never lowers
		t.Fatal(err)
	}
	release(t, h)
	next, err := q.result(t)
	if err != nil {
		t.Fatal(err)
	}
	if token := next.Grant().Token; token <= floor {
		t.Errorf("token %d is not above %d", token, floor)
	}
	if r := renewOnce(t, other, next); r.Err != nil {
		t.Error(r.Err)
	}
	release(t, next)
	last := next.Grant().Token
	for range 3 {
		h := tryLock(t, c, request("x"))
		if token := h.Grant().Token; token <= last {
			t.Errorf("token %d after %d", token, last)
		} else {
			last = token
		}
		if err := c.Advance(within(t, patience), h, last+1000); err != nil {
			t.Fatal(err)
		}
		release(t, h)
		last += 1000
	}
	fresh := connect(t, url(s, unique()), time.Minute) // has no offset yet
	first := tryLock(t, fresh, request("x"))
	if _, err := a.Delete(t.Context(), first.key); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Advance(within(t, patience), first, 1<<40); !errors.Is(err, driver.ErrNotHeld) || len(keys(t, a, fresh.prefix)) != 0 {
		t.Errorf("Advance of a lost hold: %v, %v", err, keys(t, a, fresh.prefix))
	}
	lost := tryLock(t, c, request("x"))
	if _, err := a.Delete(t.Context(), lost.key); err != nil {
		t.Fatal(err)
	}
	if err := c.Advance(within(t, patience), lost, last+1_000_000); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Advance of a lost hold: %v", err)
	}
	if err := c.Advance(within(t, patience), lost, 1<<63); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("Advance beyond all tokens: %v", err)
	}
}
