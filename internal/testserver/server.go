package testserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// readyTimeout bounds how long a server that was started, restarted or thawed may take until it
// answers. A Consul cluster on a busy machine needs the most: some 20 s.
const readyTimeout = 90 * time.Second

// Server is a real server that answered when it was handed out. Its methods are safe for concurrent use.
type Server struct {
	Name     Name
	Addr     string // "127.0.0.1:PORT"; of redis-unix: the socket's path
	TLS      *TLS   // nil: plain
	Username string // to log in with, where the server wants that
	Password string // of ConsulACL: the management token

	spec   *spec
	host   host   // where it runs; nil: somebody else runs it
	owner  string // the test that it was handed to, which undoes everything when it has ended
	faults error  // why faults are not allowed; nil: they are

	mu   sync.Mutex
	down condition // what was done to it and not undone
}

// A host runs a server: a container or a process.
type host interface {
	do(ctx context.Context, a Action) error
	exec(ctx context.Context, args []string) (string, error)
	logs(ctx context.Context) (string, error)
}

// Probe has one exchange with the server in its own protocol, on a new connection.
func (s *Server) Probe(ctx context.Context) error {
	t := target{network: "tcp", addr: s.Addr, username: s.Username, password: s.Password}
	switch s.spec.transport {
	case unixSocket:
		t.network = "unix"
	case serverTLS, mutualTLS:
		c, err := s.TLS.Config()
		if err != nil {
			return err
		}
		if s.spec.transport == serverTLS {
			c.Certificates = nil
		}
		t.tls = c
	}
	return s.spec.probe(ctx, t)
}

// Ready waits until the server answers in its own protocol, or ctx ends.
func (s *Server) Ready(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.Probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("testserver: %s at %s does not answer: %w", s.Name, s.Addr, err)
		}
	}
}

// WaitReady is Ready for at most 90 s; the test fails if that is not enough.
func (s *Server) WaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		if s.host != nil {
			if text, err := s.host.logs(ctx); err == nil {
				t.Log(text)
			}
		}
		t.Fatal(err)
	}
}

// Exec runs a program inside the server's container and returns what it printed.
func (s *Server) Exec(ctx context.Context, args ...string) (string, error) {
	if s.host == nil {
		return "", errors.ErrUnsupported
	}
	return s.host.exec(ctx, args)
}

// Logs are the last lines that the server wrote.
func (s *Server) Logs(ctx context.Context) (string, error) {
	if s.host == nil {
		return "", errors.ErrUnsupported
	}
	return s.host.logs(ctx)
}

// URL returns scheme://Addr, for drivers whose URL needs no more.
func (s *Server) URL(scheme string) string { return scheme + "://" + s.Addr }

// newServer describes the server name at addr, which is its published address if empty.
func newServer(name Name, addr string) (*Server, error) {
	sp := servers[name]
	if sp == nil {
		return nil, fmt.Errorf("testserver: there is no server called %q", name)
	}
	s := &Server{Name: name, Addr: addr, Username: sp.username, Password: sp.password, spec: sp}
	if addr == "" && sp.transport == unixSocket {
		s.Addr = socketDir() + "/redis.sock"
	} else if addr == "" {
		s.Addr = fmt.Sprintf("127.0.0.1:%d", sp.port)
	}
	if sp.transport == serverTLS || sp.transport == mutualTLS {
		files, err := Certificates()
		if err != nil {
			return nil, err
		}
		s.TLS = files
	}
	return s, nil
}

// answers reports whether the server answers within a moment.
func (s *Server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return s.Probe(ctx)
}
