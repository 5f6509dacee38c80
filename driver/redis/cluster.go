package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// cluster knows which node has which slot, and has connections of our own to each. A silent node costs time those calls
// that are for its slots, and no others: nodes share neither connections nor turns.
type cluster struct {
	target  *target // of each node, but for the address
	closing context.Context
	routes  [lanes]*redis.Client // they find the nodes of commands: see route

	mu      sync.Mutex
	seeds   map[string]bool
	nodes   map[string]*node
	owners  [slots]*node
	query   *query      // under way
	stale   bool        // something went wrong since the last query began
	resting *time.Timer // runs for a while after a query; nil: it doesn't
	sub     *link       // the subscription
	subNode *node
}

// node is a server of a cluster.
type node struct {
	addr   string
	links  *links
	turns  [lanes]chan struct{}
	silent bool // the last call got no reply; guarded by the mutex of cluster
}

// query is one question for the map of slots.
type query struct {
	done chan struct{} // closed when err is set
	err  error
}

const (
	queryTime = 3 * time.Second        // how long a query lasts at most
	stagger   = 100 * time.Millisecond // how long one node is waited for before the next one is asked as well
	rest      = 500 * time.Millisecond // from one query to the next, unless a call waits for it
)

func newCluster(t *target, closing context.Context) *cluster {
	cl := &cluster{target: t, closing: closing, seeds: make(map[string]bool), nodes: make(map[string]*node)}
	for _, addr := range t.addrs {
		cl.seeds[addr] = true
		cl.node(addr)
	}
	for l := range cl.routes {
		cl.routes[l] = newRoute(cl, lane(l))
	}
	return cl
}

// node returns the node with an address. It needs the mutex.
func (cl *cluster) node(addr string) *node {
	n := cl.nodes[addr]
	if n == nil {
		t := *cl.target
		t.addr = addr
		n = &node{addr: addr, links: newLinks(&t)}
		for l, size := range ownLanes {
			n.turns[l] = make(chan struct{}, size)
		}
		if cl.closing.Err() != nil {
			n.links.close()
		}
		cl.nodes[addr] = n
	}
	return n
}

