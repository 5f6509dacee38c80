package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

var (
	_ driver.Conn     = (*conn)(nil)
	_ driver.Queuer   = (*conn)(nil)
	_ driver.Advancer = (*conn)(nil)
)

// conn keeps one session for all holds. There are more for a while only when one was retired that still has holds.
type conn struct {
	o       *Options
	servers []string
	prefix  string // "" for the root
	tls     *tls.Config
	cfg     driver.Config

	closing sync.WaitGroup // handles that are being closed

	mu       sync.Mutex
	closed   bool
	current  *session // for new users; nil if one has to be made
	sessions map[*session]bool
	places   map[string]*place  // by ID: what requests without a final answer may have left
	folders  map[string]*folder // what is known of names
	offset   offset             // the newest copy
	advanced uint64             // the largest offset seen
	plainOld bool               // the server knows no container nodes
	served   bool               // there has been a session, so the scheme is right
}

func (c *connector) connect(cfg driver.Config) (*conn, error) {
	conn := &conn{
		o: &c.o, servers: c.servers, prefix: c.prefix, cfg: cfg,
		sessions: make(map[*session]bool), places: make(map[string]*place), folders: make(map[string]*folder),
	}
	if c.o.TLS != nil {
		conn.tls = c.o.TLS
	} else if c.files != nil {
		var err error
		if conn.tls, err = c.files.Config(); err != nil {
			return nil, err
		}
	}
	return conn, nil
}

// enter returns the session, connected, with the caller as one of its users. It makes a new one if there is none, or if so
// little is left of the present one's timeout that a new lease would be short: nothing but a new session makes the servers
// take note of it at once.
func (c *conn) enter(ctx context.Context) (*session, error) {
	for {
		s, stale, err := c.session()
		if stale != nil {
			stale.end(errEnded)
		}
		if err != nil {
			return nil, err
		}
		if err = s.ready(ctx); err == nil {
			return s, nil
		}
		s.leave()
		if !errors.Is(err, errEnded) || ctx.Err() != nil {
			return nil, err
		}
	}
}

func (c *conn) session() (s, stale *session, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, errClosed
	}
	if s := c.current; s != nil && s.state == up {
		now := c.cfg.Now()
		age := now.Sub(s.contact.proved(now, s.timeout))
		if s.users == 0 && age > s.timeout/2 || age > 3*s.timeout/4 {
			if c.retired(s) {
				stale = s
			}
		}
	}
	if c.current == nil {
		if c.current, err = c.open(); err != nil {
			return nil, stale, err
		}
	}
	c.current.users++
	return c.current, stale, nil
}

// live returns the sessions that have not ended.
func (c *conn) live() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*session, 0, len(c.sessions))
	for s := range c.sessions {
		all = append(all, s)
	}
	return all
}

// closeBound leaves a server time to confirm that a session is over.
const closeBound = 400 * time.Millisecond

func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	sessions := c.live()
	for _, s := range sessions {
		s.end(errClosed)
	}
	done := make(chan struct{})
	go func() {
		c.closing.Wait()
		close(done)
	}()
	t := time.NewTimer(closeBound)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		// The server is silent or away. Its side of the session ends with the timeout; the library's goroutines end when
		// their connections break.
		for _, s := range sessions {
			s.c.mu.Lock()
			w := s.wire
			s.c.mu.Unlock()
			if w != nil {
				w.Close()
			}
		}
	}
	return nil
}
