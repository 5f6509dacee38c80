package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

// holdEnv makes the test binary a process that holds a lock until it is killed: its value is "URL NAME".
const holdEnv = "LOCKER_TEST_CONSUL_HOLD"

func TestHelperHold(t *testing.T) {
	url, name, ok := strings.Cut(os.Getenv(holdEnv), " ")
	if !ok {
		t.Skip("not a helper process")
	}
	l, err := locker.Open(context.Background(), url, nil)
	require.NoError(t, err)
	_, err = l.Acquire(context.Background(), name)
	require.NoError(t, err)
	fmt.Println("held")
	select {}
}

// holder starts a process that holds a lock, and returns what kills it.
func holder(t testing.TB, url, name string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperHold$", "-test.v")
	cmd.Env = append(os.Environ(), holdEnv+"="+url+" "+name)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var once sync.Once
	kill = func() { once.Do(func() { cmd.Process.Kill(); cmd.Wait() }) }
	t.Cleanup(kill)
	said := ""
	buf := make([]byte, 1024)
	for !strings.Contains(said, "held") {
		n, err := out.Read(buf)
		said += string(buf[:n])
		require.NoError(t, err, said)
	}
	return kill
}

// Take-over after a crash: after the TTL, and within 2 × TTL + lock-delay + 3 s, as documented.
func TestEXP14LEAK04TakeOverAfterACrash(t *testing.T) {
	for _, c := range []struct {
		server testserver.Name
		ttl    time.Duration
		query  string
		delay  time.Duration
	}{
		{testserver.Consul, time.Second, "&lockdelay=0s", 0},
		{testserver.Consul, time.Second, "&lockdelay=2s", 2 * time.Second},
		{testserver.ConsulDefault, 10 * time.Second, "&lockdelay=0s", 0},
	} {
		t.Run(fmt.Sprint(c.ttl, c.query), func(t *testing.T) {
			t.Parallel()
			s := testserver.Need(t, c.server)
			url := fmt.Sprintf("consul://%s/%s?ttl=%v%s", s.Addr, prefix(t), c.ttl, c.query)
			kill := holder(t, url, "a")
			l := open(t, url)
			kill()
			began := time.Now()
			lease, err := l.Acquire(within(t, time.Minute), "a")
			took := time.Since(began)
			require.NoError(t, err)
			require.Equal(t, c.ttl, lease.TTL())
			require.LessOrEqual(t, took, 2*c.ttl+c.delay+max(3*time.Second, c.ttl))
			require.GreaterOrEqual(t, took, c.ttl/2+c.delay)
		})
	}
}

// The lock-delay is that of the settings, zero included.
func TestEXP17LockDelay(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	for _, c := range []struct {
		query  string
		lo, hi time.Duration
	}{
		{"?lockdelay=0s", 0, 2 * time.Second},
		{"?lockdelay=5s", 5 * time.Second, 8 * time.Second},
		{"", 15 * time.Second, 18 * time.Second},
	} {
		t.Run(c.query, func(t *testing.T) {
			t.Parallel()
			key := prefix(t)
			url := "consul://" + s.Addr + "/" + key + c.query
			a, b := open(t, url), open(t, url)
			lease, err := a.Acquire(t.Context(), "x")
			require.NoError(t, err)
			granted := make(chan time.Time, 1)
			go func() {
				if _, err := b.Acquire(within(t, time.Minute), "x"); err == nil {
					granted <- time.Now()
				}
			}()
			time.Sleep(200 * time.Millisecond)
			began := time.Now()
			destroySessionOf(t, s, key+"/x")
			took := (<-granted).Sub(began)
			require.GreaterOrEqual(t, took, c.lo)
			require.Less(t, took, c.hi+3*time.Second, "a busy machine")
			<-lease.Context().Done()
			require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
		})
	}
}

func destroySessionOf(t testing.TB, s *testserver.Server, key string) {
	t.Helper()
	e := entry(t, admin(t, s), key)
	require.NotNil(t, e, key)
	_, err := admin(t, s).Session().Destroy(e.Session, nil)
	require.NoError(t, err)
}

