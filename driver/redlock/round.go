package redlock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// reply is what one node has said.
type reply[T any] struct {
	node  *node
	value T
	err   error
}

// heard reports whether the server itself has spoken, and not only the network.
func (r reply[T]) heard() bool { return r.err == nil || isReply(r.err) }

// ask calls fn for nodes, all at once. The calls go on when nobody listens any more, each for limit at most, so that what
// a late reply asks for can be done: see hold. The channel has room for all replies, and each node sends one.
func ask[T any](c *conn, l lane, limit time.Duration, nodes []*node, fn func(context.Context, *node, *redis.Client) (T, error)) <-chan reply[T] {
	replies := make(chan reply[T], len(nodes))
	for _, n := range nodes {
		if !c.begin() {
			replies <- reply[T]{node: n, err: errClosed}
			continue
		}
		go func() {
			defer c.work.Done()
			value, err := call(c, n, l, limit, fn)
			replies <- reply[T]{n, value, err}
		}()
	}
	return replies
}

// call calls fn for one node, for limit at most.
func call[T any](c *conn, n *node, l lane, limit time.Duration, fn func(context.Context, *node, *redis.Client) (T, error)) (value T, err error) {
	ctx, cancel := context.WithTimeout(c.closing, limit)
	defer cancel()
	done, err := n.turn(ctx, l)
	if err == nil {
		defer done()
		value, err = fn(ctx, n, n.client)
		if err == nil || isReply(err) {
			n.answered()
		}
	}
	if err != nil && !isReply(err) && c.closing.Err() != nil {
		err = errClosed
	}
	return value, err
}

// count collects replies until take says that all is decided, or all have come. When a majority of servers has spoken, it
// waits for the rest only a few times as long as these took, and a tenth of a second at least: one that is silent must
// delay nobody. It fails only if ctx ends.
func count[T any](ctx context.Context, c *conn, replies <-chan reply[T], take func(reply[T]) (decided bool)) error {
	began := c.cfg.Now()
	heard := 0
	var stragglers <-chan time.Time
	for range cap(replies) {
		select {
		case r := <-replies:
			if take(r) {
				return nil
			}
			if r.heard() {
				heard++
			}
			if heard == c.quorum && stragglers == nil {
				timer := time.NewTimer(max(4*c.cfg.Now().Sub(began), straggle))
				defer timer.Stop()
				stragglers = timer.C
			}
		case <-stragglers:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// straggle is how long is waited for the last nodes at least, when the others alone can't decide.
const straggle = 100 * time.Millisecond

// begin counts a goroutine, which Close waits for. It reports false if the connection is closed.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return false
	}
	c.work.Add(1)
	return true
}
