package testserver

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// soon reports whether c is closed within a moment, or stays open for one.
func soon(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-time.After(200 * time.Millisecond):
		return false
	}
}

// TestLocks takes locks as two processes would: each has a table of its own.
func TestLocks(t *testing.T) {
	name := "locks-test"
	table := func() *lockTable { return &lockTable{servers: make(map[string]*serverLock)} }
	a, b := table(), table()
	first, second, alone, late := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	releaseFirst, releaseSecond, releaseAlone := make(chan struct{}), make(chan struct{}), make(chan struct{})

	// Not t.Parallel, which runs no more tests at a time than there are cores.
	var wg sync.WaitGroup
	defer wg.Wait()
	run := func(name string, f func(t *testing.T)) { wg.Go(func() { t.Run(name, f) }) }
	run("sharer of process a", func(t *testing.T) {
		a.shared(t, name)
		close(first)
		<-releaseFirst
		a.shared(t, name) // while somebody waits to have it alone: must not wait behind that
	})
	run("sharer of process b", func(t *testing.T) {
		<-first
		b.shared(t, name)
		close(second)
		<-releaseSecond
	})
	run("alone in process b", func(t *testing.T) {
		<-second
		b.exclusive(t, name)
		b.exclusive(t, name) // once more, by the same test
		b.shared(t, name)    // has it already
		close(alone)
		<-releaseAlone
	})
	run("late sharer of process c", func(t *testing.T) {
		<-second
		for { // until the test before is known to wait
			gate, err := tryLockFile(name+".gate", true)
			if err != nil {
				break
			}
			gate.Close()
			time.Sleep(5 * time.Millisecond)
		}
		table().shared(t, name)
		close(late)
	})
	run("observer", func(t *testing.T) {
		<-second
		if soon(alone) {
			t.Error("alone, although two others share")
		}
		close(releaseFirst)
		close(releaseSecond)
		<-alone
		if soon(late) {
			t.Error("shared, although another test has it alone")
		}
		close(releaseAlone)
		<-late
	})
}

// TestNeedThenExclusive checks that a test cannot wait for itself.
func TestNeedThenExclusive(t *testing.T) {
	if out, ok := rerun(t, nil); ok {
		l := &lockTable{servers: make(map[string]*serverLock)}
		l.shared(t, "self-test")
		t.Run("sub", func(t *testing.T) { l.exclusive(t, "other") })
	} else if !strings.Contains(out, "call Exclusive or Group before Need") {
		t.Errorf("got %q", out)
	}
}

// TestRequire checks that a server that cannot be had is a visible skip, and a failure if required.
func TestRequire(t *testing.T) {
	for _, tt := range []struct{ require, want string }{
		{"", "--- SKIP"},
		{"redis, etcd", "--- SKIP"},
		{"redis, consul", "--- FAIL"},
		{"consul-acl", "--- FAIL"},
		{"all", "--- FAIL"},
	} {
		out, ok := rerun(t, []string{"PATH=", "LOCKER_TEST_REQUIRE=" + tt.require})
		if ok {
			Private(t, ConsulACL, nil)
			return
		}
		if !strings.Contains(out, tt.want) || !strings.Contains(out, "there is no docker command") {
			t.Errorf("LOCKER_TEST_REQUIRE=%q: want %s and the reason, got %s", tt.require, tt.want, out)
		}
	}
}

// rerun runs the calling test again in a process of its own, which it must expect to fail or to skip,
// and returns what that printed. In that process it returns true.
func rerun(t *testing.T, env []string) (string, bool) {
	t.Helper()
	if os.Getenv("TESTSERVER_RERUN") == t.Name() {
		return "", true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), "TESTSERVER_RERUN="+t.Name()), env...)
	out, _ := cmd.CombinedOutput()
	return string(out), false
}

// TestBrought uses a server as if the user had brought it.
func TestBrought(t *testing.T) {
	s := Private(t, Redis, nil)
	t.Setenv("LOCKER_TEST_REDIS", s.Addr)
	brought := Need(t, Redis)
	if brought.Addr != s.Addr {
		t.Errorf("got %s, want %s", brought.Addr, s.Addr)
	}
	skipped := t.Run("fault", func(t *testing.T) {
		t.Setenv("LOCKER_TEST_REQUIRE", "")
		defer func() {
			if !t.Skipped() {
				t.Error("a fault was not skipped")
			}
		}()
		brought.Pause(t)
	})
	if !skipped {
		t.Error("failed")
	}
	if err := s.answers(); err != nil {
		t.Error(err)
	}
}

func TestShared(t *testing.T) {
	s := Need(t, Redis)
	if err := s.Do(t.Context(), Pause); err == nil || !strings.Contains(err.Error(), "use Private or Exclusive") {
		t.Errorf("a fault on a shared server: %v", err)
	}
	if err := s.answers(); err != nil {
		t.Error(err)
	}
}

// TestExclusive freezes a shared server, which nobody notices.
func TestExclusive(t *testing.T) {
	t.Run("use", func(t *testing.T) {
		s := Exclusive(t, ZooKeeper)
		s.Pause(t)
		silent(t, s)
	})
	if err := Need(t, ZooKeeper).answers(); err != nil {
		t.Error(err)
	}
}

// TestNative runs the redis-server of the machine, if there is one, as is done without Docker.
func TestNative(t *testing.T) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("there is no redis-server on the PATH")
	}
	s := native(t, path, &Options{Args: []string{"--appendonly", "yes"}})
	s.Pause(t)
	silent(t, s)
	s.Resume(t)
	s.Kill(t)
	silent(t, s)
	s.Start(t)
	s.Restart(t)
	s.Stop(t)
	silent(t, s)
}
