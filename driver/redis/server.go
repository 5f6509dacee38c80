package redis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// server is one of those that hold locks, for what is asked of each of them.
type server struct {
	client *client
	addr   string                // "" where there is only one
	node   *node                 // of a cluster of our own
	direct redis.UniversalClient // a node's, of the program's client for clusters
}

// servers returns all servers that hold locks.
func (c *client) servers(ctx context.Context) ([]server, error) {
	if c.cluster != nil {
		nodes, err := c.cluster.masters(ctx)
		var all []server
		for _, n := range nodes {
			all = append(all, server{client: c, addr: n.addr, node: n})
		}
		return all, err
	}
	cluster, ok := c.UniversalClient.(*redis.ClusterClient)
	if !ok {
		return []server{{client: c}}, nil
	}
	return call(ctx, c, attempts, "", func(ctx context.Context, _ redis.UniversalClient) (all []server, err error) {
		var mu sync.Mutex
		err = cluster.ForEachMaster(ctx, func(_ context.Context, direct *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, server{client: c, addr: direct.Options().Addr, direct: direct})
			return nil
		})
		return all, err
	})
}

// callServer is call for one of the servers.
func callServer[T any](ctx context.Context, s server, fn func(context.Context, redis.UniversalClient) (T, error)) (T, error) {
	if s.node != nil {
		return exchange(ctx, s.client.closing, s.node.links, fn)
	}
	return call(ctx, s.client, attempts, "", func(ctx context.Context, client redis.UniversalClient) (T, error) {
		if s.direct != nil {
			client = s.direct
		}
		return fn(ctx, client)
	})
}
