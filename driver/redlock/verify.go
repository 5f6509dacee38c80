package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// verifyAll asks the nodes whether they are fit. It fails if one of them says that it isn't, or if a majority doesn't
// allow what is needed.
func (c *conn) verifyAll(ctx context.Context) error {
	replies := ask(c, attempts, c.limit, c.nodes, func(ctx context.Context, n *node, client *redis.Client) (none struct{}, err error) {
		return none, c.verify(ctx, n, client)
	})
	var unfit, denied []error
	err := count(ctx, c, replies, func(r reply[struct{}]) bool {
		switch {
		case errors.Is(r.err, driver.ErrConfig):
			unfit = append(unfit, r.err)
		case driver.IsPermanent(r.err):
			denied = append(denied, r.err)
		}
		return false
	})
	switch {
	case len(unfit) > 0:
		return errors.Join(unfit...)
	case len(denied) > len(c.nodes)-c.quorum:
		return errors.Join(denied...)
	}
	for _, err := range denied {
		c.cfg.Logger.Warn("a node of a minority is of no use", "err", err)
	}
	return err
}

// verify asks a node, unless it is known to be fit, who it is and whether all commands of the scripts are allowed.
func (c *conn) verify(ctx context.Context, n *node, client *redis.Client) error {
	n.mu.Lock()
	known := n.identity != ""
	n.mu.Unlock()
	if known {
		return nil
	}
	identity, err := c.identify(ctx, n, client)
	if err == nil {
		err = c.probe(ctx, n, client, "locker")
		if aboutName(err) {
			err = nil // the rights may be for other names only: the first TryLock finds out
		}
	}
	if err != nil {
		return err
	}
	c.mu.Lock() // of two that come here at the same time, the second one sees the first
	defer c.mu.Unlock()
	for _, other := range c.nodes {
		if other != n {
			other.mu.Lock()
			same := other.identity == identity
			other.mu.Unlock()
			if same {
				return fmt.Errorf("%w: %s and %s are the same server", driver.ErrConfig, other.name, n.name)
			}
		}
	}
	n.mu.Lock()
	n.identity = identity
	n.mu.Unlock()
	return nil
}

// identify returns a server's run_id, if it is a master of its own.
func (c *conn) identify(ctx context.Context, n *node, client *redis.Client) (string, error) {
	info, err := serverInfo(ctx, client)
	if err != nil {
		return "", n.explain("INFO", err)
	}
	switch {
	case info["redis_mode"] == "cluster" || info["server_mode"] == "cluster":
		return "", fmt.Errorf("%w: %s is a node of a cluster, and Redlock needs servers of their own", driver.ErrConfig, n.name)
	case info["redis_mode"] == "sentinel":
		return "", fmt.Errorf("%w: %s is a Sentinel, and holds no keys", driver.ErrConfig, n.name)
	case info["role"] == "slave" || info["role"] == "replica":
		return "", fmt.Errorf("%w: %s is a replica of %s:%s, and Redlock needs masters", driver.ErrConfig, n.name, info["master_host"], info["master_port"])
	case info["run_id"] == "":
		return "", fmt.Errorf("%w: %s doesn't say who it is (INFO without run_id), so that one server could be given twice", driver.ErrConfig, n.name)
	}
	return info["run_id"], nil
}

// serverInfo returns the fields of INFO.
func serverInfo(ctx context.Context, client *redis.Client) (map[string]string, error) {
	text, err := client.Info(ctx).Result()
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields, err
}

// probe tries all commands of the scripts without changing anything: a client that may set a lock's key and may not
// delete it must not lock. The key is a companion of the name's, since nothing is ever there.
func (c *conn) probe(ctx context.Context, n *node, client *redis.Client, name string) error {
	key := c.layout.key(name)
	// EVAL, which is the only way once the server has forgotten the scripts; locking itself begins with EVALSHA.
	cmd := probeScript.command(ctx, true, []string{c.layout.companion(key, "p")}, c.layout.channel(key))
	err := client.Process(ctx, cmd)
	failed, ok := cmd.Val().([]any)
	switch {
	case err != nil:
	case !ok || len(failed) == 1:
		err = fmt.Errorf("the probe was answered with %v", cmd.Val())
	case len(failed) > 1:
		err = refusal{fmt.Sprint(failed[0]), fmt.Sprint(failed[1])}
	}
	return n.explain("rights", err)
}
