package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// place is a request that has sent something and has no final answer yet: what Undo has to remove.
type place struct {
	turn   chan struct{} // holds one token: who has it works on the place
	req    driver.Request
	s      *session
	folder string

	sent  *call[multi] // a creation whose answer nobody has seen yet
	doubt bool         // the answer to a creation was lost: there may be a node, and it may still come
	path  string       // the node that is known to have been made
	czxid uint64       // of path; 0: not known
	alone bool         // path was the folder's only child when it was made: the name is granted

	offset uint64 // of tokens, as checked when path was made
}

// forget notes that there is no node.
func (p *place) forget() { p.path, p.czxid, p.alone = "", 0, false }

// take returns the request's place, with the caller as a user of its session: that of an earlier request of this ID if
// there was one, since what that has left is there.
func (c *conn) take(ctx context.Context, req driver.Request) (*place, error) {
	c.mu.Lock()
	p := c.places[req.ID]
	if p != nil && p.s.state == dead {
		p = nil
	}
	c.mu.Unlock()
	s, err := c.user(ctx, p)
	if err != nil {
		return nil, err
	}
	if p, err = s.place(ctx, req); err != nil {
		s.leave()
	}
	return p, err
}

// user makes the caller a user of the session that a place belongs to, or of the current one.
func (c *conn) user(ctx context.Context, p *place) (*session, error) {
	if p == nil {
		return c.enter(ctx)
	}
	c.mu.Lock()
	p.s.users++
	c.mu.Unlock()
	if err := p.s.ready(ctx); err != nil {
		p.s.leave()
		return nil, err
	}
	return p.s, nil
}

// place returns the place of a request on the session, made anew if the one before belongs to a session that is gone. The
// caller has it for itself until it calls done.
func (s *session) place(ctx context.Context, req driver.Request) (*place, error) {
	c := s.c
	c.mu.Lock()
	p := c.places[req.ID]
	if p == nil || p.s.state == dead {
		p = &place{turn: make(chan struct{}, 1), req: req, s: s, folder: c.folderPath(req.Name)}
		p.turn <- struct{}{}
		c.places[req.ID] = p
	}
	c.mu.Unlock()
	return p, p.begin(ctx)
}

func (p *place) begin(ctx context.Context) error {
	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end gives the place to the next. A final result is an answer that leaves nothing to undo.
func (p *place) end(final bool) {
	if final {
		p.s.c.mu.Lock()
		if p.s.c.places[p.req.ID] == p {
			delete(p.s.c.places, p.req.ID)
		}
		p.s.c.mu.Unlock()
	}
	p.turn <- struct{}{}
}

// tried reports whether something of the request may be there.
func (p *place) tried() bool { return p.sent != nil || p.doubt || p.path != "" }

// settle waits for a creation that is still under way.
func (p *place) settle(ctx context.Context) error {
	if p.sent == nil {
		return nil
	}
	r, err := p.sent.wait(ctx, p.s)
	select {
	case <-p.sent.done:
		p.settled(r, err)
		return nil
	default:
		return err
	}
}

// result ends a call that has worked on the place. An answer leaves nothing behind.
func (p *place) result(ctx context.Context, h *hold, err error) (driver.Hold, error) {
	if err == nil {
		p.end(true)
		return h, nil
	}
	if driver.IsAnswer(err) && p.tried() && p.s.undo(ctx, p) != nil {
		p.s.retire()
	}
	p.end(driver.IsAnswer(err))
	return nil, err
}

// queue is a request's view of the contenders.
type queue struct {
	own    *node // the request's node
	before *node // the contender just before it, or the last one if it has none
	length int
}

// look lists the contenders and finds the request's node among them. Should there be several, because an answer was lost,
// the first counts, and the others are deleted.
func (s *session) look(ctx context.Context, p *place) (queue, error) {
	nodes, err := s.children(ctx, p.folder)
	if err != nil {
		return queue{}, err
	}
	q := queue{length: len(nodes)}
	for i := range nodes {
		n := &nodes[i]
		if n.id() != p.req.ID {
			if q.own == nil {
				q.before = n
			}
			continue
		}
		path := p.folder + "/" + n.name
		if q.own != nil {
			if err := s.remove(ctx, path); err != nil {
				return queue{}, s.stuck(err)
			}
			continue
		}
		if path != p.path {
			// Found by its name only: one of a session before this one isn't ours and goes by itself.
			stat, err := s.stat(ctx, path)
			if errors.Is(err, zk.ErrNoNode) {
				continue
			}
			if err != nil {
				return queue{}, err
			}
			if stat.EphemeralOwner != s.id {
				q.before = n
				continue
			}
			p.path, p.czxid, p.alone = path, uint64(stat.Czxid), false
		}
		q.own = n
	}
	if q.own == nil {
		p.forget()
	}
	return q, nil
}
