package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

const sessionRight = "session:write on the agent's node"

// session is a session at the server. What can change is guarded by the Conn's mutex.
type session struct {
	id      string
	sent    driver.Instant    // of the request that last set its TTL
	users   int               // holds, and acquisitions under way
	live    map[string]*hold  // by the ID of their entry
	strays  map[string]string // names by the ID of a request that may still be applied
	retired bool              // takes no new locks, as there are strays or its TTL has passed
	ending  bool              // is being destroyed, or is gone
}

// joining is a session that is being made or renewed for those who wait for it.
type joining struct {
	done chan struct{}
	err  error
}

// join returns the session to take a lock under: prev, if that still lives, or else the current one, renewed if less
// than half of its TTL is left, or a new one. The caller leaves it again.
//
// A session whose TTL has passed is never renewed again, although the server keeps it for another TTL: the server may be
// about to end it, and a lock that it grants meanwhile would end with it.
func (c *conn) join(ctx context.Context, prev *session) (*session, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed
		}
		s := c.current
		if prev != nil && !prev.ending {
			s = prev
		}
		if s != nil {
			age := c.cfg.Now().Sub(s.sent)
			if age < c.cfg.TTL/2 {
				s.users++
				c.mu.Unlock()
				return s, nil
			}
			if age >= c.cfg.TTL {
				c.retire(s)
				prev, s = nil, nil
				if c.current != nil {
					c.mu.Unlock()
					continue
				}
			}
		}
		j := c.joining[s]
		if j == nil {
			j = &joining{done: make(chan struct{})}
			c.joining[s] = j
			c.work.Add(1)
			go c.refresh(s, j)
		}
		c.mu.Unlock()
		select {
		case <-j.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("consul: waiting for a session: %w", ctx.Err())
		}
		if j.err != nil && !errors.Is(j.err, errGone) {
			return nil, j.err
		}
	}
}

// refresh renews s, or makes a new current session if s is nil. It outlives the call that needed it.
func (c *conn) refresh(s *session, j *joining) {
	defer c.work.Done()
	ctx, stop := context.WithTimeoutCause(c.ctx, c.silence(), errSilent)
	defer stop()
	if s != nil {
		j.err = c.renew(ctx, c.grants, s)
	} else {
		j.err = c.create(ctx)
	}
	c.mu.Lock()
	delete(c.joining, s)
	c.mu.Unlock()
	close(j.done)
}

// ours reports whether a session is one of this Conn's.
func (c *conn) ours(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		if s.id == id {
			return true
		}
	}
	return false
}

// leave ends a use of a session.
func (c *conn) leave(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.users--
}

// retire makes s take no new locks. It ends with its last hold. The Conn's mutex is held.
func (c *conn) retire(s *session) {
	s.retired = true
	if c.current == s {
		c.current = nil
	}
}

// errSessionGone is how its holds are lost.
var errSessionGone = fmt.Errorf("%w: consul: the session is gone", driver.ErrNotHeld)

// forget notes that s is gone at the server, and tells its holds.
func (c *conn) forget(s *session) {
	c.mu.Lock()
	s.ending = true
	c.retire(s)
	delete(c.sessions, s)
	live := slices.Collect(maps.Values(s.live))
	c.mu.Unlock()
	for _, h := range live {
		if h.lost != nil {
			h.lost(errSessionGone)
		}
	}
}

// create makes the current session.
func (c *conn) create(ctx context.Context) error {
	s := &session{live: make(map[string]*hold), strays: make(map[string]string)}
	var out struct{ ID string }
	s.sent = c.cfg.Now()
	// The client library's own call leaves out a lock-delay of zero, which the server takes for its default.
	err := c.put(ctx, c.grants, "/v1/session/create", map[string]any{
		"Name":       "locker " + c.cfg.Owner,
		"TTL":        c.cfg.TTL.String(),
		"LockDelay":  c.lockDelay.String(),
		"Behavior":   api.SessionBehaviorDelete,
		"NodeChecks": []string{}, // without it the session ends when the agent's node looks dead to others
	}, &out)
	if err != nil {
		return c.explain(err, sessionRight)
	}
	s.id = out.ID
	if err := c.checkOffset(ctx); err != nil {
		return errors.Join(err, c.destroy(ctx, s))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	c.current = s
	c.sessions[s] = struct{}{}
	return nil
}

// renew sets a session's TTL anew. It returns errGone, and forgets the session, if there is none at the server.
func (c *conn) renew(ctx context.Context, l lane, s *session) error {
	sent := c.cfg.Now()
	var entries []*api.SessionEntry
	err := c.put(ctx, l, "/v1/session/renew/"+s.id, nil, &entries)
	if status(err) == http.StatusNotFound || err == nil && len(entries) == 0 {
		c.forget(s)
		return errGone
	}
	if err != nil {
		return c.explain(err, sessionRight)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.sent.Before(sent) {
		s.sent = sent
	}
	return nil
}

// destroy ends a session at the server, and what is locked under it.
func (c *conn) destroy(ctx context.Context, s *session) error {
	return c.explain(c.put(ctx, c.upkeep, "/v1/session/destroy/"+s.id, nil, nil), sessionRight)
}
