package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

// clusterTTL is long enough for several attempts after one that went to a member that is silent.
const clusterTTL = 6 * time.Second

// open opens a Locker on some members of a cluster.
func openLocker(t testing.TB, prefix string, members ...*testserver.Server) locker.Locker {
	t.Helper()
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr)
	}
	l, err := locker.Open(t.Context(), "etcd://"+strings.Join(addrs, ",")+prefix, &locker.Options{TTL: clusterTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// leader splits a cluster into its leader and the others.
func leader(t testing.TB, members []*testserver.Server) (lead *testserver.Server, others []*testserver.Server) {
	t.Helper()
	clients := make([]*clientv3.Client, len(members))
	for i, m := range members {
		clients[i] = admin(t, m)
	}
	eventually(t, "a leader", func() bool {
		lead, others = nil, nil
		for i, m := range members {
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			resp, err := clients[i].Status(ctx, m.Addr)
			stop()
			if err == nil && resp.Leader != 0 && resp.Leader == resp.Header.MemberId {
				lead = m
			} else if err == nil && resp.Leader != 0 {
				others = append(others, m)
			}
		}
		return lead != nil && len(others) == len(members)-1
	})
	return lead, others
}

func acquire(t testing.TB, l locker.Locker, name string) locker.Lease {
	t.Helper()
	lease, err := l.Acquire(within(t, 3*patience), name)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	return lease
}

// One member fails, the leader: a lease survives it, and locks go on being granted with tokens that rise.
func TestClusterLosesItsLeader(t *testing.T) {
	members := testserver.Group(t, testserver.EtcdCluster)
	for _, fault := range []testserver.Action{testserver.Kill, testserver.Pause, testserver.Isolate} {
		t.Run(fault.String(), func(t *testing.T) {
			lead, _ := leader(t, members)
			l := openLocker(t, unique(), members...)
			held := acquire(t, l, "held")
			last := acquire(t, l, "x")
			if err := lead.Do(t.Context(), fault); err != nil {
				t.Fatal(err)
			}
			defer func() {
				undo := map[testserver.Action]testserver.Action{testserver.Kill: testserver.Start, testserver.Pause: testserver.Resume, testserver.Isolate: testserver.Heal}
				if err := lead.Do(context.Background(), undo[fault]); err != nil {
					t.Error(err)
				}
				lead.WaitReady(t)
			}()
			for rounds, end := 0, time.Now().Add(2*clusterTTL); rounds < 3 || time.Now().Before(end); rounds++ {
				if err := last.Release(t.Context()); err != nil && !errors.Is(err, locker.ErrUnavailable) { // then it goes on
					t.Fatalf("Release: %v", err)
				}
				next := acquire(t, l, "x")
				if next.Token() <= last.Token() {
					t.Fatalf("token %d after %d", next.Token(), last.Token())
				}
				last = next
				if held.Context().Err() != nil {
					t.Fatalf("the lease ended: %v", context.Cause(held.Context()))
				}
			}
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := last.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a quorum a lease ends in time, and nobody gets the name; with one again, it goes on.
func TestClusterLosesItsQuorum(t *testing.T) {
	members := testserver.Group(t, testserver.EtcdCluster)
	lead, others := leader(t, members)
	prefix := unique()
	l, other := openLocker(t, prefix, members...), openLocker(t, prefix, members...)
	held := acquire(t, l, "x")
	lead.Kill(t)
	others[0].Kill(t)
	if left := held.Remaining(); left > clusterTTL {
		t.Errorf("%v are left of %v", left, clusterTTL)
	}
	start := time.Now()
	select {
	case <-held.Context().Done():
	case <-time.After(clusterTTL + patience):
		t.Fatal("the lease outlives its TTL")
	}
	if !errors.Is(context.Cause(held.Context()), locker.ErrLost) {
		t.Errorf("cause: %v", context.Cause(held.Context()))
	}
	t.Logf("told %v after the loss", time.Since(start))
	if lease, err := other.TryAcquire(t.Context(), "x"); err == nil {
		t.Errorf("granted by a minority: %d", lease.Token())
	} else if !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("TryAcquire: %v", err)
	}
	lead.Start(t)
	others[0].Start(t)
	next := acquire(t, other, "x")
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The holder reaches only the leader, which is cut off from the others: it is told before the next holder is granted.
func TestClusterHolderOnTheMinoritySide(t *testing.T) {
	members := testserver.Group(t, testserver.EtcdCluster)
	for range 2 {
		lead, others := leader(t, members)
		prefix := unique()
		minority, majority := openLocker(t, prefix, lead), openLocker(t, prefix, others...)
		held := acquire(t, minority, "x")
		if err := lead.Do(t.Context(), testserver.Isolate); err != nil {
			t.Fatal(err)
		}
		next := acquire(t, majority, "x")
		if held.Context().Err() == nil {
			t.Error("two holders")
		}
		if next.Token() <= held.Token() {
			t.Errorf("token %d after %d", next.Token(), held.Token())
		}
		if err := held.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
			t.Errorf("Release of the lost lease: %v", err)
		}
		if err := lead.Do(t.Context(), testserver.Heal); err != nil {
			t.Fatal(err)
		}
		lead.WaitReady(t)
		if err := next.Context().Err(); err != nil {
			t.Errorf("the next holder's lease: %v", err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