// The session depends on no check; when its node is deregistered it ends, the holder is told, and all works again once the
// node is back.
func TestEXP21NodeDeregistered(t *testing.T) {
	s := testserver.Private(t, testserver.Consul, nil)
	l := open(t, "consul://"+s.Addr+"/"+prefix(t)+"?lockdelay=0s&ttl=6s")
	lease, err := l.Acquire(t.Context(), "a")
	require.NoError(t, err)
	a := admin(t, s)
	node, err := a.Agent().NodeName()
	require.NoError(t, err)
	sessions, _, err := a.Session().List(nil)
	require.NoError(t, err)
	require.Len(t, sessions, 1)
	require.Empty(t, sessions[0].Checks)
	require.Empty(t, sessions[0].NodeChecks)
	require.Equal(t, "6s", sessions[0].TTL)
	require.Equal(t, api.SessionBehaviorDelete, sessions[0].Behavior)

	began := time.Now()
	_, err = a.Catalog().Deregister(&api.CatalogDeregistration{Node: node}, nil)
	require.NoError(t, err)
	<-lease.Context().Done()
	require.Less(t, time.Since(began), 6*time.Second)
	require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
	// The agent registers its node again by itself, after up to minutes; or somebody does.
	nodes, _, err := a.Catalog().Nodes(nil)
	require.NoError(t, err)
	if len(nodes) == 0 {
		_, err = a.Catalog().Register(&api.CatalogRegistration{Node: node, Address: "127.0.0.1"}, nil)
		require.NoError(t, err)
	}
	again, err := l.Acquire(within(t, 30*time.Second), "a")
	require.NoError(t, err)
	require.Greater(t, again.Token(), lease.Token())
}

func TestEXP10TTLs(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	for _, ttl := range []string{"-1s", "1ns", "999us", "1ms", "100ms", "500ms", "1s", "1.5s", "2.9s", "24h", "24h1ms", "1000000h"} {
		t.Run(ttl, func(t *testing.T) {
			key := prefix(t)
			l, err := locker.Open(t.Context(), "consul://"+s.Addr+"/"+key+"?ttl="+ttl, nil)
			want, perr := time.ParseDuration(ttl)
			require.NoError(t, perr)
			if want < time.Second || want > 24*time.Hour {
				require.ErrorIs(t, err, locker.ErrConfig)
				return
			}
			require.NoError(t, err)
			defer l.Close()
			lease, err := l.Acquire(t.Context(), "a")
			require.NoError(t, err)
			se, _, err := admin(t, s).Session().Info(entry(t, admin(t, s), key+"/a").Session, nil)
			require.NoError(t, err)
			got, err := time.ParseDuration(se.TTL)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, got, lease.TTL())
		})
	}
}

func TestWAIT24ErrorsWhileWaiting(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	key := prefix(t)
	a, b := open(t, "consul://"+s.Addr+"/"+key), open(t, "consul://"+p.addr()+"/"+key)
	lease, err := a.Acquire(t.Context(), "x")
	require.NoError(t, err)
	granted := make(chan error, 1)
	go func() {
		_, err := b.Acquire(within(t, time.Minute), "x")
		granted <- err
	}()
	time.Sleep(300 * time.Millisecond)
	p.set(func(seenRequest) action { return action{status: http.StatusInternalServerError} })
	time.Sleep(3 * time.Second)
	require.Empty(t, granted)
	p.set(nil)
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, <-granted)
}

