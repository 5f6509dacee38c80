package zookeeper

import (
	"context"
	"errors"
	"math"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

const maxToken = math.MaxInt64

func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	p, err := c.take(ctx, req)
	if err != nil {
		return nil, err
	}
	defer p.s.leave()
	h, err := p.s.tryLock(ctx, p)
	return p.result(ctx, h, err)
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
	if f, _ := s.c.remembered(p.req.Name); !f.contended && !p.tried() {
		if err := s.create(ctx, p); err != nil {
			return nil, err
		}
	}
	if p.alone {
		return s.grant(p, p.offset)
	}
	q, err := s.look(ctx, p)
	if err != nil {
		return nil, err
	}
	if q.own == nil && q.before == nil {
		if err := s.create(ctx, p); err != nil {
			return nil, err
		}
		if p.alone {
			s.c.remember(p.req.Name, func(f *folder) { f.contended = false })
			return s.grant(p, p.offset)
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
			p.forget()
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
