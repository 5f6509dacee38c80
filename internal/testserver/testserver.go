// Package testserver gives tests real servers, and lets them pause, kill, restart and cut off these.
//
//   - [Need]: a server of the base group, shared with tests that run at the same time; no faults.
//   - [Private]: a server of one's own, started for the test and removed after it; any flags, any
//     faults. The best choice for whatever changes a server.
//   - [Exclusive]: a shared server for one test alone.
//   - [Group]: Redlock's masters, Sentinel, a cluster; started when needed, one group on the machine
//     at a time, for one test alone.
//
// A test whose server is not to be had is skipped and says why, or fails if LOCKER_TEST_REQUIRE names
// its backend: a list, separated by commas, of redis, redlock, etcd, zookeeper, consul, postgres,
// mariadb, names of single servers or groups, or all.
//
// LOCKER_TEST_REDIS=HOST:PORT names a server that the user brings, and so on for each name in capitals
// with _ for -; LOCKER_TEST_REDLOCK=HOST:PORT,… the members of a group. Nothing is done to these: tests
// that would are skipped.
//
// go test runs the tests of several packages at once. Tests that share a server hold a lock on a file
// together, a test that has it alone holds that lock alone, and before it the one that all such tests
// and all groups have in common. The order is always: that lock, then servers for oneself, then shared
// ones; so a test calls Group or Exclusive before Need, and nobody waits in a circle.
package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Need returns a server that runs and answers, for as long as the test runs. Other tests use it at the
// same time: a test picks names that nobody else uses, and changes no settings. One that is not of the
// base group and does not run is started for this test alone, as [Private] does.
func Need(t testing.TB, name Name) *Server {
	t.Helper()
	s := find(t, name)
	if s.host == nil {
		return s
	}
	if s.spec.profile != "" && s.answers() != nil {
		return Private(t, name, nil)
	}
	locks.shared(t, string(name))
	s.faults = fmt.Errorf("testserver: %s is shared with other tests: use Private or Exclusive", name)
	await(t, s)
	return s
}

// Exclusive returns a server of the base group that no other test uses until this one has ended. What
// was done to it is undone then; settings that were changed are the test's own business.
func Exclusive(t testing.TB, name Name) *Server {
	t.Helper()
	s := find(t, name)
	if s.host == nil {
		return s
	}
	locks.exclusive(t, string(name))
	s.owner = t.Name()
	t.Cleanup(func() { restore(t, s) })
	await(t, s)
	return s
}

// find describes the server, without waiting for anything.
func find(t testing.TB, name Name) *Server {
	t.Helper()
	s, err := newServer(name, os.Getenv(override(string(name))))
	if err != nil {
		t.Fatal(err)
	}
	if s.spec.group != "" {
		t.Fatalf("testserver: %s belongs to the group %s", name, s.spec.group)
	}
	if os.Getenv(override(string(name))) != "" {
		s.faults = unsupported{fmt.Errorf("the user brought it (%s)", override(string(name)))}
		if err := s.answers(); err != nil {
			t.Fatalf("testserver: %s=%s: %v", override(string(name)), s.Addr, err)
		}
		return s
	}
	c := "locker-" + string(name)
	s.host = &container{name: c, net: c, spec: s.spec}
	if DockerMissing() != nil {
		s.faults = unsupported{DockerMissing()}
	}
	return s
}

// await waits until s answers if it is starting, and skips the test if it is not even that.
func await(t testing.TB, s *Server) {
	t.Helper()
	err := s.answers()
	if err == nil {
		return
	}
	if DockerMissing() != nil {
		unavailable(t, s.Name, fmt.Errorf("%s does not answer, and %w", s.Addr, DockerMissing()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	state, err := states(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if state[s.Name] != "running" {
		unavailable(t, s.Name, errors.New("it does not run (run: make up, or make test)"))
	}
	s.WaitReady(t)
}

// restore undoes what the test did to s.
func restore(t testing.TB, s *Server) {
	if !s.touched() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*readyTimeout)
	defer cancel()
	if err := s.restore(ctx); err != nil {
		t.Error(err)
	}
}

// override is the variable that names a server which the user brings.
func override(name string) string {
	return "LOCKER_TEST_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Required reports whether LOCKER_TEST_REQUIRE names one of the names.
func Required(names ...string) bool {
	for word := range strings.SplitSeq(os.Getenv("LOCKER_TEST_REQUIRE"), ",") {
		word = strings.TrimSpace(word)
		if word == "all" || word != "" && slices.Contains(names, word) {
			return true
		}
	}
	return false
}

// unsupported matches errors.ErrUnsupported and says why.
type unsupported struct{ error }

func (unsupported) Is(target error) bool { return target == errors.ErrUnsupported }

// unavailable skips the test, or lets it fail where the server is required.
func unavailable(t testing.TB, name Name, why error) {
	t.Helper()
	names := []string{string(name), servers[name].backend}
	if g := servers[name].group; g != "" {
		names = append([]string{string(g)}, names...)
	}
	skip(t, why, names...)
}

func skip(t testing.TB, why error, names ...string) {
	t.Helper()
	if Required(names...) {
		t.Fatalf("testserver: LOCKER_TEST_REQUIRE=%s, but there is no %s: %v", os.Getenv("LOCKER_TEST_REQUIRE"), names[0], why)
	}
	t.Skipf("needs %s: %v", names[0], why)
}

// patience is how long a test may wait for others: all but the last part of the time that is left to
// its binary, so that the message about it is still printed.
func patience(t testing.TB) (context.Context, context.CancelFunc) {
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, ok := d.Deadline(); ok {
			return context.WithDeadline(context.Background(), end.Add(-min(30*time.Second, time.Until(end)/4)))
		}
	}
	return context.WithTimeout(context.Background(), 30*time.Minute)
}
