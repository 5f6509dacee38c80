package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// Group returns the members of a group, all running and answering, for this test alone. It starts the
// group if it does not run, and stops what it started when the test has ended, or, in a test binary
// whose TestMain calls [Main], when all tests have ended. Only one group runs on the machine at a time,
// apart from those that somebody else started. What was done to the members is undone when the test has
// ended.
func Group(t testing.TB, name GroupName) []*Server {
	t.Helper()
	members := groups[name]
	if members == nil {
		t.Fatalf("testserver: there is no group %q", name)
	}
	if v := os.Getenv(override(string(name))); v != "" {
		return brought(t, name, strings.Split(v, ","))
	}
	if DockerMissing() != nil {
		unavailable(t, members[0], DockerMissing())
	}
	locks.single(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*readyTimeout)
	defer cancel()
	if err := startGroup(ctx, name); err != nil {
		if _, missing := imageFor(servers[members[0]].image); missing != nil {
			unavailable(t, members[0], missing)
		}
		if _, missing := composeCommand(); missing != nil {
			unavailable(t, members[0], missing)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if mainRuns.Load() {
			return
		}
		if err := stopGroup(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	var list []*Server
	for _, m := range members {
		s, err := newServer(m, "")
		if err != nil {
			t.Fatal(err)
		}
		c := &container{name: "locker-" + string(m), spec: s.spec}
		c.net = c.name
		if ns := namespaces[name]; ns != "" {
			c.net = "locker-" + string(ns)
		}
		s.host, s.owner = c, t.Name()
		list = append(list, s)
	}
	for _, s := range list {
		s.WaitReady(t)
	}
	t.Cleanup(func() { restoreGroup(t, name, list) })
	return list
}

// brought describes a group that the user runs.
func brought(t testing.TB, name GroupName, addrs []string) []*Server {
	var list []*Server
	for i, addr := range addrs {
		if i == len(groups[name]) {
			break
		}
		s, err := newServer(groups[name][i], addr)
		if err != nil {
			t.Fatal(err)
		}
		s.faults = unsupported{fmt.Errorf("the user brought it (%s)", override(string(name)))}
		if err := s.answers(); err != nil {
			t.Fatalf("testserver: %s: %s: %v", override(string(name)), addr, err)
		}
		list = append(list, s)
	}
	return list
}

// restoreGroup undoes what a test did, in two steps: a member may need another one to be ready.
func restoreGroup(t testing.TB, name GroupName, list []*Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*readyTimeout)
	defer cancel()
	touched := false
	for _, s := range list {
		if s.touched() {
			touched = true
			if err := s.undo(ctx); err != nil {
				t.Log(err)
			}
		}
	}
	if !touched {
		return
	}
	var err error
	if name == Sentinel {
		err = errors.New("a failover may be under way or have changed who is the primary")
	}
	for _, s := range list {
		if err == nil {
			err = s.Ready(ctx)
		}
	}
	if err == nil {
		return
	}
	t.Logf("removing the group %s, for the next test to start it anew: %v", name, err)
	if err := removeServices(ctx, append(slices.Clone(groups[name]), namespaces[name])); err != nil {
		t.Error(err)
	}
}

// startedPath is the file that says which members of a group this package started, and the last process
// that used them: "PID SERVICE…". Who changes it holds the lock of all exclusive use.
func startedPath(name GroupName) string { return lockPath("started-" + string(name)) }

func readStarted(name GroupName) (pid int, services []Name) {
	text, err := os.ReadFile(startedPath(name))
	if err != nil {
		return 0, nil
	}
	f := strings.Fields(string(text))
	if len(f) == 0 {
		return 0, nil
	}
	pid, _ = strconv.Atoi(f[0])
	for _, s := range f[1:] {
		services = append(services, Name(s))
	}
	return pid, services
}

// startGroup starts what does not run of the group, after stopping other groups that this package
// started. The caller holds the lock of all exclusive use.
func startGroup(ctx context.Context, name GroupName) error {
	for other := range groups {
		if other != name {
			if err := stopGroup(ctx, other); err != nil {
				return err
			}
		}
	}
	all := slices.Clone(groups[name])
	if ns := namespaces[name]; ns != "" {
		all = append(all, ns)
	}
	state, err := states(ctx)
	if err != nil {
		return err
	}
	_, services := readStarted(name)
	missing := slices.DeleteFunc(slices.Clone(all), func(n Name) bool { return state[n] == "running" })
	if len(missing) > 0 && namespaces[name] != "" {
		// Members of a namespace that was made anew would keep the old one, which leads nowhere.
		if err := removeServices(ctx, all); err != nil {
			return err
		}
		missing = all
	}
	for _, m := range missing {
		if !slices.Contains(services, m) {
			services = append(services, m)
		}
	}
	if len(services) > 0 { // written first: what follows may be cut short
		line := strconv.Itoa(os.Getpid())
		for _, s := range services {
			line += " " + string(s)
		}
		if err := os.WriteFile(startedPath(name), []byte(line+"\n"), 0o644); err != nil {
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := removeServices(ctx, missing); err != nil {
		return err
	}
	return Up(ctx, string(name), missing)
}

// stopGroup removes those members that this package started.
func stopGroup(ctx context.Context, name GroupName) error {
	_, services := readStarted(name)
	if len(services) == 0 {
		return nil
	}
	if err := removeServices(ctx, services); err != nil {
		return err
	}
	return os.Remove(startedPath(name))
}

// Up starts services of a profile; of the base group if profile is empty. It does not wait for them.
func Up(ctx context.Context, profile string, services []Name) error {
	var args []string
	if profile != "" {
		args = append(args, "--profile", profile)
	}
	args = append(args, "up", "--detach")
	for _, s := range services {
		args = append(args, string(s))
	}
	return compose(ctx, args...)
}

// removeServices removes the containers of services, if there are any.
func removeServices(ctx context.Context, services []Name) error {
	state, err := states(ctx)
	if err != nil {
		return err
	}
	args := []string{"rm", "--force", "--volumes"}
	for _, s := range services {
		if state[s] != "" {
			args = append(args, "locker-"+string(s))
		}
	}
	if len(args) == 3 {
		return nil
	}
	_, err = docker(ctx, args...)
	return err
}

var mainRuns atomic.Bool

// Main runs the tests of a binary and keeps the group that they use running between them. A package
// with many tests that call [Group] calls it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }
func Main(m *testing.M) int {
	mainRuns.Store(true)
	code := m.Run()
	// If another process has the lock, it uses this group or has stopped it: in either case the group
	// is no longer ours.
	if DockerMissing() != nil {
		return code
	}
	lock, err := tryLockFile("exclusive", true)
	if err != nil {
		return code
	}
	defer lock.Close()
	for name := range groups {
		if pid, _ := readStarted(name); pid == os.Getpid() {
			if err := stopGroup(context.Background(), name); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	return code
}
