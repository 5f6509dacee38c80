package testserver

import (
	"context"
	"strings"
	"testing"
	"time"
)

// down reports within how long a probe of s fails; the test fails if it goes on to succeed.
func down(t *testing.T, s *Server) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Probe(ctx)
		cancel()
		if err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s goes on to answer", s.Name)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestGroups(t *testing.T) {
	// As if TestMain had called Main: the group goes on running between the tests of one.
	mainRuns.Store(true)
	t.Cleanup(func() {
		mainRuns.Store(false)
		stopGroup(context.Background(), ConsulCluster)
	})
	for _, name := range []GroupName{Redlock, Sentinel, RedisCluster, EtcdCluster, ZooKeeperCluster, ConsulCluster} {
		t.Run(string(name), func(t *testing.T) {
			t.Run("faults", func(t *testing.T) {
				m := Group(t, name)
				if len(m) != len(groups[name]) {
					t.Fatalf("%d members", len(m))
				}
				m[0].Cut(t)
				down(t, m[0])
				if len(m[0].spec.peers) > 0 {
					m[0].Heal(t)
					m[0].WaitReady(t)
					m[0].Isolate(t)
					down(t, m[0]) // it answers, but it has no majority
					m[1].WaitReady(t)
				}
			})
			t.Run("again", func(t *testing.T) {
				for _, s := range Group(t, name) {
					if err := s.answers(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestGroupIsStopped uses what the last test of the group left behind.
func TestGroupIsStopped(t *testing.T) {
	if DockerMissing() != nil {
		unavailable(t, Redis, DockerMissing())
	}
	before, err := states(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before["etcd1"] != "" {
		t.Skip("somebody else has started it")
	}
	t.Run("use", func(t *testing.T) { Group(t, EtcdCluster) })
	after, err := states(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range after {
		if before[name] == "" && strings.HasPrefix(string(name), "etcd") {
			t.Errorf("%s was left running", name)
		}
	}
}
