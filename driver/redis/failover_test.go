package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver/redis"
	"github.com/leasekit/locker/internal/testserver"
)

// sentinels returns the URL of the group, and the client library's own client for it.
func sentinels(t testing.TB, m []*testserver.Server) (url string, c *goredis.Client) {
	addrs := []string{m[2].Addr, m[3].Addr, m[4].Addr}
	c = goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "main", SentinelAddrs: addrs, ContextTimeoutEnabled: true})
	t.Cleanup(func() { c.Close() })
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/main", c
}

// replicated waits until the replica has a key.
func replicated(t testing.TB, replica *goredis.Client, key string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); replica.Exists(t.Context(), key).Val() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s isn't replicated", key)
		}
	}
}

// A lease outlives the death of the primary, if the replica has its key; a wait goes on, and its turn comes at the release.
func TestSentinelFailover(t *testing.T) {
	m := testserver.Group(t, testserver.Sentinel)
	url, c := sentinels(t, m)
	const ttl = 12 * time.Second
	byClient, err := locker.New(t.Context(), redis.New(c, nil), &locker.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	defer byClient.Close()
	replica := client(t, m[1])

	type wait struct {
		name  string
		lease locker.Lease
		next  chan locker.Lease
	}
	var waits []*wait
	for _, l := range []locker.Locker{open(t, url, ttl), byClient} {
		w := &wait{name: name(t), next: make(chan locker.Lease, 1)}
		w.lease = acquire(t, l, w.name)
		replicated(t, replica, "lock:"+w.name)
		waiter := open(t, url, ttl)
		go func() {
			defer close(w.next)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			next, err := waiter.Acquire(ctx, w.name)
			if err != nil {
				t.Errorf("the wait ended: %v", err)
				return
			}
			w.next <- next
		}()
		waits = append(waits, w)
	}
	m[0].Kill(t)
	killed := time.Now()
	for time.Since(killed) < ttl+ttl/6 { // without a renewal since, both leases would have ended
		for _, w := range waits {
			select {
			case <-w.lease.Context().Done():
				t.Fatalf("after %v: %v", time.Since(killed), context.Cause(w.lease.Context()))
			case <-w.next:
				t.Fatalf("after %v: the waiter got in", time.Since(killed))
			default:
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, w := range waits {
		if err := w.lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		next := <-w.next
		if next == nil {
			continue
		}
		if next.Token() <= w.lease.Token() {
			t.Errorf("token %d after %d", next.Token(), w.lease.Token())
		}
		next.Release(t.Context())
	}
}

// told waits until a lease is lost, which its next renewal finds out at the latest.
func told(t testing.TB, lease locker.Lease, since time.Time, ttl time.Duration) {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(2 * ttl):
		t.Fatal("the first holder isn't told")
	}
	if d := time.Since(since); d > 2*ttl/3 {
		t.Errorf("told after %v", d)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, locker.ErrLost) {
		t.Error(cause)
	}
}

// OWN-16: Sentinel promotes a replica that hasn't got the key yet, since Redis replicates after it has replied. That gives two
// holders, which is why the kind is efficiency. The first is told at its next renewal, and the second has the higher token.
func TestOWN16SentinelFailoverWithoutKey(t *testing.T) {
	m := testserver.Group(t, testserver.Sentinel)
	url, _ := sentinels(t, m)
	const ttl = 45 * time.Second
	first, second := open(t, url, ttl), open(t, url, ttl)
	if first.Kind() != locker.Efficiency {
		t.Error(first.Kind())
	}
	n := name(t)
	replica := client(t, m[1])
	lease := acquire(t, first, n)
	granted := time.Now()
	replicated(t, replica, "lock:"+n)
	// The replica is made to miss it.
	if err := replica.ConfigSet(t.Context(), "replica-read-only", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if err := replica.Del(t.Context(), "lock:"+n, "{lock:"+n+"}:t").Err(); err != nil {
		t.Fatal(err)
	}
	m[0].Kill(t)
	other := acquire(t, second, n)
	if lease.Context().Err() == nil {
		t.Logf("two holders, %v after the grant of the first", time.Since(granted))
	} else if time.Since(granted) < ttl/3 {
		t.Errorf("the first holder was told before its renewal: %v", context.Cause(lease.Context()))
	}
	if other.Token() <= lease.Token() {
		t.Errorf("token %d after %d", other.Token(), lease.Token())
	}
	told(t, lease, granted, ttl)
	if err := other.Context().Err(); err != nil {
		t.Error(err)
	}
	other.Release(t.Context())
}

// A primary that was replaced and goes on to answer, since nobody could make it a replica, isn't used for long: the holder's
// renewals go to the new one. Otherwise the key would expire there, and a second holder get in.
func TestOWN16LeftBehindPrimary(t *testing.T) {
	m := testserver.Group(t, testserver.Sentinel)
	url, _ := sentinels(t, m)
	const ttl = 9 * time.Second
	first := open(t, url, ttl)
	n := name(t)
	lease := acquire(t, first, n)
	old, replica := client(t, m[0]), client(t, m[1])
	replicated(t, replica, "lock:"+n)
	if err := old.Do(t.Context(), "ACL", "SETUSER", "default", "-replicaof", "-slaveof").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m[0].Restart(t) }) // the group is made anew after this
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if client(t, m[2]).Do(t.Context(), "SENTINEL", "FAILOVER", "main").Err() == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no failover")
		}
	}
	for _, s := range m[2:] {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			addr, err := client(t, s).Do(t.Context(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main").StringSlice()
			if err == nil && strings.Join(addr, ":") == m[1].Addr {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a sentinel knows of no failover")
			}
		}
	}
	second := open(t, url, ttl) // it knows the new one only
	waiter := make(chan locker.Lease, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if l, err := second.Acquire(ctx, n); err == nil {
			waiter <- l
		}
		close(waiter)
	}()
	for begin := time.Now(); time.Since(begin) < 2*ttl; {
		select {
		case <-lease.Context().Done():
			t.Fatalf("after %v: %v", time.Since(begin), context.Cause(lease.Context()))
		case <-waiter:
			t.Fatalf("after %v: the waiter got in", time.Since(begin))
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, c := range []*goredis.Client{old, replica} {
		if role, err := c.Do(t.Context(), "ROLE").Slice(); err != nil || role[0] != "master" {
			t.Errorf("this tests nothing: %v, %v", role, err)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := <-waiter; next == nil || next.Token() <= lease.Token() {
		t.Errorf("the waiter got %v", next)
	} else {
		next.Release(t.Context())
	}
}

// clock moves the wall clock of the server.
func clock(t testing.TB, s *testserver.Server, offset string) {
	t.Helper()
	before := client(t, s).Time(t.Context()).Val()
	if out, err := s.Exec(t.Context(), "env", "LD_PRELOAD=", "sh", "-c", "echo '"+offset+"' > /tmp/faketime"); err != nil {
		t.Fatal(out, err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		now, err := client(t, s).Time(t.Context()).Result()
		if err == nil && now.Sub(before).Abs() > time.Minute {
			return
		}
		if time.Now().After(end) {
			t.Skip("the server's image has no clock that can be moved")
		}
	}
}

// A jump of the server's clock ends every key's TTL. That gives two holders as well; the first is told, and tokens rise also
// when the clock goes back afterwards.
func TestClockJump(t *testing.T) {
	s := testserver.Private(t, testserver.RedisClock, nil)
	const ttl = 12 * time.Second
	first, second := open(t, s.URL("redis"), ttl), open(t, s.URL("redis"), ttl)
	n := name(t)
	lease := acquire(t, first, n)
	granted := time.Now()
	if _, err := second.TryAcquire(t.Context(), n); !errors.Is(err, locker.ErrHeld) {
		t.Fatal(err)
	}
	clock(t, s, "+2h")
	other := acquire(t, second, n)
	if lease.Context().Err() == nil {
		t.Logf("two holders, %v after the grant of the first", time.Since(granted))
	} else if time.Since(granted) < ttl/3 {
		t.Errorf("the first holder was told before its renewal: %v", context.Cause(lease.Context()))
	}
	if other.Token() <= lease.Token() {
		t.Errorf("token %d after %d", other.Token(), lease.Token())
	}
	told(t, lease, granted, ttl)
	clock(t, s, "+0")
	if err := other.Context().Err(); err != nil {
		t.Error(err)
	}
	other.Release(t.Context())
	third := acquire(t, first, n)
	if third.Token() <= other.Token() {
		t.Errorf("token %d after %d, with the clock set back", third.Token(), other.Token())
	}
	third.Release(t.Context())
}
