package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// session is one ZooKeeper session and the library's handle that keeps it connected. A handle serves one session only: when
// that has ended, the handle is closed, and so nothing that is still queued in it can run under another session.
type session struct {
	c      *conn
	zk     *zk.Conn
	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	login  chan struct{} // holds one token: who has it may log in

	// Guarded by the Conn's mutex.
	state    state
	cause    error // why it is dead
	id       int64
	timeout  time.Duration // that the servers granted, and thus the TTL of its entries
	wire     *wire
	since    time.Time // of the connection
	contact  contact
	changed  chan struct{} // closed at the next change of what is above, or of rounds
	loggedIn bool

	dials    int     // since the last connection that gave a session
	failures []error // of this round through the servers
	rounds   int     // that have failed
	why      error   // the last of them did

	users   int                        // calls, queued requests and holds that need it
	retired bool                       // no new ones: it ends with its last user
	holds   map[string]*hold           // by path
	watched map[string]bool            // paths on which the library has a watch
	wakers  map[string][]chan struct{} // those to wake when something happens to a path
	strays  map[string]*stray          // by ID
	offset  offset
}

type state int

const (
	connecting state = iota // no connection, or none that has given the session
	up
	dead
)

var (
	errEnded   = errors.New("zookeeper: the session has ended")
	errExpired = fmt.Errorf("%w: it expired on the server", errEnded)
	errClosed  = errors.New("zookeeper: closed")
)

// open makes a handle, which connects in the background. It needs the Conn's mutex.
func (c *conn) open() (*session, error) {
	s := &session{
		c: c, login: make(chan struct{}, 1), changed: make(chan struct{}),
		holds: make(map[string]*hold), watched: make(map[string]bool),
		wakers: make(map[string][]chan struct{}), strays: make(map[string]*stray),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.login <- struct{}{}
	handle, _, err := zk.Connect(c.servers, c.cfg.TTL,
		zk.WithDialer(s.dial), zk.WithHostProvider(&hosts{s: s}), zk.WithEventCallback(s.event),
		zk.WithLogger(logger{c.cfg.Logger}), zk.WithLogInfo(false), zk.WithMaxConnBufferSize(sendBuffer))
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	s.zk = handle
	c.sessions[s] = true
	return s, nil
}

// sendBuffer has room for the largest request: the library's own list of watches, of 128 KiB and a path.
const sendBuffer = 256 << 10

// logger gives the library's messages to the program's logger. They are about connections and hold no secret.
type logger struct{ *slog.Logger }

func (l logger) Printf(format string, args ...any) {
	l.Debug("zookeeper client: " + fmt.Sprintf(format, args...))
}

// adopt notes a connection that is about to ask for the session.
func (s *session) adopt(w *wire) (net.Conn, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.ctx.Err() != nil {
		w.Conn.Close()
		return nil, errEnded
	}
	if s.wire != nil && s.timeout > 0 {
		w.watches = make(chan struct{})
		w.rewatch = w.watches
	}
	s.wire = w
	return w, nil
}

// event is called by the library for everything that happens, in the order in which the server sent it: an event comes
// before every answer that shows what it is about. It doesn't block.
func (s *session) event(ev zk.Event) {
	switch ev.Type {
	case zk.EventNodeCreated, zk.EventNodeDeleted, zk.EventNodeDataChanged, zk.EventNodeChildrenChanged:
		s.notify(ev)
	case zk.EventSession:
		switch ev.State {
		case zk.StateHasSession:
			s.connected()
		case zk.StateDisconnected:
			s.disconnected()
		case zk.StateExpired:
			s.end(errExpired)
		}
	}
}

func (s *session) connected() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.state == dead || s.wire == nil {
		return
	}
	timeout, id := s.wire.granted()
	if s.timeout == 0 || timeout < s.timeout { // servers of one cluster can be set differently
		s.timeout = timeout
	}
	s.state, s.id, s.since = up, id, time.Now()
	s.c.served = true
	s.contact.connected(s.wire.dialed)
	s.wire.slow.Store(int64(s.c.cfg.Now().Sub(s.wire.dialed)))
	s.failures = nil
	s.broadcast()
}

func (s *session) disconnected() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.state != up {
		return
	}
	s.state = connecting
	if time.Since(s.since) >= s.roundPause() {
		s.dials = 0 // a server that lets in and throws out at once is a failed one
	}
	// The library sets its watches anew, and tells nobody whether that worked.
	clear(s.watched)
	s.offset.forget()
	for path := range s.wakers {
		s.wake(path)
	}
	s.broadcast()
}

// broadcast and wake need the Conn's mutex.
func (s *session) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *session) wake(path string) {
	for _, ch := range s.wakers[path] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// notify passes on what happened to a node. The watch is used up by it.
func (s *session) notify(ev zk.Event) {
	s.c.mu.Lock()
	delete(s.watched, ev.Path)
	if ev.Path == s.c.offsetPath() {
		s.offset.forget()
		s.c.offset.forget()
	}
	s.wake(ev.Path)
	h := s.holds[ev.Path]
	s.c.mu.Unlock()
	if h == nil {
		return
	}
	switch ev.Type {
	case zk.EventNodeDeleted:
		h.lose(fmt.Errorf("%w: its node was deleted", driver.ErrNotHeld))
	case zk.EventNodeDataChanged:
		h.lose(fmt.Errorf("%w: its node was overwritten", driver.ErrNotHeld))
	}
}

// ended returns why the session has ended, or nil.
func (s *session) ended() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.cause
}

// leave says that one user less needs the session. The last one of a retired session ends it.
func (s *session) leave() {
	s.c.mu.Lock()
	s.users--
	last := s.retired && s.users == 0
	s.c.mu.Unlock()
	if last {
		s.end(errEnded)
	}
}

// retire keeps new users away from the session, so that it ends soon, and with it what can't be removed otherwise.
func (s *session) retire() {
	s.c.mu.Lock()
	last := s.c.retired(s)
	s.c.mu.Unlock()
	if last {
		s.end(errEnded)
	}
}

// retired needs the Conn's mutex. It reports whether the session is to be ended at once.
func (c *conn) retired(s *session) bool {
	s.retired = true
	if c.current == s {
		c.current = nil
	}
	return s.users == 0
}

// end closes the session. Its holds are lost, and its calls return.
func (s *session) end(cause error) {
	s.c.mu.Lock()
	if s.state == dead {
		s.c.mu.Unlock()
		return
	}
	s.state, s.cause, s.retired = dead, cause, true
	if s.c.current == s {
		s.c.current = nil
	}
	delete(s.c.sessions, s)
	holds := s.holds
	s.holds = nil
	clear(s.strays) // they went with the session
	s.cancel()
	s.broadcast()
	w := s.wire
	s.c.closing.Add(1)
	s.c.mu.Unlock()
	// This may be the library's own goroutine, which must not wait for itself.
	go func() {
		defer s.c.closing.Done()
		lost := fmt.Errorf("%w: %w", driver.ErrNotHeld, cause)
		for _, h := range holds {
			h.lose(lost)
		}
		s.zk.Close() // tells the server; takes up to three seconds if that is silent
		if w != nil {
			w.Close()
		}
	}()
}