// owner returns the node that has a slot; any node for slot -1.
func (cl *cluster) owner(ctx context.Context, slot int) (*node, error) {
	for asked := false; ; asked = true {
		cl.mu.Lock()
		var n *node
		if slot < 0 {
			n = cl.any()
		} else {
			n = cl.owners[slot]
		}
		if n != nil {
			cl.mu.Unlock()
			return n, nil
		}
		if asked {
			cl.mu.Unlock()
			return nil, fmt.Errorf("no node of the cluster has the slot %d", slot)
		}
		q := cl.begin()
		cl.mu.Unlock()
		select {
		case <-q.done:
			if q.err != nil {
				return nil, q.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// any returns a node, one that answers if there is one. It needs the mutex.
func (cl *cluster) any() *node {
	var silent *node
	for _, n := range cl.nodes { // in no order
		if !n.silent {
			return n
		}
		silent = n
	}
	return silent
}

// masters returns the nodes that have slots.
func (cl *cluster) masters(ctx context.Context) ([]*node, error) {
	if _, err := cl.owner(ctx, 0); err != nil {
		return nil, err
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	var masters []*node
	seen := make(map[*node]bool)
	for _, n := range cl.owners {
		if n != nil && !seen[n] {
			seen[n] = true
			masters = append(masters, n)
		}
	}
	return masters, nil
}

// replied notes whether a node replied to a call. If not, others may have taken over its slots.
func (cl *cluster) replied(n *node, ok bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if n.silent = !ok; ok {
		return
	}
	if cl.subNode == n {
		cl.sub.cut() // the next one is to another node
		cl.sub, cl.subNode = nil, nil
	}
	cl.suspect()
}

// suspect has the map asked for anew, soon. It needs the mutex.
func (cl *cluster) suspect() {
	if cl.stale = true; cl.query == nil && cl.resting == nil {
		cl.begin()
	}
}

// moved takes from a redirection where a slot is.
func (cl *cluster) moved(slot int, addr string) *node {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	n := cl.node(addr)
	cl.owners[slot] = n
	cl.suspect() // it is seldom one slot alone
	return n
}

// begin starts a query or finds the one under way. It needs the mutex.
func (cl *cluster) begin() *query {
	if cl.query != nil {
		return cl.query
	}
	q := &query{done: make(chan struct{})}
	cl.query, cl.stale = q, false
	// Those come last that don't answer, and before them seeds, which may have left the cluster.
	var first, then, last []*node
	known := make(map[*node]bool)
	for _, n := range cl.owners {
		if n != nil {
			known[n] = true
		}
	}
	for _, n := range cl.nodes {
		switch {
		case n.silent:
			last = append(last, n)
		case known[n]:
			first = append(first, n)
		default:
			then = append(then, n)
		}
	}
	go func() {
		ctx, cancel := context.WithTimeout(cl.closing, queryTime)
		defer cancel()
		shards, err := cl.ask(ctx, append(append(first, then...), last...))
		cl.finish(q, shards, err)
	}()
	return q
}

// finish takes what a query has found.
func (cl *cluster) finish(q *query, shards []redis.ClusterSlot, err error) {
	cl.mu.Lock()
	if q.err = err; err == nil {
		cl.adopt(shards)
	}
	cl.query = nil
	if cl.resting == nil && cl.closing.Err() == nil {
		cl.resting = time.AfterFunc(rest, func() {
			cl.mu.Lock()
			defer cl.mu.Unlock()
			if cl.resting = nil; cl.stale && cl.query == nil && cl.closing.Err() == nil {
				cl.begin()
			}
		})
	}
	cl.mu.Unlock()
	close(q.done)
}

// adopt takes a map of slots. Nodes that have none are forgotten, but for those of the URL. It needs the mutex.
func (cl *cluster) adopt(shards []redis.ClusterSlot) {
	clear(cl.owners[:])
	used := make(map[*node]bool)
	for _, s := range shards {
		n := cl.node(s.Nodes[0].Addr)
		used[n] = true
		for slot := max(s.Start, 0); slot <= min(s.End, slots-1); slot++ {
			cl.owners[slot] = n
		}
	}
	for addr, n := range cl.nodes {
		if used[n] || cl.seeds[addr] {
			continue
		}
		delete(cl.nodes, addr)
		go n.links.close() // calls under way end
		if cl.subNode == n {
			cl.sub.cut()
			cl.sub, cl.subNode = nil, nil
		}
	}
}

// ask asks one node after the other for the map, each a little later than the one before, until one gives it.
func (cl *cluster) ask(ctx context.Context, nodes []*node) ([]redis.ClusterSlot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		shards []redis.ClusterSlot
		err    error
	}
	results := make(chan result, len(nodes))
	var final error
	var errs []error
	next := time.NewTimer(0)
	defer next.Stop()
	for asked := 0; len(errs) < len(nodes); {
		select {
		case <-next.C:
			if asked == len(nodes) {
				continue
			}
			n := nodes[asked]
			asked++
			next.Reset(stagger)
			go func() {
				shards, err := cl.askOne(ctx, n)
				results <- result{shards, err}
			}()
		case r := <-results:
			if r.err == nil {
				return r.shards, nil
			}
			errs = append(errs, r.err)
			if final == nil && driver.IsAnswer(r.err) {
				final = r.err
			}
			next.Reset(0)
		}
	}
	if final != nil {
		return nil, final
	}
	return nil, fmt.Errorf("no node tells who has the slots: %w", opaque{errors.Join(errs...)})
}

// askOne asks one node.
func (cl *cluster) askOne(ctx context.Context, n *node) ([]redis.ClusterSlot, error) {
	shards, err := exchange(ctx, cl.closing, n.links, func(ctx context.Context, client redis.UniversalClient) ([]redis.ClusterSlot, error) {
		return client.ClusterSlots(ctx).Result()
	})
	switch {
	case err != nil && isReply(err) && strings.Contains(err.Error(), "cluster support disabled"):
		return nil, fmt.Errorf("%w: redis: the server %s belongs to no cluster: its URL begins with redis:// or rediss://", driver.ErrConfig, n.addr)
	case err != nil:
		return nil, explain("CLUSTER SLOTS at "+n.addr, err)
	}
	valid := shards[:0]
	for _, s := range shards {
		if len(s.Nodes) > 0 {
			s.Nodes[0].Addr = joinHost(s.Nodes[0].Addr, n.addr)
			valid = append(valid, s)
		}
	}
	if len(valid) == 0 {
		return nil, fmt.Errorf("redis: %s knows of no slots", n.addr)
	}
	return valid, nil
}

// joinHost returns an address that a node has given; one without a host has the node's own.
func joinHost(addr, from string) string {
	at := strings.LastIndexByte(addr, ':')
	if at < 0 {
		return addr
	}
	host, port := strings.Trim(addr[:at], "[]"), addr[at+1:]
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, port)
}

// subscribe returns a link to a node for a subscription: what is published at one node, all of them deliver.
func (cl *cluster) subscribe() *link {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	n := cl.any()
	t := *n.links.target
	t.failed = func() { cl.replied(n, false) }
	cl.sub, cl.subNode = newLink(&t), n
	return cl.sub
}

// close ends all calls under way and closes the connections.
func (cl *cluster) close() {
	cl.mu.Lock()
	if cl.resting != nil {
		cl.resting.Stop()
	}
	var all []*node
	for _, n := range cl.nodes {
		all = append(all, n)
	}
	cl.mu.Unlock()
	for _, n := range all {
		n.links.close()
	}
	for _, r := range cl.routes {
		r.Close()
	}
}
