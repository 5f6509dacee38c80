//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasekit/locker/internal/testserver"
)

// binary is the built command, which the tests drive from outside.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	// Under nohup, or in the background of a script, these may be ignored, and whoever is started inherits that. Being
	// notified ends it.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	dir, err := os.MkdirTemp("", "locker-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "locker")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
		return 1
	}
	return testserver.Main(m)
}

// place is where the locks of a test are kept.
type place struct {
	name string
	url  string
	lose func(t *testing.T, lock string) // takes a lock away behind its holder's back
	gone time.Duration                   // how long after a crash of the holder its lock is free
	path string                          // of the directory, for file
}

// places runs a test on each backend.
func places(t *testing.T, f func(t *testing.T, p place)) {
	t.Run("file", func(t *testing.T) { f(t, filePlace(t)) })
	t.Run("redis", func(t *testing.T) { f(t, redisPlace(t)) })
	t.Run("etcd", func(t *testing.T) { f(t, etcdPlace(t)) })
}

func filePlace(t *testing.T) place {
	dir := filepath.Join(t.TempDir(), "locks")
	return place{
		name: "file",
		url:  "file://" + dir,
		path: dir,
		lose: func(t *testing.T, lock string) { require.NoError(t, os.Remove(filepath.Join(dir, lock))) },
	}
}

func redisPlace(t *testing.T) place {
	s := testserver.Need(t, testserver.Redis)
	prefix := "cli-" + rand.Text() + ":"
	return place{
		name: "redis",
		url:  s.URL("redis") + "?prefix=" + prefix,
		gone: ttl,
		lose: func(t *testing.T, lock string) {
			c := redis.NewClient(&redis.Options{Addr: s.Addr})
			defer c.Close()
			n, err := c.Del(context.Background(), prefix+lock).Result()
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		},
	}
}

func etcdPlace(t *testing.T) place {
	s := testserver.Need(t, testserver.Etcd)
	prefix := "/cli-" + rand.Text()
	return place{
		name: "etcd",
		url:  s.URL("etcd") + prefix,
		gone: ttl + time.Second,
		lose: func(t *testing.T, lock string) {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop()})
			require.NoError(t, err)
			defer c.Close()
			r, err := c.Delete(context.Background(), prefix+"/"+lock+"/", clientv3.WithPrefix())
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Deleted)
		},
	}
}

// ttl is the usual TTL of these tests, and wait what they give to anything that should happen soon.
const (
	ttl  = 3 * time.Second
	wait = 10 * ttl
)

// process is a locker that is to be started, or was.
type process struct {
	*exec.Cmd
	t    *testing.T
	mark string // in the environment of it and of all that it starts
	done chan struct{}
}

// command prepares "locker args..." in a directory and a session of its own, without a terminal. What it prints goes
// into files, since a pipe would be held open by what it leaves behind.
func (p place) command(t *testing.T, args ...string) *process {
	t.Helper()
	c := &process{t: t, Cmd: exec.Command(binary, args...), mark: "LOCKER_TEST=" + rand.Text(), done: make(chan struct{})}
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), "LOCKER_URL="+p.url, c.mark)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.Stdout, c.Stderr = c.create("stdout"), c.create("stderr")
	return c
}

func (c *process) create(name string) *os.File {
	c.t.Helper()
	f, err := os.Create(filepath.Join(c.Dir, name))
	require.NoError(c.t, err)
	c.t.Cleanup(func() { f.Close() })
	return f
}

// start starts it. Whatever it leaves behind is killed at the end of the test.
func (c *process) start() *process {
	c.t.Helper()
	require.NoError(c.t, c.Start())
	go func() {
		c.Wait()
		close(c.done)
	}()
	c.t.Cleanup(func() {
		c.Process.Kill()
		<-c.done
		for _, pid := range c.marked() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if c.t.Failed() {
			c.t.Logf("%q printed %.1000q and %.1000q", c.Args[1:], c.stdout(), c.stderr())
		}
	})
	return c
}

// run starts "locker args..." and waits for its end.
func (p place) run(t *testing.T, args ...string) *process {
	t.Helper()
	c := p.command(t, args...).start()
	c.code()
	return c
}

// holding starts "locker run args..." and waits until its command has printed something.
func (p place) holding(t *testing.T, args ...string) *process {
	t.Helper()
	c := p.command(t, append([]string{"run"}, args...)...).start()
	eventually(t, "the command runs", func() bool { return c.stdout() != "" || c.exited() })
	require.False(t, c.exited(), "it has ended: %s", c.stderr())
	return c
}

// waiting starts "locker run args..." and waits until it tries to get the lock.
func (p place) waiting(t *testing.T, args ...string) *process {
	t.Helper()
	c := p.command(t, append([]string{"run", "--verbose"}, args...)...).start()
	eventually(t, "it tries to get the lock", func() bool { return strings.Contains(c.stderr(), "acquiring") })
	require.Empty(t, c.stdout())
	return c
}

// code waits for the end and returns the exit code, or -n if signal n ended the locker itself.
func (c *process) code() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(wait):
		require.Fail(c.t, "it doesn't end", "%q printed %.1000q and %.1000q", c.Args[1:], c.stdout(), c.stderr())
	}
	if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal())
	}
	return c.ProcessState.ExitCode()
}

func (c *process) exited() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *process) signal(s syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.Process.Signal(s))
}

func (c *process) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(c.Dir, name))
	return string(b)
}
func (c *process) stdout() string { return c.read("stdout") }
func (c *process) stderr() string { return c.read("stderr") }

// marked returns the processes that it has started, directly or not, and that live.
func (c *process) marked() []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == c.Process.Pid {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ") // empty for a zombie
		if bytes.Contains(env, []byte(c.mark)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually waits for a condition, generously.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(wait); !condition(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%s: it doesn't come true", what)
	}
}

// isFree checks that nobody holds a lock, or not for longer than until by.
func (p place) isFree(t *testing.T, lock string, by time.Duration) {
	t.Helper()
	require.Equal(t, 0, p.run(t, "run", "--wait", (by+wait).String(), lock, "true").code())
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }
