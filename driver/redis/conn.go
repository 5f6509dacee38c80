package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

var (
	_ driver.Conn      = (*conn)(nil)
	_ driver.Waiter    = (*conn)(nil)
	_ driver.Advancer  = (*conn)(nil)
	_ driver.Inspector = (*conn)(nil)
	_ driver.Checker   = (*conn)(nil)
)

// conn is a connection to one server.
type conn struct {
	layout    layout
	retention int64 // of a counter of tokens, in ms
	ttl       time.Duration
	cfg       driver.Config
	client    *client
	hints     subscriber
	permitted atomic.Bool // all that is needed was tried and is allowed
}

// probeTime bounds the probe of Connect. A server that is away costs it, and nothing more.
const probeTime = 2 * time.Second

// Connect returns a Conn. It asks the server, if that answers, whether all commands are allowed.
func (c *connector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	if c.err != nil {
		return nil, c.err
	}
	ttl := (cfg.TTL + time.Millisecond - 1).Truncate(time.Millisecond)
	if ttl < time.Millisecond {
		return nil, fmt.Errorf("%w: a TTL of %v", driver.ErrConfig, cfg.TTL)
	}
	target := c.target
	if target != nil && c.tls != nil {
		tls, err := c.tls.Config()
		if err != nil {
			return nil, err
		}
		copied := *target
		copied.tls = tls
		target = &copied
	}
	cn := &conn{
		layout:    c.layout,
		retention: max(c.retention.Milliseconds(), 1),
		ttl:       ttl,
		cfg:       cfg,
		client:    newClient(c.client, target),
	}
	cn.hints.conn = cn
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var apart []string
	if !cn.client.clustered() {
		// A key in another slot: a node of a cluster refuses the two together.
		apart = append(apart, cn.layout.companion(cn.layout.key("apart"), "p"))
	}
	err := cn.probe(ctx, "locker", apart...)
	if aboutName(err) {
		err = nil // the rights may be for other names only: the first TryLock finds out
	}
	if driver.IsPermanent(err) {
		cn.Close()
		return nil, err
	}
	return cn, nil
}

// probe tries all commands of the scripts without changing anything: a client that may set a lock's key and may not
// delete it must not lock. The key is a companion of the name's, since nothing is ever there. more are keys that the
// server must be able to touch in the same script; nothing is done to them.
func (c *conn) probe(ctx context.Context, name string, more ...string) error {
	key := c.layout.key(name)
	_, err := call(ctx, c.client, attempts, "", func(ctx context.Context, client redis.UniversalClient) (none struct{}, err error) {
		// EVAL, which is the only way once the server has forgotten the scripts; locking itself begins with EVALSHA.
		cmd := probeScript.command(ctx, true, append([]string{c.layout.companion(key, "p")}, more...), c.layout.channel(key))
		if err := client.Process(ctx, cmd); err != nil {
			return none, err
		}
		switch failed, ok := cmd.Val().([]any); {
		case !ok || len(failed) == 1:
			return none, fmt.Errorf("the probe was answered with %v", cmd.Val())
		case len(failed) == 0:
			return none, nil
		default:
			return none, refusal{fmt.Sprint(failed[0]), fmt.Sprint(failed[1])}
		}
	})
	if err == nil {
		c.permitted.Store(true)
	}
	return explain("rights", err)
}

// refusal is the error that a server gave to a command inside a script.
type refusal struct{ command, text string }

func (r refusal) Error() string { return r.text + " (" + r.command + ")" }
func (refusal) RedisError()     {}

// aboutName reports whether a right is missing that may depend on the lock's name: ACL rules list keys and channels.
func aboutName(err error) bool {
	return errors.Is(err, driver.ErrDenied) &&
		(strings.Contains(err.Error(), "of the keys") || strings.Contains(err.Error(), "of the channels") ||
			strings.Contains(err.Error(), "a key") || strings.Contains(err.Error(), "a channel"))
}

// Close ends all calls and closes what was opened here.
func (c *conn) Close() error {
	c.hints.close()
	c.client.shut()
	return nil
}
