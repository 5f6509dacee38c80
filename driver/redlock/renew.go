package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// chunk is how many keys one script renews. The server does nothing else meanwhile, for some 2 µs a key.
const chunk = 100

// Renew extends the keys on all nodes that still have them, in chunks. A hold is renewed when a majority still had its
// key; then, and only then, the key is set again on nodes that have lost it, which doesn't count this time. Requests go on
// when ctx ends, so that the next renewal on a slow network finds connections that are made already.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	if len(holds) == 0 {
		return 0
	}
	r := &renewal{conn: c, holds: make([]*hold, len(holds)), tallies: make([]tally, len(holds)), open: len(holds), report: report, decided: make(chan struct{})}
	for i, h := range holds {
		// A hold that comes from elsewhere is a mistake of the program, which may as well panic.
		r.holds[i] = h.(*hold)
		r.tallies[i].lost = make([]bool, len(c.nodes))
	}
	chunks := (len(holds) + chunk - 1) / chunk
	r.sent = c.cfg.Now()
	var workers sync.WaitGroup
	for _, n := range c.nodes {
		var next sync.Mutex
		start := 0
		for range min(cap(n.turns[renewals]), chunks) {
			if !c.begin() {
				break
			}
			workers.Add(1)
			go func() {
				defer c.work.Done()
				defer workers.Done()
				for ctx.Err() == nil {
					next.Lock()
					from := start
					start += chunk
					next.Unlock()
					if from >= len(holds) {
						return
					}
					r.renew(n, from, min(from+chunk, len(holds)))
				}
			}()
		}
	}
	if c.begin() {
		go func() {
			defer c.work.Done()
			workers.Wait()
			r.finish(errors.New("no majority answered"))
			r.retake()
		}()
	}
	select {
	case <-r.decided:
	case <-ctx.Done():
		r.finish(ctx.Err())
	case <-c.closing.Done():
		r.finish(errClosed)
	}
	return 0
}

// renewal is one call of Renew.
type renewal struct {
	conn  *conn
	sent  driver.Instant // before the first request
	holds []*hold

	mu      sync.Mutex
	tallies []tally
	open    int // holds that are not reported
	report  func(int, driver.Renewal)
	decided chan struct{} // closed when all are reported
}

// tally counts what the nodes said about one hold.
type tally struct {
	ours, gone int
	lost       []bool // by node: it doesn't have the key
	errs       []error
	reported   bool
	renewed    bool
}

// renew renews one chunk on one node.
func (r *renewal) renew(n *node, from, to int) {
	results, err := call(r.conn, n, renewals, r.conn.limit, func(ctx context.Context, n *node, client *redis.Client) ([]any, error) {
		return r.renewAt(ctx, client, r.holds[from:to])
	})
	if isReply(err) && to-from > 1 {
		// One key that can't be renewed, such as one that an ACL rule forbids, makes the whole script fail.
		for i := from; i < to; i++ {
			r.renew(n, i, i+1)
		}
		return
	}
	for i := from; i < to; i++ {
		switch {
		case err != nil:
			r.take(n, i, false, n.explain("renew "+r.holds[i].key, err))
		case results[i-from] == int64(1):
			r.take(n, i, true, nil)
		case results[i-from] == int64(0):
			r.take(n, i, false, nil)
		default:
			r.take(n, i, false, fmt.Errorf("%s: the renewal script was answered with %v", n.name, results[i-from]))
		}
	}
}

// renewAt runs the renewal script on a node.
func (r *renewal) renewAt(ctx context.Context, client *redis.Client, holds []*hold) ([]any, error) {
	keys, args := make([]string, len(holds)), make([]any, 1+len(holds))
	args[0] = r.conn.ttl.Milliseconds()
	for i, h := range holds {
		keys[i], args[i+1] = h.key, h.id+" "
	}
	// The source goes along each time: it is short for so many keys, and a server that has forgotten the script would
	// cost a round trip that a lease on a slow network doesn't have.
	cmd := renewScript.command(ctx, true, keys, args...)
	if err := client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	fields, ok := cmd.Val().([]any)
	if !ok || len(fields) != len(holds) {
		return nil, errors.New("the renewal script was answered with something else than one number a key")
	}
	return fields, nil
}

// take counts what a node has said about a hold, and reports as soon as that decides.
func (r *renewal) take(n *node, i int, ours bool, err error) {
	c, nodes := r.conn, len(r.conn.nodes)
	r.mu.Lock()
	t := &r.tallies[i]
	switch {
	case err != nil:
		t.errs = append(t.errs, err)
	case ours:
		t.ours++
	default:
		t.gone++
		t.lost[n.index] = true
	}
	switch {
	case t.reported:
	case t.ours >= c.quorum:
		t.renewed = true
		h := r.holds[i]
		h.mu.Lock()
		if h.renewed.Before(r.sent) {
			h.renewed = r.sent
		}
		h.mu.Unlock()
		r.reportLocked(i, driver.Renewal{Sent: r.sent, TTL: c.ttl})
	case t.gone > nodes-c.quorum:
		r.reportLocked(i, driver.Renewal{Err: driver.ErrNotHeld})
	case t.ours+t.gone+len(t.errs) == nodes:
		r.reportLocked(i, driver.Renewal{Err: t.failure(r.holds[i], c)})
	}
	r.mu.Unlock()
}

// failure is the error of a hold about which no majority has decided.
func (t *tally) failure(h *hold, c *conn) error {
	permanent := 0
	for _, err := range t.errs {
		if driver.IsPermanent(err) {
			permanent++
		}
	}
	if permanent > len(c.nodes)-c.quorum {
		return errors.Join(t.errs...)
	}
	return undecided(fmt.Sprintf("renewal of %s: %d of %d nodes have the key", h.key, t.ours, len(c.nodes)), t.errs)
}

// reportLocked reports one hold. It needs the mutex.
func (r *renewal) reportLocked(i int, result driver.Renewal) {
	r.tallies[i].reported = true
	r.report(i, result)
	if r.open--; r.open == 0 {
		close(r.decided)
	}
}

// finish reports all holds about which nothing is decided.
func (r *renewal) finish(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.tallies {
		if t := &r.tallies[i]; !t.reported {
			failure := err
			if len(t.errs) > 0 {
				failure = fmt.Errorf("%w (%w)", err, undecided("renewal of "+r.holds[i].key, t.errs))
			}
			r.reportLocked(i, driver.Renewal{Err: failure})
		}
	}
}

// retake sets the keys of renewed holds on the nodes that have lost them.
func (r *renewal) retake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.conn.nodes {
		var lost []*hold
		for i := range r.tallies {
			if t := &r.tallies[i]; t.renewed && t.lost[n.index] {
				lost = append(lost, r.holds[i])
			}
		}
		if len(lost) == 0 || !r.conn.begin() {
			continue
		}
		go func() {
			defer r.conn.work.Done()
			for _, h := range lost {
				if err := h.retake(n); err != nil && !isReply(err) && !driver.IsAnswer(err) {
					return // it is away again
				}
			}
		}()
	}
}

// retake sets the key of a hold again on a node, if the lock is still held.
func (h *hold) retake(n *node) error {
	c := h.conn
	_, err := call(c, n, renewals, c.limit, func(ctx context.Context, n *node, client *redis.Client) (taken, error) {
		h.mu.Lock()
		token, end := h.token, h.renewed.Add(c.ttl-c.ttl/100-2*time.Millisecond)
		h.mu.Unlock()
		if !c.cfg.Now().Before(end) {
			return taken{}, driver.ErrNotHeld
		}
		return h.take(ctx, n, client, token)
	})
	return err
}
