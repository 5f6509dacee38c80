package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// chunk is how many keys one script renews. The server does nothing else meanwhile, for some 2 µs a key.
const chunk = 100

// Renew renews in chunks, over a few connections, so that a chunk whose reply doesn't come delays no other one.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	if len(holds) > 0 && c.client.clustered() {
		c.renewShards(ctx, holds, report)
	} else {
		c.renewAll(ctx, c.client.turns[renewals], holds, report)
	}
	return 0
}

// renewAll renews holds of one server, each chunk in one of the turns.
func (c *conn) renewAll(ctx context.Context, turns chan struct{}, holds []driver.Hold, report func(int, driver.Renewal)) {
	if len(holds) <= chunk {
		c.renew(ctx, turns, holds, 0, report)
		return
	}
	starts := make(chan int)
	var workers sync.WaitGroup
	for range min(cap(turns), (len(holds)+chunk-1)/chunk) {
		workers.Go(func() {
			for start := range starts {
				c.renew(ctx, turns, holds[start:min(start+chunk, len(holds))], start, report)
			}
		})
	}
	for start := 0; start < len(holds); start += chunk {
		starts <- start
	}
	close(starts)
	workers.Wait()
}

// renew renews one chunk, which begins at start.
func (c *conn) renew(ctx context.Context, turns chan struct{}, holds []driver.Hold, start int, report func(int, driver.Renewal)) {
	if len(holds) == 0 {
		return
	}
	// A hold that comes from elsewhere is a mistake of the program, which may as well panic.
	mine := make([]*hold, len(holds))
	for i, h := range holds {
		mine[i] = h.(*hold)
	}
	results, err := renewIn(ctx, c.client, turns, func(ctx context.Context, client redis.UniversalClient) ([]driver.Renewal, error) {
		if !c.client.clustered() {
			results, err := c.renewTogether(ctx, client, mine)
			if !isReply(err) || len(mine) == 1 {
				return results, err
			}
			// One key that can't be renewed, such as one that an ACL rule forbids, makes the whole script fail.
		}
		return c.renewEach(ctx, client, mine)
	})
	for i := range mine {
		r := driver.Renewal{Err: explain("renew "+mine[i].key, err)}
		if results != nil {
			r = results[i]
		}
		if r.Err != nil && !driver.IsAnswer(r.Err) && ctx.Err() != nil {
			r.Err = ended(ctx, r.Err)
		}
		report(start+i, r)
	}
}

// renewIn is call with the turns of one node.
func renewIn[T any](ctx context.Context, c *client, turns chan struct{}, fn func(context.Context, redis.UniversalClient) (T, error)) (T, error) {
	if c.cluster != nil {
		return call(ctx, c, renewals, "", fn)
	}
	return callIn(ctx, c, turns, "", fn)
}

// renewTogether renews by one call of the script.
func (c *conn) renewTogether(ctx context.Context, client redis.UniversalClient, holds []*hold) ([]driver.Renewal, error) {
	keys, args := make([]string, len(holds)), make([]any, 1+len(holds))
	args[0] = c.ttl.Milliseconds()
	for i, h := range holds {
		keys[i], args[i+1] = h.key, h.value
	}
	// The source goes along each time: it is short for so many keys, and a server that has forgotten the script would
	// cost a round trip that a lease on a slow network doesn't have.
	cmd := renewScript.command(ctx, true, keys, args...)
	sent := c.cfg.Now()
	if err := client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	reply := cmd.Val()
	fields, ok := reply.([]any)
	if !ok || len(fields) != len(holds) {
		return nil, errors.New("the renewal script was answered with something else than one number a key")
	}
	results := make([]driver.Renewal, len(holds))
	for i, field := range fields {
		results[i] = c.renewed(sent, field)
	}
	return results, nil
}

func (c *conn) renewed(sent driver.Instant, field any) driver.Renewal {
	switch field {
	case int64(1):
		return driver.Renewal{Sent: sent, TTL: c.ttl}
	case int64(0):
		return driver.Renewal{Err: driver.ErrNotHeld}
	}
	return driver.Renewal{Err: fmt.Errorf("the renewal script was answered with %v", field)}
}

// renewEach renews by one call of the script for each key, in one pipeline, and a second one with the script's source
// for those that found it missing.
func (c *conn) renewEach(ctx context.Context, client redis.UniversalClient, holds []*hold) ([]driver.Renewal, error) {
	results := make([]driver.Renewal, len(holds))
	due := make([]int, len(holds))
	for i := range due {
		due[i] = i
	}
	for _, eval := range []bool{false, true} {
		pipe, cmds := client.Pipeline(), make([]command, len(due))
		for n, i := range due {
			cmds[n] = renewScript.command(ctx, eval, []string{holds[i].key}, c.ttl.Milliseconds(), holds[i].value)
			pipe.Process(ctx, cmds[n]) // it only queues
		}
		sent := c.cfg.Now()
		_, err := pipe.Exec(ctx) // each command has its own error as well
		var missing []int
		for n, i := range due {
			err := cmds[n].Err()
			fields, _ := cmds[n].Val().([]any)
			switch {
			case err != nil && !eval && isNoScript(err):
				missing = append(missing, i)
			case err != nil:
				results[i] = driver.Renewal{Err: explain("renew "+holds[i].key, err)}
			case len(fields) != 1:
				results[i] = c.renewed(sent, cmds[n].Val())
			default:
				results[i] = c.renewed(sent, fields[0])
			}
		}
		if err != nil && !isReply(err) {
			return results, err
		}
		if due = missing; len(due) == 0 {
			break
		}
	}
	return results, nil
}
