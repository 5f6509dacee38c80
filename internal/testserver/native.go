package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is a host that runs a redis-server of the machine itself.
type process struct {
	path string
	args []string
	env  []string
	dir  string

	mu  sync.Mutex
	cmd *exec.Cmd
	out *os.File
}

// native starts a private redis-server without Docker.
func native(t testing.TB, path string, opts *Options) *Server {
	t.Helper()
	port, release, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	p := &process{path: path, dir: t.TempDir(), env: append(os.Environ(), opts.Env...)}
	for _, word := range append(append(redisCommand[1:len(redisCommand):len(redisCommand)], "--port", "{port}", "--bind", "127.0.0.1"), opts.Args...) {
		p.args = append(p.args, strings.ReplaceAll(word, "{port}", strconv.Itoa(port)))
	}
	s, err := newServer(Redis, fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	s.host, s.owner = p, t.Name()
	t.Cleanup(func() { p.do(context.Background(), Kill) })
	if err := p.do(context.Background(), Start); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	return s
}

func (p *process) do(ctx context.Context, a Action) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch a {
	case Start:
		return p.start()
	case Restart:
		return errors.Join(p.end(ctx, os.Interrupt), p.start())
	case Stop:
		return p.end(ctx, os.Interrupt)
	case Kill:
		return p.end(ctx, os.Kill)
	case Pause, Resume:
		return freeze(p.cmd.Process, a == Pause)
	}
	return unsupported{fmt.Errorf("without Docker no %s", a)}
}

func (p *process) start() error {
	out, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	p.cmd, p.out = exec.Command(p.path, p.args...), out
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = p.dir, p.env, out, out
	return p.cmd.Start()
}

// end signals the process and waits until it has ended.
func (p *process) end(ctx context.Context, sig os.Signal) error {
	if p.cmd == nil {
		return nil
	}
	p.cmd.Process.Signal(sig)
	ended := make(chan struct{})
	go func() { p.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		p.cmd.Process.Kill()
		<-ended
	case <-ctx.Done():
		p.cmd.Process.Kill()
		<-ended
	}
	p.out.Close()
	p.cmd = nil
	return nil
}

func (p *process) exec(context.Context, []string) (string, error) {
	return "", unsupported{errors.New("without Docker no exec")}
}

func (p *process) logs(context.Context) (string, error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "log"))
	return string(text), err
}
