package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// route sends the commands of a lane to the nodes of a cluster that have their keys, and follows redirections. It stands
// in a client of the client library as a hook that never calls the next one, so that the rest of the package has the same
// kind of client for one server and for a cluster.
type route struct {
	cluster *cluster
	lane    lane
}

func newRoute(cl *cluster, l lane) *redis.Client {
	t := target{network: "tcp", addr: "cluster"}
	o := t.options()
	o.PipelinePoolSize = -1
	client := redis.NewClient(o)
	client.AddHook(route{cl, l})
	return client
}

// hops is how often a command is sent at most. A redirected one was not carried out.
const hops = 5

func (route) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r route) ProcessHook(redis.ProcessHook) redis.ProcessHook { return r.process }

func (r route) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return r.pipeline
}

// hop is a place that a command is sent to.
type hop struct {
	node   *node
	asking bool // the node doesn't have the slot yet
}

// process sends one command.
func (r route) process(ctx context.Context, cmd redis.Cmder) error {
	slot := commandSlot(cmd)
	n, err := r.cluster.owner(ctx, slot)
	h := hop{node: n}
	for range hops {
		if err != nil {
			return err
		}
		if err = r.send(ctx, h, []redis.Cmder{cmd}); err == nil {
			err = cmd.Err()
		}
		next, redirected := r.redirection(h, slot, err)
		if !redirected {
			return err
		}
		h, err = next, nil
	}
	return errHops(cmd)
}

// pipeline sends commands to several nodes at a time.
func (r route) pipeline(ctx context.Context, cmds []redis.Cmder) error {
	todo := make(map[hop][]redis.Cmder)
	for _, cmd := range cmds {
		n, err := r.cluster.owner(ctx, commandSlot(cmd))
		if err != nil {
			cmd.SetErr(err)
			continue
		}
		todo[hop{node: n}] = append(todo[hop{node: n}], cmd)
	}
	for range hops {
		var sending sync.WaitGroup
		for h, cmds := range todo {
			sending.Go(func() {
				if err := r.send(ctx, h, cmds); err != nil {
					for _, cmd := range cmds {
						cmd.SetErr(err)
					}
				}
			})
		}
		sending.Wait()
		next := make(map[hop][]redis.Cmder)
		for h, cmds := range todo {
			for _, cmd := range cmds {
				if to, redirected := r.redirection(h, commandSlot(cmd), cmd.Err()); redirected {
					next[to] = append(next[to], cmd)
				}
			}
		}
		todo = next
	}
	for _, cmds := range todo {
		for _, cmd := range cmds {
			cmd.SetErr(errHops(cmd))
		}
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			return err
		}
	}
	return nil
}

// errHops isn't the reply that redirected the command once more, which would be an answer.
func errHops(cmd redis.Cmder) error {
	return fmt.Errorf("redis: redirected %d times, at last by %q", hops, cmd.Err())
}

// send sends commands to one node. It returns an error only if there are no replies; else each command has its own.
func (r route) send(ctx context.Context, h hop, cmds []redis.Cmder) error {
	if err := turn(ctx, r.cluster.closing, h.node.turns[r.lane]); err != nil {
		return err
	}
	defer func() { <-h.node.turns[r.lane] }()
	_, err := exchange(ctx, r.cluster.closing, h.node.links, func(ctx context.Context, client redis.UniversalClient) (none struct{}, err error) {
		if len(cmds) == 1 && !h.asking {
			return none, client.Process(ctx, cmds[0])
		}
		pipe := client.Pipeline()
		for _, cmd := range cmds {
			if h.asking {
				pipe.Do(ctx, "ASKING")
			}
			pipe.Process(ctx, cmd)
		}
		_, err = pipe.Exec(ctx)
		return none, err
	})
	if err == nil || isReply(err) {
		r.cluster.replied(h.node, true)
		return nil
	}
	if !errors.Is(err, errClosed) {
		r.cluster.replied(h.node, false)
	}
	return err
}

// redirection tells where a reply sends a command.
func (r route) redirection(from hop, slot int, err error) (to hop, redirected bool) {
	if err == nil || slot < 0 || !isReply(err) {
		return hop{}, false
	}
	fields := strings.Fields(err.Error())
	switch {
	case len(fields) != 3:
	case fields[0] == "MOVED":
		return hop{node: r.cluster.moved(slot, joinHost(fields[2], from.node.addr))}, true
	case fields[0] == "ASK":
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		return hop{node: r.cluster.node(joinHost(fields[2], from.node.addr)), asking: true}, true
	}
	if fields[0] == "CLUSTERDOWN" {
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		r.cluster.suspect()
	}
	return hop{}, false
}
