package zookeeper

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/leasekit/locker/driver"
)

// lookAgain is how long a queued request trusts its watches.
const lookAgain = 10 * time.Second

// Lock waits in the queue of ephemeral sequential nodes: it has a node of its own, and watches that and the contender
// before it.
func (c *conn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	p, err := c.take(ctx, req)
	if err != nil {
		return nil, err
	}
	defer p.s.leave()
	h, err := p.s.queue(ctx, p)
	return p.result(ctx, h, err)
}

func (s *session) queue(ctx context.Context, p *place) (*hold, error) {
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	if p.alone {
		return s.grant(p, p.offset)
	}
	if p.tried() {
		if _, err := s.look(ctx, p); err != nil {
			return nil, err
		}
	}
	if p.path == "" {
		if err := s.create(ctx, p); err != nil {
			return nil, err
		}
		if p.alone {
			return s.grant(p, p.offset)
		}
	}
	woken := make(chan struct{}, 1)
	s.subscribe(p.path, woken)
	defer s.unsubscribe(p.path, woken)
	own, err := s.watch(ctx, p.path)
	switch {
	case err != nil:
		return nil, err
	case own == nil || own.EphemeralOwner != s.id:
		return nil, errVanished
	}
	p.czxid = uint64(own.Czxid)
	path := p.path
	for {
		q, err := s.look(ctx, p)
		switch {
		case err != nil:
			return nil, err
		case q.own == nil || p.path != path:
			return nil, errVanished
		case q.before == nil:
			return s.confirm(ctx, p)
		}
		if err := s.awaitChange(ctx, p, p.folder+"/"+q.before.name, woken); err != nil {
			return nil, err
		}
	}
}

// awaitChange waits until something has happened to the request's node, the one before it, or the connection.
func (s *session) awaitChange(ctx context.Context, p *place, before string, woken chan struct{}) error {
	s.subscribe(before, woken)
	defer s.unsubscribe(before, woken)
	stat, err := s.watch(ctx, before)
	if err != nil || stat == nil {
		return err
	}
	if own, err := s.watch(ctx, p.path); err != nil || own == nil { // set anew after a reconnection
		return err
	}
	t := time.NewTimer(lookAgain/2 + rand.N(lookAgain/2))
	defer t.Stop()
	select {
	case <-woken:
		return nil
	case <-t.C:
		return nil
	case <-s.ctx.Done():
		return s.ended()
	case <-ctx.Done():
		return ctx.Err()
	}
}
