package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver/redis"
	"github.com/leasekit/locker/internal/testserver"
)

// These tests use the driver as programs do, through the engine.

func open(t testing.TB, url string, ttl time.Duration) locker.Locker {
	t.Helper()
	l, err := locker.Open(t.Context(), url, &locker.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func client(t testing.TB, s *testserver.Server) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	return c
}

var names atomic.Int64

func name(t testing.TB) string {
	return fmt.Sprintf("engine/%s/%d/%d", t.Name(), time.Now().UnixNano(), names.Add(1))
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t testing.TB, l locker.Locker, name string) locker.Lease {
	t.Helper()
	lease, err := l.Acquire(within(t, 30*time.Second), name)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// EXP-10: a TTL is refused or kept, never lost in rounding.
func TestEXP10SmallTTLs(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := client(t, s)
	for _, ttl := range []time.Duration{-time.Second, time.Nanosecond, 999 * time.Microsecond, time.Millisecond, 100 * time.Millisecond,
		100*time.Millisecond + time.Nanosecond, 500 * time.Millisecond, 1500 * time.Millisecond, 2900 * time.Millisecond, 1e6 * time.Hour} {
		l, err := locker.Open(t.Context(), s.URL("redis"), &locker.Options{TTL: ttl})
		if ttl < 100*time.Millisecond {
			if !errors.Is(err, locker.ErrConfig) {
				t.Errorf("%v: %v", ttl, err)
			}
			continue
		}
		if errors.Is(err, locker.ErrConfig) {
			if ttl < 24*time.Hour {
				t.Errorf("%v: %v", ttl, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		n := name(t)
		// Looking takes time: what is left is looked at before what the lease has left.
		lease, err := l.TryAcquire(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		left := a.PTTL(t.Context(), "lock:"+n).Val()
		if lease.TTL() < ttl || lease.TTL() > ttl+time.Millisecond || left <= 0 || left > lease.TTL() {
			t.Errorf("%v: granted %v, the key has %v", ttl, lease.TTL(), left)
		}
		if lease.Remaining() > left {
			t.Errorf("%v: the lease thinks that it has %v, and the key has %v", ttl, lease.Remaining(), left)
		}
		lease.Release(t.Context())
		l.Close()
	}
}

// EXP-11: at no instant has a lock no TTL, and nobody touches what isn't his.
func TestEXP11NeverWithoutTTL(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := client(t, s)
	n := name(t)
	key := "lock:" + n
	commands := monitor(t, s.Addr)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for range 4 {
			l := open(t, s.URL("redis"), 10*time.Second)
			wg.Go(func() {
				for range 50 {
					lease := acquire(t, l, n)
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}()
	for alive := true; alive; {
		select {
		case <-done:
			alive = false
		default:
		}
		if a.PTTL(t.Context(), key).Val() == -1 {
			t.Fatal("the key has no TTL")
		}
	}
	seen := commands()
	sets := 0
	for _, line := range seen {
		if !strings.Contains(line, `"`+key+`"`) {
			continue
		}
		switch {
		case strings.Contains(line, `"SET" "`+key+`"`):
			sets++
			if !strings.Contains(line, `"NX" "PX"`) {
				t.Errorf("set over another's key, or without a TTL: %s", line)
			}
		case strings.Contains(line, `"PEXPIRE" "`+key+`"`) || strings.Contains(line, `"PERSIST"`):
			t.Errorf("nobody renews for as short as this: %s", line)
		}
	}
	if sets < 200 {
		t.Errorf("%d attempts were seen", sets)
	}

	// A key without a TTL that was there before stays as it is, and is waited for.
	n = name(t)
	a.Set(t.Context(), "lock:"+n, "somebody", 0)
	l := open(t, s.URL("redis"), 10*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.Acquire(ctx, n); !errors.Is(err, locker.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if a.Get(t.Context(), "lock:"+n).Val() != "somebody" || a.PTTL(t.Context(), "lock:"+n).Val() != -1 {
		t.Error("the key was altered")
	}
}

// monitor records the server's commands; the function returned ends it.
func monitor(t testing.TB, addr string) (stop func() []string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "MONITOR\r\n")
	lines := bufio.NewScanner(conn)
	if !lines.Scan() || lines.Text() != "+OK" {
		t.Fatal("no MONITOR: ", lines.Text())
	}
	var seen []string
	done := make(chan struct{})
	marker := fmt.Sprintf("end of monitoring %d", time.Now().UnixNano())
	go func() {
		defer close(done)
		for lines.Scan() && !strings.Contains(lines.Text(), marker) {
			seen = append(seen, lines.Text())
		}
	}()
	return func() []string {
		other, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		fmt.Fprintf(other, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", len(marker), marker)
		<-done
		conn.Close()
		return seen
	}
}

// OWN-06: a key that was deleted behind the holder's back ends the lease at the next renewal.
func TestOWN06LossIsNoticed(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := client(t, s)
	const ttl = 12 * time.Second
	l := open(t, s.URL("redis"), ttl)
	for what, spoil := range map[string]func(key string){
		"deleted":  func(key string) { a.Del(t.Context(), key) },
		"replaced": func(key string) { a.Set(t.Context(), key, "other", time.Minute) },
		"a list":   func(key string) { a.Del(t.Context(), key); a.RPush(t.Context(), key, "other") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := name(t)
			lease := acquire(t, l, n)
			spoil("lock:" + n)
			spoilt := time.Now()
			select {
			case <-lease.Context().Done():
			case <-time.After(2 * ttl):
				t.Fatal("the lease goes on")
			}
			if d := time.Since(spoilt); d > ttl/3+ttl/3 {
				t.Errorf("noticed after %v", d)
			}
			if cause := context.Cause(lease.Context()); !errors.Is(cause, locker.ErrLost) {
				t.Error(cause)
			}
			if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Error(err)
			}
			if what != "deleted" && a.Exists(t.Context(), "lock:"+n).Val() != 1 {
				t.Error("a stranger's key was removed")
			}
		})
	}
}

// OWN-16: the server's replica is promoted without the key. The kind says that this can happen, the holder learns of it
// at its next renewal, and the token rises.
func TestOWN16Failover(t *testing.T) {
	primary, replica := testserver.Private(t, testserver.Redis, nil), testserver.Private(t, testserver.Redis, nil)
	r := client(t, replica)
	r.ReplicaOf(t.Context(), "127.0.0.1", "1") // replication doesn't reach it
	p, err := proxy.New(primary.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const ttl = 12 * time.Second
	first, second := open(t, "redis://"+p.Addr(), ttl), open(t, "redis://"+p.Addr(), ttl)
	if first.Kind() != locker.Efficiency {
		t.Error(first.Kind())
	}
	if _, err := locker.Open(t.Context(), primary.URL("redis")+"?require=correctness", nil); !errors.Is(err, locker.ErrConfig) {
		t.Errorf("require=correctness: %v", err)
	}
	n := name(t)
	lease := acquire(t, first, n)
	r.ReplicaOf(t.Context(), "NO", "ONE")
	p.SetTarget(replica.Addr)
	p.Cut()
	moved := time.Now()
	other := acquire(t, second, n) // two holders
	select {
	case <-lease.Context().Done():
	case <-time.After(2 * ttl):
		t.Fatal("the first holder isn't told")
	}
	if d := time.Since(moved); d > 2*ttl/3 {
		t.Errorf("told after %v", d)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, locker.ErrLost) {
		t.Error(cause)
	}
	if other.Token() <= lease.Token() {
		t.Errorf("token %d after %d", other.Token(), lease.Token())
	}
	other.Release(t.Context())
}

// RES-01: waiters don't keep holders from renewing and releasing.
func TestRES01WaitersDontStarveHolders(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	blocker := client(t, s)
	const ttl = 6 * time.Second
	small := goredis.NewClient(&goredis.Options{Addr: s.Addr, PoolSize: 2})
	defer small.Close()
	for what, make := range map[string]func() (locker.Locker, error){
		"URL": func() (locker.Locker, error) {
			return locker.Open(t.Context(), s.URL("redis"), &locker.Options{TTL: ttl})
		},
		"client with two connections": func() (locker.Locker, error) {
			return locker.New(t.Context(), redis.New(small, nil), &locker.Options{TTL: ttl})
		},
	} {
		t.Run(what, func(t *testing.T) {
			l, err := make()
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var leases []locker.Lease
			for range 3 {
				leases = append(leases, acquire(t, l, name(t)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 300 {
				n := name(t)
				blocker.Set(ctx, "lock:"+n, "other", time.Hour)
				wg.Go(func() {
					if _, err := l.Acquire(ctx, n); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			time.Sleep(2 * ttl)
			for _, lease := range leases {
				if err := lease.Context().Err(); err != nil {
					t.Error(context.Cause(lease.Context()))
				}
				start := time.Now()
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d > ttl {
					t.Errorf("Release took %v", d)
				}
			}
			cancel()
			wg.Wait()
		})
	}
}

// RES-02: cancelled waits leave no connections.
func TestRES02CancelledWaits(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := client(t, s)
	l := open(t, s.URL("redis"), 10*time.Second)
	count := func() int {
		list, err := a.Do(t.Context(), "CLIENT", "LIST").Text()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(list, "id=")
	}
	n := name(t)
	a.Set(t.Context(), "lock:"+n, "other", time.Hour)
	acquire(t, l, name(t)).Release(t.Context())
	before := count()
	for i := range 50 {
		a.Set(t.Context(), fmt.Sprint("lock:", n, i), "other", time.Hour)
	}
	for round := range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				held := n
				if i%2 == 0 {
					held = fmt.Sprint(n, i)
				}
				if _, err := l.Acquire(ctx, held); err == nil {
					t.Error("granted")
				}
			})
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		cancel()
		wg.Wait()
	}
	for end := time.Now().Add(15 * time.Second); count() > before || len(a.PubSubChannels(t.Context(), "*").Val()) > 0; {
		if time.Now().After(end) {
			t.Fatalf("%d connections before, %d after, channels %v", before, count(), a.PubSubChannels(t.Context(), "*").Val())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if list := a.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Val(); list != "" {
		t.Errorf("subscriptions: %v", list)
	}
	a.Del(t.Context(), "lock:"+n)
	acquire(t, l, n).Release(t.Context())
}
