package redlock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// hold is an attempt to take a lock and, once a majority has granted it, the lock. A request that creates its key on a
// node may be answered late or never. When the hold has ended by then, the key is removed after each such request, and
// before as well: nobody knows whether the request was carried out.
type hold struct {
	conn    *conn
	key     string
	id      string
	value   string // that this attempt sets
	attempt string // its number
	sent    driver.Instant

	mu      sync.Mutex
	token   uint64         // 0 until it is granted
	renewed driver.Instant // when the newest renewal that was confirmed was sent
	ended   bool           // it was given up or released
	bound   string         // the number up to which attempts are removed then, "" for all
	at      []standing     // by node
}

// standing is what is known of a hold at one node.
type standing struct {
	pending  int  // requests under way that may create the key
	possible bool // the key may be there
	removed  bool // a release has removed it
	doubt    bool // a release failed, and was carried out all the same or is tried again in the background
}

func (c *conn) newHold(req driver.Request) *hold {
	value, attempt := c.value(req)
	return &hold{
		conn: c, key: c.layout.key(req.Name), id: req.ID, value: value, attempt: strconv.FormatInt(attempt, 10),
		at: make([]standing, len(c.nodes)),
	}
}

// Grant implements driver.Hold.
func (h *hold) Grant() driver.Grant {
	return driver.Grant{Token: h.token, Renewal: driver.Renewal{Sent: h.sent, TTL: h.conn.ttl}}
}

// keep makes the hold a lock.
func (h *hold) keep(token uint64) {
	h.mu.Lock()
	h.token, h.renewed = token, h.sent
	h.mu.Unlock()
}

// begin notes that a request is about to be sent which may create the key. It reports false if it is too late for that.
func (h *hold) begin(n *node) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.at[n.index].pending++
	h.at[n.index].possible = true
	return true
}

// end notes how such a request ended. token is what the node minted, 0 if it didn't set the key.
func (h *hold) end(n *node, token uint64, err error) {
	h.mu.Lock()
	s := &h.at[n.index]
	s.pending--
	s.possible = s.pending > 0 || token != 0 || err != nil && wasSent(err)
	remove, bound := h.ended && s.possible, h.bound
	behind := !h.ended && h.token != 0 && token != 0 && token < h.token
	floor := h.token
	h.mu.Unlock()
	switch {
	case remove:
		h.removeLater(n, bound)
	case behind: // the next grant needs no second round if all counters agree
		h.raise(n, floor, make(chan reply[bool], 1))
	}
}

// giveUp undoes a failed attempt, in the background: on each node where the key may be, also if the request is under
// way. It hints at nothing, or waiters that hinder each other would wake each other all the time.
func (h *hold) giveUp() {
	h.mu.Lock()
	h.ended, h.bound = true, h.attempt
	var nodes []*node
	for i, s := range h.at {
		if s.possible {
			nodes = append(nodes, h.conn.nodes[i])
		}
	}
	h.mu.Unlock()
	for _, n := range nodes {
		h.removeLater(n, h.attempt)
	}
}

// removeLater removes the key from a node in the background, and tries for as long as it can be there, in ever longer
// intervals. If many such removals are under way already, it isn't repeated: the key expires.
func (h *hold) removeLater(n *node, bound string) {
	c := h.conn
	if !c.begin() {
		return
	}
	go func() {
		defer c.work.Done()
		began := c.cfg.Now()
		for pause := 100 * time.Millisecond; ; pause *= 2 {
			_, err := call(c, n, releases, c.limit, func(ctx context.Context, n *node, client *redis.Client) (bool, error) {
				return c.remove(ctx, n, client, h.key, h.id, bound, "")
			})
			if err == nil || driver.IsAnswer(err) || c.cfg.Now().Sub(began)+pause > c.ttl {
				return
			}
			if c.undoing.Add(1) > maxUndoing {
				c.undoing.Add(-1)
				return
			}
			select {
			case <-time.After(pause):
			case <-c.closing.Done():
			}
			c.undoing.Add(-1)
		}
	}()
}

// maxUndoing is how many removals that failed wait for another try.
const maxUndoing = 64

// remove runs the release script on a node.
func (c *conn) remove(ctx context.Context, n *node, client *redis.Client, key, id, bound, channel string) (removed bool, err error) {
	v, err := releaseScript.run(ctx, client, []string{key}, id+" ", bound, channel)
	return v == int64(1), n.explain("release "+key, err)
}

// Undo removes the key from all nodes if it carries the ID. A request of that ID which is still under way is followed by
// a removal of its own; one that a node carries out after its connection has gone sets a key that expires after its TTL.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	key := c.layout.key(req.Name)
	replies := ask(c, releases, c.limit, c.nodes, func(ctx context.Context, n *node, client *redis.Client) (bool, error) {
		return c.remove(ctx, n, client, key, req.ID, "", "")
	})
	var errs []error
	for range c.nodes {
		select {
		case r := <-replies:
			if r.err != nil && wasSent(r.err) {
				errs = append(errs, r.err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if len(errs) > 0 {
		return undecided("undo", errs)
	}
	return nil
}

// Release removes the key from all nodes where it is still the hold's, and hints at it. It returns once a majority has
// decided; the rest is done in the background.
//
// A node that finds nothing to remove after an earlier release whose answer is missing counts as one where that release
// has removed it: the engine sends no renewal after a release, and calls a lease lost whose deadline has passed.
func (h *hold) Release(ctx context.Context) error {
	c := h.conn
	h.mu.Lock()
	h.ended, h.bound = true, ""
	h.mu.Unlock()
	channel := c.layout.channel(h.key)
	replies := ask(c, releases, c.limit, c.nodes, func(ctx context.Context, n *node, client *redis.Client) (bool, error) {
		removed, err := c.remove(ctx, n, client, h.key, h.id, "", channel)
		h.mu.Lock()
		defer h.mu.Unlock()
		s := &h.at[n.index]
		if err != nil {
			s.doubt = true
			if !driver.IsAnswer(err) {
				h.removeLater(n, "")
			}
			return false, err
		}
		s.removed = s.removed || removed || s.doubt
		return s.removed, nil
	})
	removed, gone := 0, 0
	var answers, errs []error
	err := count(ctx, c, replies, func(r reply[bool]) bool {
		switch {
		case r.err != nil && driver.IsAnswer(r.err):
			answers = append(answers, r.err)
		case r.err != nil:
			errs = append(errs, r.err)
		case r.value:
			removed++
		default:
			gone++
		}
		return removed >= c.quorum || gone > len(c.nodes)-c.quorum
	})
	switch {
	case removed >= c.quorum:
		return nil
	case gone > len(c.nodes)-c.quorum:
		return driver.ErrNotHeld
	case err != nil:
		return err
	case len(answers) > len(c.nodes)-c.quorum:
		return errors.Join(answers...)
	}
	return undecided("release of "+h.key, append(errs, answers...))
}
