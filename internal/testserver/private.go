package testserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	labelTest  = "locker.test"  // what a container is for: private or tools
	labelOwner = "locker.owner" // the process that started it: "PID START"
)

// Options say how a private server differs from the shared one of the same name.
type Options struct {
	Args   []string // added to the server's command; {port} stands for its port on 127.0.0.1
	Env    []string // "NAME=VALUE", added to its environment
	Mounts []string // "HOST:CONTAINER[:ro]"
}

// Private starts a server for this test alone: any faults, any settings. Redis takes half a second,
// ZooKeeper two. It has its own port on 127.0.0.1 and keeps it, and its data, over Stop, Kill and Start
// (what the server itself keeps: Redis only with the arguments --appendonly yes). It is removed when
// the test has ended, or by the next process that calls Private if this one was killed.
//
// Without Docker a redis-server on the PATH serves as well, which cannot be cut off.
func Private(t testing.TB, name Name, opts *Options) *Server {
	t.Helper()
	if opts == nil {
		opts = new(Options)
	}
	sp := servers[name]
	if sp == nil || sp.command == nil {
		t.Fatalf("testserver: there is no private server %q", name)
	}
	if DockerMissing() != nil {
		if path, err := exec.LookPath("redis-server"); err == nil && name == Redis && len(opts.Mounts) == 0 {
			return native(t, path, opts)
		}
		unavailable(t, name, DockerMissing())
	}
	image, err := imageFor(sp.image)
	if err != nil {
		unavailable(t, name, err)
	}
	sweepOnce()

	s, err := newServer(name, "")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--label", labelTest + "=private", "--label", labelOwner + "=" + ownerLabel()}
	for _, e := range append(sp.env[:len(sp.env):len(sp.env)], opts.Env...) {
		args = append(args, "--env", e)
	}
	mounts := opts.Mounts
	if s.TLS != nil {
		mounts = append(mounts[:len(mounts):len(mounts)], tlsDir()+":/tls:ro")
	}
	if sp.transport == unixSocket {
		dir, err := os.MkdirTemp("", "locker-test-") // not t.TempDir: its path may be too long for a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		os.Chmod(dir, 0o777)
		mounts = append(mounts[:len(mounts):len(mounts)], dir+":/sockets")
		s.Addr = dir + "/redis.sock"
	}
	for _, m := range mounts {
		args = append(args, "--volume", m)
	}
	c := &container{spec: sp}
	s.host, s.owner = c, t.Name()
	t.Cleanup(func() {
		if c.name != "" {
			if _, err := docker(context.Background(), "rm", "--force", "--volumes", c.name); err != nil {
				t.Error(err)
			}
		}
	})
	runContainer(t, s, c, args, append([]string{image}, append(sp.command[:len(sp.command):len(sp.command)], opts.Args...)...))
	s.WaitReady(t)
	return s
}

var containers atomic.Int64

// runContainer starts the container on a port that nobody has.
func runContainer(t testing.TB, s *Server, c *container, args, command []string) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		port, release, err := reservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		name := fmt.Sprintf("locker-test-%s-%d-%d", s.Name, os.Getpid(), containers.Add(1))
		run := append([]string{"run", "--detach", "--name", name}, args...)
		if s.spec.inside != 0 {
			run = append(run, "--publish", fmt.Sprintf("127.0.0.1:%d:%d", port, s.spec.inside))
			s.Addr = fmt.Sprintf("127.0.0.1:%d", port)
		}
		for _, word := range command {
			run = append(run, strings.ReplaceAll(word, "{port}", strconv.Itoa(port)))
		}
		c.name, c.net = name, name
		_, err = docker(ctx, run...)
		if err == nil {
			return
		}
		if text := err.Error(); !strings.Contains(text, "already allocated") && !strings.Contains(text, "already in use") {
			t.Fatal(err)
		}
		docker(ctx, "rm", "--force", "--volumes", name) // it was created, and could not start
	}
}

// reservePort picks a port that no other test of this package's users has until release. Docker finds
// out whether anybody else has it.
func reservePort() (port int, release func(), err error) {
	for {
		// Below the range of ports that the kernel gives to clients, and above the shared servers. The
		// files stay, so there are not too many of them.
		port := 20000 + rand.IntN(1000)
		file, err := tryLockFile("port-"+strconv.Itoa(port), true)
		if errors.Is(err, errBusy) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		return port, func() { file.Close() }, nil
	}
}

// ownerLabel names this process so that another one can tell whether it is still there: a number alone
// may be given to a new process.
var ownerLabel = sync.OnceValue(func() string {
	return fmt.Sprintf("%d %s", os.Getpid(), startTime(os.Getpid()))
})

// startTime is when a process started, as the kernel counts; empty where that cannot be told.
func startTime(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field, in parentheses, may hold anything; the start is the 22nd.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

var sweepOnce = sync.OnceFunc(func() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	Sweep(ctx)
})

// Sweep removes the private servers of processes that are gone.
func Sweep(ctx context.Context) error {
	out, err := docker(ctx, "ps", "--all", "--filter", "label="+labelTest+"=private", "--format", `{{.ID}} {{.Label "`+labelOwner+`"}}`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		pid, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		if start := startTime(pid); len(f) == 3 && start != f[2] {
			docker(ctx, "rm", "--force", "--volumes", f[0])
		}
	}
	return nil
}
