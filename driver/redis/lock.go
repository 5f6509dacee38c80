package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// hold is a lock's key that was granted to this process.
type hold struct {
	conn  *conn
	key   string
	value string // the key's value, which names the acquisition
	token uint64
	sent  driver.Instant
	doubt atomic.Bool // a release was sent and its answer didn't come
}

func (h *hold) Grant() driver.Grant {
	return driver.Grant{Token: h.token, Renewal: driver.Renewal{Sent: h.sent, TTL: h.conn.ttl}}
}

// TryLock runs the lock script, which looks, sets and mints in one step and one round trip.
func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	if !c.permitted.Load() {
		if err := c.probe(ctx, req.Name); err != nil {
			return nil, err
		}
	}
	key := c.layout.key(req.Name)
	// The time is for people; nothing depends on it.
	value := req.ID + " " + strconv.FormatInt(time.Now().UnixMilli(), 10) + " " + req.Owner
	h, err := call(ctx, c.client, attempts, req.ID, func(ctx context.Context, client redis.UniversalClient) (*hold, error) {
		h := &hold{conn: c, key: key, value: value}
		reply, err := lockScript.run(ctx, client, func() { h.sent = c.cfg.Now() },
			[]string{key, c.layout.companion(key, "t")}, value, c.ttl.Milliseconds(), c.retention)
		if err != nil {
			return nil, err
		}
		return h, h.granted(reply)
	})
	if err != nil {
		return nil, explain("lock "+key, err)
	}
	return h, nil
}

// granted reads the lock script's reply.
func (h *hold) granted(reply any) error {
	fields, _ := reply.([]any)
	switch {
	case fields == nil:
		h.token = tokenOf(reply)
	case len(fields) == 3:
		h.token = tokenOf(fields[1])
		h.value, _ = fields[2].(string)
	case len(fields) == 2 && fields[0] == int64(0):
		if left, ok := fields[1].(int64); ok {
			return driver.Held(time.Duration(left) * time.Millisecond)
		}
	case len(fields) == 2 && fields[0] == int64(-1):
		return refusal{"SET", fmt.Sprint(fields[1])}
	}
	if h.token == 0 || h.value == "" {
		return fmt.Errorf("the lock script was answered with %v", reply)
	}
	return nil
}

// tokenOf reads a token, which may be a string since Lua's numbers aren't exact above 2^53. It returns 0 if it is none.
func tokenOf(v any) uint64 {
	n, isNumber := v.(int64)
	if s, ok := v.(string); ok {
		n, _ = strconv.ParseInt(s, 10, 64)
	} else if !isNumber {
		return 0
	}
	return uint64(max(n, 0))
}

// Undo removes the key if it carries the ID. A request of that ID that is still on its way to the server sets a key that
// expires after its TTL.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	if c.client.links == nil {
		if err := c.client.settle(ctx, req.ID); err != nil {
			return err
		}
	}
	_, err := c.remove(ctx, c.layout.key(req.Name), req.ID+" ")
	return err
}

// Release removes the key if it still has the hold's value, and hints at it. When it finds nothing to remove after an
// earlier release whose answer is missing, then that one has removed it: the engine sends no renewal after a release, and
// calls a lease lost whose deadline has passed.
func (h *hold) Release(ctx context.Context) error {
	removed, err := h.conn.remove(ctx, h.key, h.value)
	switch {
	case err != nil:
		if wasSent(err) {
			h.doubt.Store(true)
		}
		return err
	case !removed && !h.doubt.Load():
		return driver.ErrNotHeld
	}
	return nil
}

// remove deletes a key that has the value, or whose value begins with it if it is an ID and a space.
func (c *conn) remove(ctx context.Context, key, value string) (removed bool, err error) {
	removed, err = call(ctx, c.client, releases, "", func(ctx context.Context, client redis.UniversalClient) (bool, error) {
		reply, err := releaseScript.run(ctx, client, func() {}, []string{key}, value, c.layout.channel(key))
		if err != nil {
			return false, err
		}
		n, ok := reply.(int64)
		if !ok {
			return false, errors.New("the release script was answered with something else than a number")
		}
		return n == 1, nil
	})
	return removed, explain("release "+key, err)
}
