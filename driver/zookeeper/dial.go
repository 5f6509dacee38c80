package zookeeper

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// hosts is the library's list of servers. Names are resolved anew at each dial. It never asks the library to pause, whose
// pause of a second is longer than some sessions: the dialer does that. Once the session has ended it asks for the pause,
// because that is the only place where the library's loop looks whether it was closed.
type hosts struct {
	s       *session
	servers []string
	next    int
}

func (h *hosts) Init(servers []string) error { h.servers = servers; return nil }
func (h *hosts) Len() int                    { return len(h.servers) }
func (h *hosts) Connected()                  {}
func (h *hosts) Next() (server string, pause bool) {
	server = h.servers[h.next%len(h.servers)]
	h.next++
	return server, h.s.ctx.Err() != nil
}

// dial is the library's dialer. A session that has ended is never connected again: the library would make a new session on
// the same handle, and send requests on it that were meant for the old one.
func (s *session) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	if d := s.pause(); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.ctx.Done():
		}
	}
	ctx, stop := context.WithTimeout(s.ctx, min(max(s.c.cfg.TTL/4, 250*time.Millisecond), time.Second))
	defer stop()
	raw, err := s.c.o.dial(ctx, network, addr)
	if err == nil {
		if raw, err = s.c.secured(ctx, raw, addr); err != nil && !settings(err) {
			if wrong := s.mismatched(addr); wrong != nil {
				err = wrong
			}
		}
	}
	if err != nil {
		s.failed(fmt.Errorf("%s: %w", addr, err))
		return nil, err
	}
	// The library would wait for the session for nearly seven timeouts.
	raw.SetReadDeadline(time.Now().Add(min(max(s.c.cfg.TTL/3, 500*time.Millisecond), 3*time.Second)))
	return s.adopt(&wire{Conn: raw, s: s, addr: addr, dialed: s.c.cfg.Now()})
}

// secured does the TLS handshake, where there is TLS.
func (c *conn) secured(ctx context.Context, raw net.Conn, addr string) (net.Conn, error) {
	if c.tls == nil {
		return raw, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		raw.Close()
		return nil, err
	}
	secure := tls.Client(raw, tlsfiles.ForHost(c.tls, host))
	if err := secure.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secure, nil
}

// wire is a connection of the library's. It reads the session's timeout out of the server's first answer, which the
// library keeps to itself, and counts what arrives.
type wire struct {
	net.Conn
	s      *session
	addr   string
	dialed driver.Instant
	reads  atomic.Uint64
	slow   atomic.Int64 // nanoseconds that the slowest of the last answers has taken

	head  [20]byte // of the server's first answer: its length, the protocol's version, the timeout, the session
	got   int
	ready atomic.Bool // head is complete

	watches   chan struct{} // closed when the library has set its watches anew; nil on a session's first connection
	rewatched sync.Once
	rewatch   <-chan struct{} // watches, until they were awaited; only the reading goroutine

	mu     sync.Mutex
	err    error // of reading
	closed bool
}

func (w *wire) Read(p []byte) (int, error) {
	if w.ready.Load() && w.rewatch != nil {
		w.awaitWatches()
	}
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.reads.Add(1)
		if !w.ready.Load() {
			w.got += copy(w.head[w.got:], p[:n])
			w.ready.Store(w.got == len(w.head))
		}
	}
	if err != nil && !w.ready.Load() {
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}
	return n, err
}

// awaitWatches keeps answers back until the library has set its watches anew on a new connection. For that it reads,
// without a lock, the number of the newest answer, which its other goroutine changes with each answer.
func (w *wire) awaitWatches() {
	t := time.NewTimer(maxRewatch)
	defer t.Stop()
	select {
	case <-w.rewatch:
	case <-t.C: // there are no watches
	}
	w.rewatch = nil
}

const (
	maxRewatch   = 250 * time.Millisecond
	opSetWatches = 101
)

func (w *wire) Write(p []byte) (int, error) {
	if w.watches != nil && len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == opSetWatches {
		w.rewatched.Do(func() { close(w.watches) })
	}
	return w.Conn.Write(p)
}

// granted returns the session's timeout and number, once the library says that it has a session.
func (w *wire) granted() (timeout time.Duration, id int64) {
	return time.Duration(int32(binary.BigEndian.Uint32(w.head[8:]))) * time.Millisecond, int64(binary.BigEndian.Uint64(w.head[12:]))
}

// SetReadDeadline leaves the dialer's deadline in force until the server has answered.
func (w *wire) SetReadDeadline(t time.Time) error {
	if !w.ready.Load() {
		return nil
	}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) Close() error {
	w.mu.Lock()
	first, err := !w.closed, w.err
	w.closed = true
	w.mu.Unlock()
	if first && !w.ready.Load() {
		if hungUp := err != nil && !errors.Is(err, os.ErrDeadlineExceeded); hungUp {
			if wrong := w.s.mismatched(w.addr); wrong != nil {
				err = wrong
			} else {
				err = fmt.Errorf("the server closed the connection without giving a session: %w", err)
			}
		}
		if err != nil {
			w.s.failed(fmt.Errorf("%s: %w", w.addr, err))
		}
	}
	return w.Conn.Close()
}

// pause returns how long to wait before the next dial: not at all until each server was tried, and some time between
// rounds.
func (s *session) pause() time.Duration {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.dials++
	if n := len(s.c.servers); s.dials <= n || (s.dials-1)%n != 0 {
		return 0
	}
	return s.roundPause()/2 + rand.N(s.roundPause()/2)
}

func (s *session) roundPause() time.Duration {
	return min(max(s.c.cfg.TTL/10, 50*time.Millisecond), time.Second)
}

// failed notes that a dial gave no session. When the last server of a round has failed, those who wait for the session
// learn why.
func (s *session) failed(err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.failures = append(s.failures, err)
	if len(s.failures) >= len(s.c.servers) {
		s.why = errors.Join(s.failures...)
		if permanent := dialAnswer(s.failures); permanent != nil {
			s.why = permanent
		}
		s.failures = nil
		s.rounds++
		s.broadcast()
	}
}
