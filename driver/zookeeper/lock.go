package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

const maxToken = math.MaxInt64

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

func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	s, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.leave()
	p, err := s.place(ctx, req)
	if err != nil {
		return nil, err
	}
	h, err := p.s.tryLock(ctx, p)
	return p.result(ctx, h, err)
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

// tryLock takes the name if nobody has it.
//
//  1. Only if the name was held last time, or an earlier request of this ID may have left a node, it looks first.
//  2. It creates its node. If that is the folder's only child, the name is granted.
//  3. Otherwise it lists the children. If its node is the first contender, the name is granted; if not, it deletes its
//     node.
func (s *session) tryLock(ctx context.Context, p *place) (*hold, error) {
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	f, _ := s.c.remembered(p.req.Name)
	if !f.contended && !p.tried() {
		made, err := s.create(ctx, p)
		if err != nil {
			return nil, err
		}
		if made.alone {
			return s.grant(p, made.offset)
		}
	}
	q, err := s.look(ctx, p)
	if err != nil {
		return nil, err
	}
	if q.own == nil && q.before == nil {
		made, err := s.create(ctx, p)
		if err != nil {
			return nil, err
		}
		if made.alone {
			s.c.remember(p.req.Name, func(f *folder) { f.contended = false })
			return s.grant(p, made.offset)
		}
		if q, err = s.look(ctx, p); err != nil {
			return nil, err
		}
		if q.own == nil {
			return nil, errVanished
		}
	}
	if q.before != nil {
		s.c.remember(p.req.Name, func(f *folder) { f.contended = true })
		if q.own != nil {
			if err := s.remove(ctx, p.path); err != nil {
				return nil, s.stuck(err)
			}
			p.path = ""
		}
		if p.doubt {
			s.stray(p, "")
			p.doubt = false
		}
		return nil, driver.ErrHeld
	}
	s.c.remember(p.req.Name, func(f *folder) { f.contended = false })
	return s.confirm(ctx, p)
}

var errVanished = errors.New("zookeeper: the request's node was removed while it was queued")

// stuck is called with the error of a deletion. A node that must not be deleted goes with its session.
func (s *session) stuck(err error) error {
	if errors.Is(err, driver.ErrDenied) {
		s.retire()
	}
	return err
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
			p.path, p.czxid = path, uint64(stat.Czxid)
		}
		q.own = n
	}
	if q.own == nil {
		p.path = ""
	}
	return q, nil
}

// confirm grants a name whose first contender was seen to be the request's node.
func (s *session) confirm(ctx context.Context, p *place) (*hold, error) {
	if p.czxid == 0 {
		stat, err := s.stat(ctx, p.path)
		if errors.Is(err, zk.ErrNoNode) || err == nil && stat.EphemeralOwner != s.id {
			return nil, errVanished
		}
		if err != nil {
			return nil, err
		}
		p.czxid = uint64(stat.Czxid)
	}
	// Read later than the last holder has gone, and so than it may have raised it.
	off, err := s.readOffset(ctx)
	if err != nil {
		return nil, err
	}
	if s.short() {
		// One write more, which proves both the session and the node.
		if _, err := s.transact(ctx, []any{&zk.CheckVersionRequest{Path: p.path, Version: 0}}); gone(err) {
			return nil, errVanished
		} else if err != nil {
			return nil, answer(err, "read (right READ)", p.path)
		}
	}
	return s.grant(p, off.value)
}

// short reports whether less than half of the timeout is left, as far as is proved.
func (s *session) short() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.c.cfg.Now().Sub(s.contact.base) > s.timeout/2
}

// grant makes a hold out of the request's node.
func (s *session) grant(p *place, offset uint64) (*hold, error) {
	t, err := token(offset, p.czxid)
	if err != nil {
		return nil, err
	}
	h := &hold{s: s, req: p.req, path: p.path, czxid: p.czxid}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.state == dead {
		return nil, s.cause
	}
	h.grant = driver.Grant{Token: t, Renewal: driver.Renewal{Sent: s.contact.base, TTL: s.timeout}}
	s.holds[h.path] = h
	s.users++
	if p.doubt {
		s.addStray(p, h.path)
	}
	return h, nil
}

// Undo deletes all nodes that carry the request's ID.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	c.mu.Lock()
	p := c.places[req.ID]
	if p != nil && p.s.state == dead {
		// Its nodes went with the session, or go when the session ends on the servers.
		delete(c.places, req.ID)
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	s, err := c.user(ctx, p)
	if err != nil {
		if p != nil && p.s.ended() != nil {
			return nil
		}
		return err
	}
	defer s.leave()
	if p, err = s.place(ctx, req); err != nil {
		return err
	}
	err = s.undo(ctx, p)
	p.end(err == nil)
	return err
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

func (s *session) undo(ctx context.Context, p *place) error {
	if err := p.settle(ctx); err != nil {
		return err
	}
	if p.path != "" && !p.doubt {
		return s.stuck(s.remove(ctx, p.path))
	}
	if err := s.removeAll(ctx, p.folder, p.req.ID, ""); err != nil {
		return s.stuck(err)
	}
	if p.doubt {
		s.stray(p, "")
	}
	return nil
}

// removeAll deletes all nodes of an ID but one.
func (s *session) removeAll(ctx context.Context, folder, id, but string) error {
	nodes, err := s.children(ctx, folder)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if path := folder + "/" + n.name; n.id() == id && path != but {
			if err := s.remove(ctx, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold is a node that was granted.
type hold struct {
	s     *session
	req   driver.Request
	path  string
	czxid uint64
	grant driver.Grant

	mu        sync.Mutex
	gone      error // what it was lost for, matching driver.ErrNotHeld
	releasing bool  // its node's deletion is no loss
	doubt     bool  // the answer to a deletion was lost
	freed     bool  // it is no user of the session any more
}

func (h *hold) Grant() driver.Grant { return h.grant }

// lose notes that the node is gone, and tells the engine.
func (h *hold) lose(err error) {
	h.mu.Lock()
	first := h.gone == nil && !h.releasing
	if first {
		h.gone = err
	}
	h.mu.Unlock()
	if first && h.req.Lost != nil {
		h.req.Lost(err)
	}
}

// lost returns why the hold is known to be lost, or nil.
func (h *hold) lost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

func (h *hold) Release(ctx context.Context) error {
	s := h.s
	h.mu.Lock()
	h.releasing = true
	lost := h.gone
	h.mu.Unlock()
	if lost != nil { // what stands there now, if anything, is somebody else's
		h.free()
		return lost
	}
	if err := s.ready(ctx); err != nil {
		if errors.Is(err, errEnded) {
			return fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
		}
		return err
	}
	_, err := request(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(h.path, 0) })
	h.mu.Lock()
	doubt := h.doubt
	h.doubt = doubt || err != nil && !gone(err)
	h.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, zk.ErrNoNode) && doubt: // by the deletion whose answer was lost
	case gone(err):
		h.free()
		return fmt.Errorf("%w: zookeeper: %w", driver.ErrNotHeld, err)
	case errors.Is(err, errEnded):
		return fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
	default:
		return s.stuck(answer(err, "delete nodes (right DELETE)", parent(h.path)))
	}
	h.free()
	return nil
}

// free takes the hold off the session.
func (h *hold) free() {
	h.mu.Lock()
	first := !h.freed
	h.freed = true
	h.mu.Unlock()
	if !first {
		return
	}
	s := h.s
	s.c.mu.Lock()
	if s.holds[h.path] == h {
		delete(s.holds, h.path)
	}
	s.c.mu.Unlock()
	s.leave()
}
