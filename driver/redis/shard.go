package redis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// shard is the holds that one node of a cluster has, as their indexes.
type shard struct {
	node  string // its address; "" if it isn't known
	holds []int
}

// renewShards renews the holds of each node by themselves, so that a silent one delays no others.
func (c *conn) renewShards(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) {
	var renewing sync.WaitGroup
	for _, s := range c.client.split(ctx, holds) {
		renewing.Go(func() {
			part := make([]driver.Hold, len(s.holds))
			for n, i := range s.holds {
				part[n] = holds[i]
			}
			c.renewAll(ctx, c.client.renewalTurns(s.node), part, func(n int, r driver.Renewal) { report(s.holds[n], r) })
		})
	}
	renewing.Wait()
}

// clustered reports whether keys may be on different servers.
func (c *client) clustered() bool {
	_, brought := c.UniversalClient.(*redis.ClusterClient)
	return brought || c.cluster != nil
}

// split groups holds by node.
func (c *client) split(ctx context.Context, holds []driver.Hold) []*shard {
	byNode := make(map[string]*shard)
	var shards []*shard
	for i, h := range holds {
		node := c.nodeOf(ctx, h.(*hold).key)
		s := byNode[node]
		if s == nil {
			s = &shard{node: node}
			byNode[node] = s
			shards = append(shards, s)
		}
		s.holds = append(s.holds, i)
	}
	return shards
}

// nodeOf returns the address of the node that has a key. Where that isn't known, the renewal itself finds out why.
func (c *client) nodeOf(ctx context.Context, key string) string {
	if c.cluster != nil {
		if n, err := c.cluster.owner(ctx, slotOf(key)); err == nil {
			return n.addr
		}
		return ""
	}
	found := make(chan string, 1)
	go func() { // the client may ask a node, and isn't bound by ctx then
		node, err := c.UniversalClient.(*redis.ClusterClient).MasterForKey(ctx, key)
		if err != nil {
			found <- ""
			return
		}
		found <- node.Options().Addr
	}()
	select {
	case addr := <-found:
		return addr
	case <-ctx.Done():
		return ""
	}
}

// renewalTurns returns the slots for renewals at a node. A client that the program brought has as many connections to
// each node; those of our own have their slots already.
func (c *client) renewalTurns(node string) chan struct{} {
	if c.shards == nil || node == "" {
		return c.turns[renewals]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	turns := c.shards[node]
	if turns == nil {
		turns = make(chan struct{}, cap(c.turns[renewals]))
		c.shards[node] = turns
	}
	return turns
}
