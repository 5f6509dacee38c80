package zookeeper

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

// The members of the test cluster give up a silent peer after ten ticks of 200 ms, and elect within about a second.
const clusterTTL = 8 * time.Second

type cluster struct {
	t       *testing.T
	members []*testserver.Server
}

func needCluster(t *testing.T) *cluster {
	return &cluster{t, testserver.Group(t, testserver.ZooKeeperCluster)}
}

func (c *cluster) addrs(but ...*testserver.Server) string {
	var out []string
	for _, m := range c.members {
		if len(but) == 0 || m != but[0] {
			out = append(out, m.Addr)
		}
	}
	return strings.Join(out, ",")
}

// mode returns what a member says it is: "leader", "follower", or "" if it doesn't serve.
func mode(m *testserver.Server) string {
	conn, err := net.DialTimeout("tcp", m.Addr, time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(conn, "srvr")
	reply, _ := io.ReadAll(conn)
	_, after, _ := strings.Cut(string(reply), "Mode: ")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// roles waits until all members serve and returns who leads.
func (c *cluster) roles() (leader *testserver.Server, followers []*testserver.Server) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		leader, followers = nil, nil
		for _, m := range c.members {
			switch mode(m) {
			case "leader":
				leader = m
			case "follower":
				followers = append(followers, m)
			}
		}
		return leader != nil && len(followers) == 2
	}, time.Minute, 100*time.Millisecond)
	return leader, followers
}

var leaderFaults = []struct {
	name       string
	fault, end func(*testserver.Server, testing.TB)
}{
	{"killed", func(m *testserver.Server, t testing.TB) { m.Kill(t) }, func(m *testserver.Server, t testing.TB) { m.Start(t) }},
	{"paused", func(m *testserver.Server, t testing.TB) { m.Pause(t) }, func(m *testserver.Server, t testing.TB) { m.Resume(t) }},
	{"isolated", func(m *testserver.Server, t testing.TB) { m.Isolate(t) }, func(m *testserver.Server, t testing.TB) { m.Heal(t) }},
}

// TestClusterLeaderLost holds leases through a change of the leader that is shorter than their TTL.
func TestClusterLeaderLost(t *testing.T) {
	c := needCluster(t)
	for _, f := range leaderFaults {
		t.Run(f.name, func(t *testing.T) {
			leader, _ := c.roles()
			prefix := uniquePrefix(t)
			ctx := within(t, 2*time.Minute)
			var leases []locker.Lease
			for i := range 5 { // each is connected to some member
				lease, err := open(t, c.addrs(), prefix, clusterTTL, nil).Acquire(ctx, fmt.Sprint(i))
				require.NoError(t, err)
				leases = append(leases, lease)
			}
			f.fault(leader, t)
			other := open(t, c.addrs(leader), prefix, clusterTTL, nil)
			for end := time.Now().Add(clusterTTL + clusterTTL/4); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				for i, lease := range leases {
					require.NoError(t, lease.Context().Err(), "lease %d: %v", i, context.Cause(lease.Context()))
				}
			}
			for i, lease := range leases {
				_, err := other.TryAcquire(ctx, fmt.Sprint(i))
				require.ErrorIs(t, err, locker.ErrHeld)
				require.NoError(t, lease.Release(ctx))
				next, err := other.Acquire(ctx, fmt.Sprint(i))
				require.NoError(t, err)
				require.Greater(t, next.Token(), lease.Token())
			}
			f.end(leader, t)
		})
	}
}

// TestClusterMinority has the holder connected to one member only, which is then cut off. The holder is told before
// anybody else can hold the name.
func TestClusterMinority(t *testing.T) {
	c := needCluster(t)
	for _, role := range []string{"leader", "follower"} {
		for _, f := range leaderFaults {
			if role == "follower" && f.name != "isolated" {
				continue
			}
			t.Run(role+" "+f.name, func(t *testing.T) {
				member, followers := c.roles()
				if role == "follower" {
					member = followers[0]
				}
				prefix := uniquePrefix(t)
				ctx := within(t, 2*time.Minute)
				lease, err := open(t, member.Addr, prefix, clusterTTL, nil).Acquire(ctx, "x")
				require.NoError(t, err)
				time.Sleep(clusterTTL) // over several renewals
				require.NoError(t, lease.Context().Err())
				ended := make(chan time.Time, 1)
				go func() {
					<-lease.Context().Done()
					ended <- time.Now()
				}()
				next := open(t, c.addrs(member), prefix, clusterTTL, nil)
				f.fault(member, t)
				start := time.Now()
				got, err := next.Acquire(ctx, "x")
				granted := time.Now()
				require.NoError(t, err)
				select {
				case at := <-ended:
					require.True(t, at.Before(granted), "two holders")
					require.Less(t, at.Sub(start), clusterTTL)
					t.Logf("told after %v, the next one came after %v", at.Sub(start).Round(time.Millisecond), granted.Sub(start).Round(time.Millisecond))
				default:
					t.Fatal("two holders")
				}
				require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
				require.Greater(t, got.Token(), lease.Token())
				f.end(member, t)
				c.roles()
				require.NoError(t, got.Context().Err(), "%v", context.Cause(got.Context()))
				require.NoError(t, got.Release(ctx))
			})
		}
	}
}

// TestClusterMajorityLost kills two of three, and starts them again.
func TestClusterMajorityLost(t *testing.T) {
	c := needCluster(t)
	leader, followers := c.roles()
	prefix := uniquePrefix(t)
	ctx := within(t, 2*time.Minute)
	l := open(t, c.addrs(), prefix, clusterTTL, nil)
	lease, err := l.Acquire(ctx, "x")
	require.NoError(t, err)
	leader.Kill(t)
	followers[0].Kill(t)
	start := time.Now()
	<-lease.Context().Done()
	require.Less(t, time.Since(start), clusterTTL)
	_, err = l.TryAcquire(within(t, 2*time.Second), "x")
	require.ErrorIs(t, err, locker.ErrUnavailable)
	leader.Start(t)
	followers[0].Start(t)
	next, err := l.Acquire(ctx, "x")
	require.NoError(t, err)
	require.Greater(t, next.Token(), lease.Token())
	require.NoError(t, next.Release(ctx))
}

// TestRECON03Restart restarts a single server, with its data, in less than the TTL.
func TestRECON03Restart(t *testing.T) {
	s := testserver.Private(t, testserver.ZooKeeper, nil)
	prefix := uniquePrefix(t)
	ctx := within(t, 2*time.Minute)
	l := open(t, s.Addr, prefix, 20*time.Second, nil)
	lease, err := l.Acquire(ctx, "x")
	require.NoError(t, err)
	for range 2 {
		s.Kill(t)
		s.Start(t)
		require.Eventually(t, func() bool {
			_, err := l.TryAcquire(ctx, "x")
			return err != nil && strings.Contains(err.Error(), locker.ErrHeld.Error())
		}, 15*time.Second, 100*time.Millisecond)
		require.NoError(t, lease.Context().Err(), "%v", context.Cause(lease.Context()))
	}
	require.NoError(t, lease.Release(ctx))
	next, err := l.Acquire(ctx, "x")
	require.NoError(t, err)
	require.Greater(t, next.Token(), lease.Token())
}
