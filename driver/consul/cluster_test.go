package consul

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

// leader returns the index of the member that leads.
func leader(t testing.TB, members []*testserver.Server) int {
	t.Helper()
	at := -1
	eventually(t, 60*time.Second, "a leader", func() bool {
		for i, m := range members {
			self, err := admin(t, m).Agent().Self()
			if err != nil {
				continue
			}
			raft, _ := self["Stats"]["raft"].(map[string]any)
			if raft["state"] == "Leader" {
				at = i
				return true
			}
		}
		return false
	})
	return at
}

func clusterURL(members []*testserver.Server, rest string, which ...int) string {
	var addrs []string
	for _, i := range which {
		addrs = append(addrs, members[i].Addr)
	}
	return "consul://" + strings.Join(addrs, ",") + "/" + rest
}

// others returns the indexes of the other members.
func others(i int) (int, int) { return (i + 1) % 3, (i + 2) % 3 }

// settled waits until the cluster grants locks through every member.
func settled(t testing.TB, members []*testserver.Server) {
	t.Helper()
	for i := range members {
		l := open(t, clusterURL(members, prefix(t), i))
		ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
		lease, err := l.Acquire(ctx, "settled")
		stop()
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, l.Close())
	}
}

// A lease survives a change of the leader that is shorter than its TTL; nobody else gets in; tokens rise.
func TestClusterLeaderChange(t *testing.T) {
	members := testserver.Group(t, testserver.ConsulCluster)
	for _, c := range []struct {
		name     string
		do, undo func(*testserver.Server, testing.TB)
	}{
		{"killed", func(s *testserver.Server, t testing.TB) { s.Kill(t) }, func(s *testserver.Server, t testing.TB) { s.Start(t) }},
		{"paused", func(s *testserver.Server, t testing.TB) { s.Pause(t) }, func(s *testserver.Server, t testing.TB) { s.Resume(t) }},
		{"isolated", func(s *testserver.Server, t testing.TB) { s.Isolate(t) }, func(s *testserver.Server, t testing.TB) { s.Heal(t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			settled(t, members)
			lead := leader(t, members)
			b1, b2 := others(lead)
			rest := prefix(t) + "?ttl=15s&lockdelay=0s"
			holder := open(t, clusterURL(members, rest, lead, b1, b2)) // the one that fails comes first
			contender := open(t, clusterURL(members, rest, b1, b2))
			lease, err := holder.Acquire(within(t, 30*time.Second), "a")
			require.NoError(t, err)

			c.do(members[lead], t)
			began := time.Now()
			leader(t, []*testserver.Server{members[b1], members[b2]})
			for time.Since(began) < 20*time.Second { // longer than the TTL
				_, err := contender.TryAcquire(within(t, 5*time.Second), "a")
				require.Error(t, err)
				require.NoError(t, context.Cause(lease.Context()), "after %v", time.Since(began))
				time.Sleep(500 * time.Millisecond)
			}
			c.undo(members[lead], t)
			token := lease.Token()
			require.NoError(t, lease.Release(t.Context()))
			next, err := contender.Acquire(within(t, 60*time.Second), "a")
			require.NoError(t, err)
			require.Greater(t, next.Token(), token)
			require.NoError(t, next.Release(t.Context()))
		})
	}
}

// A holder whose only agent is on the minority side is told before the next holder, on the other side, gets in.
func TestClusterMinority(t *testing.T) {
	members := testserver.Group(t, testserver.ConsulCluster)
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprint("leader ", leads), func(t *testing.T) {
			settled(t, members)
			cut := leader(t, members)
			if !leads {
				cut, _ = others(cut)
			}
			b1, b2 := others(cut)
			const ttl = 6 * time.Second
			rest := prefix(t) + "?ttl=6s&lockdelay=0s"
			holder, contender := open(t, clusterURL(members, rest, cut)), open(t, clusterURL(members, rest, b1, b2))
			lease, err := holder.Acquire(within(t, 30*time.Second), "a")
			require.NoError(t, err)
			told := make(chan time.Time, 1)
			go func() {
				<-lease.Context().Done()
				told <- time.Now()
			}()
			granted := make(chan locker.Lease, 1)
			entered := make(chan time.Time, 1)
			go func() {
				next, err := contender.Acquire(within(t, 2*time.Minute), "a")
				if err == nil {
					entered <- time.Now()
					granted <- next
				}
			}()
			time.Sleep(200 * time.Millisecond)
			began := time.Now()
			members[cut].Isolate(t)

			end := <-told
			require.Less(t, end.Sub(began), 2*ttl) // isolating takes a moment itself, during which renewals are confirmed
			require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
			next := <-granted
			require.True(t, end.Before(<-entered), "they overlapped")
			require.Greater(t, next.Token(), lease.Token())

			members[cut].Heal(t)
			require.ErrorIs(t, lease.Release(t.Context()), locker.ErrLost)
			require.NoError(t, context.Cause(next.Context()), "the old holder's clean-up touches nobody else")
			require.NoError(t, next.Release(t.Context()))
			again, err := holder.Acquire(within(t, 60*time.Second), "a")
			require.NoError(t, err)
			require.Greater(t, again.Token(), next.Token())
			require.NoError(t, again.Release(t.Context()))
		})
	}
}

// Two of three are lost, and come back: the holder is told in time, waiters wait, and all goes on by itself.
func TestClusterTwoOfThreeLost(t *testing.T) {
	members := testserver.Group(t, testserver.ConsulCluster)
	settled(t, members)
	last := leader(t, members)
	b1, b2 := others(last)
	rest := prefix(t) + "?ttl=6s&lockdelay=0s"
	holder, contender := open(t, clusterURL(members, rest, last, b1, b2)), open(t, clusterURL(members, rest, b1, b2, last))
	lease, err := holder.Acquire(within(t, 30*time.Second), "a")
	require.NoError(t, err)
	entered := make(chan locker.Lease, 1)
	failed := make(chan error, 1)
	go func() {
		next, err := contender.Acquire(within(t, 3*time.Minute), "a")
		if err != nil {
			failed <- err
			return
		}
		entered <- next
	}()
	time.Sleep(200 * time.Millisecond)
	began := time.Now()
	members[b1].Kill(t)
	members[b2].Kill(t)
	<-lease.Context().Done()
	require.Less(t, time.Since(began), 3*6*time.Second)
	require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
	require.Empty(t, entered)
	_, err = holder.TryAcquire(within(t, 5*time.Second), "b")
	require.ErrorIs(t, err, locker.ErrUnavailable)

	members[b1].Start(t)
	members[b2].Start(t)
	select {
	case next := <-entered:
		require.Greater(t, next.Token(), lease.Token())
		require.NoError(t, next.Release(t.Context()))
	case err := <-failed:
		t.Fatal(err)
	}
	again, err := holder.Acquire(within(t, 60*time.Second), "a")
	require.NoError(t, err)
	require.Greater(t, again.Token(), lease.Token())
}