// Waiters cost few connections, are never refused, and look seldom while nothing happens.
func TestRES01WaitersAreNeverRefused(t *testing.T) {
	for _, waiters := range []int{64, 1000} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			s := testserver.Need(t, testserver.Consul)
			p := newProxy(t, s.Addr)
			key := prefix(t)
			// The holders of what is waited for aren't what is tested: a busy machine mustn't make them lose it.
			a, b := open(t, "consul://"+s.Addr+"/"+key+"?ttl=2m"), open(t, "consul://"+p.addr()+"/"+key)
			var theirs []locker.Lease
			for i := range waiters {
				lease, err := a.Acquire(t.Context(), fmt.Sprint(i))
				require.NoError(t, err)
				theirs = append(theirs, lease)
			}
			var mine []locker.Lease
			for i := range 3 {
				lease, err := b.Acquire(t.Context(), fmt.Sprint("mine", i))
				require.NoError(t, err)
				mine = append(mine, lease)
			}
			var wg sync.WaitGroup
			errs := make(chan error, waiters)
			for i := range waiters {
				wg.Go(func() {
					lease, err := b.Acquire(within(t, 2*time.Minute), fmt.Sprint(i))
					if err == nil {
						err = lease.Release(t.Context())
					}
					errs <- err
				})
			}
			time.Sleep(16 * time.Second) // longer than the TTL of mine
			require.Empty(t, errs, "nobody was granted or failed")
			for _, lease := range mine {
				require.NoError(t, context.Cause(lease.Context()))
				require.NoError(t, lease.Release(t.Context()))
			}
			for _, lease := range theirs {
				require.NoError(t, lease.Release(t.Context()))
			}
			wg.Wait()
			for range waiters {
				require.NoError(t, <-errs)
			}
			require.Less(t, int(p.most.Load()), 2*(maxGrants+maxUpkeep+maxFollowed), "connections, some of which the client has closed")
		})
	}
}

func TestWAIT16IdleWaiter(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	key := prefix(t)
	a, b := open(t, "consul://"+s.Addr+"/"+key), open(t, "consul://"+p.addr()+"/"+key)
	lease, err := a.Acquire(t.Context(), "x")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if lease, err := b.Acquire(within(t, time.Minute), "x"); err == nil {
				lease.Release(t.Context())
			}
		})
	}
	time.Sleep(time.Second)
	p.requests()
	time.Sleep(10 * time.Second)
	require.LessOrEqual(t, len(p.requests()), 20, "2 requests per second")
	require.NoError(t, lease.Release(t.Context()))
	wg.Wait()
}

func TestLEAK01SessionsOfFailedAcquisitions(t *testing.T) {
	s := testserver.Private(t, testserver.Consul, nil)
	url := "consul://" + s.Addr + "/" + prefix(t)
	a, b := open(t, url), open(t, url)
	lease, err := a.Acquire(t.Context(), "x")
	require.NoError(t, err)
	for range 500 {
		_, err := b.TryAcquire(t.Context(), "x")
		require.ErrorIs(t, err, locker.ErrHeld)
	}
	for i := range 200 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i%10)*time.Millisecond)
		_, err := b.Acquire(ctx, "x")
		stop()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, lease.Release(t.Context()))
	eventually(t, 10*time.Second, "no more than one session each", func() bool {
		sessions, _, err := admin(t, s).Session().List(nil)
		return err == nil && len(sessions) <= 2
	})
}

// Acquisitions that are cancelled around their grant leave nothing.
func TestLEAK03CancelledAroundTheGrant(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	key := prefix(t)
	l := open(t, "consul://"+s.Addr+"/"+key)
	keep, err := l.Acquire(t.Context(), "keep") // keeps the session alive
	require.NoError(t, err)
	for i := range 300 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i%60)*100*time.Microsecond)
		lease, err := l.Acquire(ctx, fmt.Sprint("n", i%7))
		stop()
		if err == nil {
			if err := lease.Release(t.Context()); err != nil && !errors.Is(err, locker.ErrLost) {
				t.Fatal(err)
			}
		}
	}
	eventually(t, 15*time.Second, "only one entry", func() bool {
		keys, _, err := admin(t, s).KV().Keys(key+"/", "", nil)
		return err == nil && len(keys) == 1
	})
	require.NoError(t, keep.Context().Err())
	require.NoError(t, keep.Release(t.Context()))
}
