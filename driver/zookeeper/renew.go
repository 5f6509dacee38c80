package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// Renew writes one transaction per session that checks the holds' nodes and changes nothing. That it was answered proves
// the nodes, and that a leader with a majority behind it heard of this client; contact says what follows for the session.
// Neither the library's pings nor a Sync would do: a follower that is cut off answers the first, and a leader that has been
// deposed, and doesn't know it yet, the second.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	batches := make(map[*session][]renewal)
	for _, s := range c.live() {
		batches[s] = nil
	}
	for i, hd := range holds {
		h, ok := hd.(*hold)
		if !ok {
			report(i, driver.Renewal{Err: fmt.Errorf("%w: zookeeper: a hold of another driver: %T", driver.ErrNotHeld, hd)})
			continue
		}
		batches[h.s] = append(batches[h.s], renewal{i, h})
	}
	var wg sync.WaitGroup
	for s, batch := range batches {
		wg.Go(func() { s.renew(ctx, batch, report) })
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		unresolved += len(s.strays)
	}
	return unresolved
}

// renewal is a hold and its index in the call of Renew.
type renewal struct {
	i int
	h *hold
}

// The bounds of one transaction: servers refuse more than a megabyte, and this library's buffer holds a quarter of that.
const (
	maxChecks     = 1000
	maxCheckBytes = 128 << 10
)

func (s *session) renew(ctx context.Context, batch []renewal, report func(int, driver.Renewal)) {
	rest := batch[:0]
	for _, r := range batch {
		if err := r.h.lost(); err != nil {
			report(r.i, driver.Renewal{Err: err})
		} else {
			rest = append(rest, r)
		}
	}
	if err := s.ready(ctx); err != nil {
		if errors.Is(err, errEnded) {
			err = fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
		}
		for _, r := range rest {
			report(r.i, driver.Renewal{Err: err})
		}
		return
	}
	if len(rest) == 0 {
		s.transact(ctx, heartbeat())
	}
	var wg sync.WaitGroup
	for len(rest) > 0 {
		n, bytes := 0, 0
		for n < len(rest) && n < maxChecks && bytes < maxCheckBytes {
			bytes += len(rest[n].h.path) + 24
			n++
		}
		chunk := rest[:n]
		rest = rest[n:]
		wg.Go(func() { s.prove(ctx, chunk, report) })
	}
	wg.Wait()
	s.sweep(ctx)
	s.watchHolds(ctx, batch)
}

// heartbeat is a transaction for its own sake. Any answer will do, that the root must not be read too.
func heartbeat() []any { return []any{&zk.CheckVersionRequest{Path: "/", Version: -1}} }

// prove checks the nodes of a chunk. The servers stop at the first that is gone; those after it are asked for again.
func (s *session) prove(ctx context.Context, chunk []renewal, report func(int, driver.Renewal)) {
	for len(chunk) > 0 {
		ops := make([]any, len(chunk))
		for i, r := range chunk {
			ops[i] = &zk.CheckVersionRequest{Path: r.h.path, Version: 0}
		}
		failed, err := s.transact(ctx, ops)
		if err != nil && failed < 0 {
			if errors.Is(err, errEnded) {
				err = fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
			}
			for _, r := range chunk {
				report(r.i, driver.Renewal{Err: answer(err, "read (right READ)", r.h.path)})
			}
			return
		}
		proved := chunk
		if err != nil {
			proved = chunk[:failed]
		}
		s.c.mu.Lock()
		done := driver.Renewal{Sent: s.contact.base, TTL: s.timeout}
		s.c.mu.Unlock()
		for _, r := range proved {
			report(r.i, done)
		}
		if err == nil {
			return
		}
		r := chunk[failed]
		if gone(err) {
			err = fmt.Errorf("%w: zookeeper: %w", driver.ErrNotHeld, err)
		}
		report(r.i, driver.Renewal{Err: answer(err, "read (right READ)", r.h.path)})
		chunk = chunk[failed+1:]
	}
}

// watchHolds sets a watch on each node that has none, so that the holder is told at once when somebody deletes it. That is
// done here and not with the grant, where it would cost a request per cycle.
func (s *session) watchHolds(ctx context.Context, batch []renewal) {
	const atOnce = 16
	work := make(chan *hold)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(work)
	for n, r := range batch {
		s.c.mu.Lock()
		need := s.holds[r.h.path] == r.h && !s.watched[r.h.path]
		s.c.mu.Unlock()
		if !need || ctx.Err() != nil {
			continue
		}
		if n < atOnce {
			wg.Go(func() {
				for h := range work {
					s.watchHold(ctx, h)
				}
			})
		}
		work <- r.h
	}
}

func (s *session) watchHold(ctx context.Context, h *hold) {
	stat, err := s.watch(ctx, h.path)
	switch {
	case err != nil: // the next renewal tries again
	case stat == nil:
		h.lose(fmt.Errorf("%w: its node is gone", driver.ErrNotHeld))
	case stat.EphemeralOwner != s.id || uint64(stat.Czxid) != h.czxid:
		h.lose(fmt.Errorf("%w: its node was replaced", driver.ErrNotHeld))
	}
}

// stray is an ID whose node may still appear: the answer to its creation was lost with the connection, and a server may
// have the request in hand yet.
type stray struct {
	folder string
	keep   string         // the node of the hold that was granted meanwhile
	until  driver.Instant // by when such a request has been carried out or dropped
}

func (s *session) stray(p *place, keep string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.addStray(p, keep)
}

// addStray needs the Conn's mutex.
func (s *session) addStray(p *place, keep string) {
	if s.state != dead {
		s.strays[p.req.ID] = &stray{p.folder, keep, s.c.cfg.Now().Add(s.timeout)}
	}
}

// sweep deletes what strays have left.
func (s *session) sweep(ctx context.Context) {
	s.c.mu.Lock()
	strays := make(map[string]*stray, len(s.strays))
	for id, st := range s.strays {
		strays[id] = st
	}
	s.c.mu.Unlock()
	for id, st := range strays {
		looked := s.c.cfg.Now()
		if err := s.removeAll(ctx, st.folder, id, st.keep); err != nil {
			s.stuck(err)
			continue
		}
		if !looked.Before(st.until) {
			s.c.mu.Lock()
			if s.strays[id] == st {
				delete(s.strays, id)
			}
			s.c.mu.Unlock()
		}
	}
}
