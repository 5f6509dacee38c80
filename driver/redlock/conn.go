package redlock

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasekit/locker/driver"
)

var (
	_ driver.Conn      = (*conn)(nil)
	_ driver.Waiter    = (*conn)(nil)
	_ driver.Advancer  = (*conn)(nil)
	_ driver.Inspector = (*conn)(nil)
	_ driver.Checker   = (*conn)(nil)
)

// conn is a connection to all nodes.
type conn struct {
	layout    layout
	retention int64 // of a counter of tokens, in ms
	ttl       time.Duration
	limit     time.Duration // of a call to one node
	cfg       driver.Config
	nodes     []*node
	quorum    int // a majority of the nodes that are configured, whether they answer or not
	stamp     atomic.Int64
	undoing   atomic.Int64 // removals that are tried again later
	hints     []*subscriber

	mu      sync.Mutex // held while work grows
	work    sync.WaitGroup
	closing context.Context // ends with Close
	close   context.CancelFunc
}

// probeTime bounds the probe of Connect. Servers that are away cost it, and nothing more.
const probeTime = 2 * time.Second

// Connect returns a Conn. It asks the servers that answer whether they are fit and whether all commands are allowed.
func (c *connector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	if c.err != nil {
		return nil, c.err
	}
	ttl := (cfg.TTL + time.Millisecond - 1).Truncate(time.Millisecond)
	if ttl < time.Millisecond {
		return nil, fmt.Errorf("%w: a TTL of %v", driver.ErrConfig, cfg.TTL)
	}
	cn := &conn{
		layout:    c.layout,
		retention: max(c.retention.Milliseconds(), 1),
		ttl:       ttl,
		limit:     min(max(ttl/2, time.Second/2), 5*time.Second),
		cfg:       cfg,
		quorum:    len(c.targets)/2 + 1,
	}
	cn.closing, cn.close = context.WithCancel(context.Background())
	for i, t := range c.targets {
		n, err := newNode(i, t, cn.limit, max(ttl, 2*time.Second))
		if err != nil {
			cn.Close()
			return nil, err
		}
		cn.nodes = append(cn.nodes, n)
		cn.hints = append(cn.hints, &subscriber{conn: cn, node: n, topics: make(map[string]*topic), wake: make(chan struct{}, 1)})
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	if err := cn.verifyAll(ctx); driver.IsPermanent(err) {
		cn.Close()
		return nil, err
	}
	return cn, nil
}

// value returns the value of a key for one attempt: the ID, a number that rises from attempt to attempt, and the owner.
// The number is the time, for people; only its order matters.
func (c *conn) value(req driver.Request) (value string, attempt int64) {
	for {
		last := c.stamp.Load()
		attempt = max(time.Now().UnixMilli(), last+1)
		if c.stamp.CompareAndSwap(last, attempt) {
			return req.ID + " " + strconv.FormatInt(attempt, 10) + " " + req.Owner, attempt
		}
	}
}

// Close lets what is still done in the background end, for a moment: removals on nodes that a decision didn't need. Then it
// ends all calls and closes what was opened here.
func (c *conn) Close() error {
	for _, s := range c.hints {
		s.close()
	}
	done := make(chan struct{})
	go func() { c.work.Wait(); close(done) }()
	wait := func(d time.Duration) {
		select {
		case <-done:
		case <-time.After(d):
		}
	}
	wait(drain)
	c.mu.Lock()
	c.close()
	c.mu.Unlock()
	for _, n := range c.nodes {
		n.cut()
	}
	wait(drain) // more only with a client of the program that doesn't heed contexts
	for _, n := range c.nodes {
		n.close()
	}
	return nil
}

const drain = 400 * time.Millisecond
