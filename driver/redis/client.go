package redis

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// lane is a kind of call. Each has connections of its own, so that no kind waits until another one is served: whatever
// the number of waiters, holders are renewed and released.
type lane int

const (
	attempts lane = iota // TryLock and all that only looks
	releases             // Release and Undo
	renewals             // Renew
	lanes
)

// ownLanes is how many calls of each lane are under way at most over connections of our own.
var ownLanes = [lanes]int{attempts: 24, releases: 16, renewals: 4}

// client sends commands over connections of its own, or through the client that the program brought. It returns when
// the context of a call ends, which the client library alone doesn't: that waits for a reply until its timeout.
type client struct {
	turns   [lanes]chan struct{} // a slot is taken by each call under way; those to a cluster have others
	links   *links               // to one server, or to the primary that Sentinel names
	cluster *cluster             // instead of links
	brought                      // instead of both

	closing context.Context // ends with Close
	close   context.CancelFunc
}

// brought is the client of the program.
type brought struct {
	redis.UniversalClient
	mu      sync.Mutex
	pending map[string][]<-chan struct{} // calls by ID that go on although their context has ended
	shards  map[string]chan struct{}     // slots for renewals by node, if it is a client for clusters
}

func newClient(b redis.UniversalClient, t *target) *client {
	c := &client{}
	c.closing, c.close = context.WithCancel(context.Background())
	sizes := ownLanes
	if b != nil {
		c.UniversalClient, c.pending, c.shards = b, make(map[string][]<-chan struct{}), make(map[string]chan struct{})
		size := poolSize(b)
		sizes = [lanes]int{attempts: max(size/2, 1), releases: max(size/4, 1), renewals: max(size/8, 1)}
	} else if len(t.addrs) == 0 {
		c.links = newLinks(t)
	} else if t.master == "" {
		c.cluster = newCluster(t, c.closing)
	} else {
		found := *t
		found.primary = newPrimary(t, c.closing)
		c.links = newLinks(&found)
	}
	for l, size := range sizes {
		c.turns[l] = make(chan struct{}, size)
	}
	return c
}

// poolSize returns how many connections to a server the program's client allows itself.
func poolSize(b redis.UniversalClient) int {
	switch b := b.(type) {
	case *redis.Client:
		return b.Options().PoolSize
	case *redis.ClusterClient:
		return b.Options().PoolSize
	}
	return 10
}

// call calls fn in a lane, with a client library's client and a context for it. id is that of the acquisition if fn may
// leave something behind, "" otherwise. If ctx ends first, call returns at once; fn may go on for a while, and what it
// returns is dropped.
func call[T any](ctx context.Context, c *client, l lane, id string, fn func(context.Context, redis.UniversalClient) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if c.cluster != nil { // which takes a turn for each command, at the node that it is for
		return fn(ctx, c.cluster.routes[l])
	}
	return callIn(ctx, c, c.turns[l], id, fn)
}

// callIn is call, not to a cluster of our own, with the slots that the call takes one of.
func callIn[T any](ctx context.Context, c *client, turns chan struct{}, id string, fn func(context.Context, redis.UniversalClient) (T, error)) (T, error) {
	if err := turn(ctx, c.closing, turns); err != nil {
		var none T
		return none, err
	}
	if c.links == nil {
		return callBrought(ctx, c, turns, id, fn)
	}
	defer func() { <-turns }()
	return exchange(ctx, c.closing, c.links, fn)
}

// exchange calls fn with a link. What isn't sent, since the server is no primary any more, is sent once to the next one.
func exchange[T any](ctx, closing context.Context, ls *links, fn func(context.Context, redis.UniversalClient) (T, error)) (T, error) {
	p := ls.target.primary
	if p != nil {
		p.touch()
	}
	for again := p != nil; ; again = false {
		link := ls.take()
		link.begin(ctx)
		var result T
		err := link.connect(ctx)
		if err == nil {
			result, err = fn(limit{ctx}, link.client)
		}
		cut := link.end()
		replied := err == nil || isReply(err) || driver.IsAnswer(err)
		demoted := p != nil && err != nil && isReply(err) && strings.Contains(err.Error(), "READONLY")
		ls.put(link, !cut && replied && !demoted)
		if p != nil && (!replied || demoted) {
			p.suspect()
		}
		if again && errors.Is(err, errNotPrimary) && ctx.Err() == nil {
			continue
		}
		if !replied {
			switch {
			case closing.Err() != nil:
				err = errClosed
			case ctx.Err() != nil:
				err = ended(ctx, err)
			}
		}
		return result, err
	}
}

// turn waits for a free slot.
func turn(ctx, closing context.Context, turns chan struct{}) error {
	if closing.Err() != nil {
		return errClosed
	}
	select {
	case turns <- struct{}{}:
		return nil
	default:
	}
	select {
	case turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closing.Done():
		return errClosed
	}
}

// callBrought runs fn in a goroutine, since nothing of the program's client can be closed to end it. The slot in the
// lane stays taken until fn has returned.
func callBrought[T any](ctx context.Context, c *client, turns chan struct{}, id string, fn func(context.Context, redis.UniversalClient) (T, error)) (T, error) {
	type outcome struct {
		result T
		err    error
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	outcomes, done := make(chan outcome, 1), make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-turns }()
		result, err := fn(ctx, c.UniversalClient)
		outcomes <- outcome{result, err}
	}()
	var none T
	select {
	case o := <-outcomes:
		return o.result, o.err
	case <-ctx.Done():
		c.abandon(id, done)
		return none, ctx.Err()
	case <-c.closing.Done():
		c.abandon(id, done)
		return none, errClosed
	}
}

// abandon remembers a call that goes on.
func (b *brought) abandon(id string, done <-chan struct{}) {
	if id == "" {
		return
	}
	b.mu.Lock()
	b.pending[id] = append(b.pending[id], done)
	b.mu.Unlock()
	go func() {
		<-done
		b.mu.Lock()
		defer b.mu.Unlock()
		kept := b.pending[id][:0]
		for _, other := range b.pending[id] {
			if other != done {
				kept = append(kept, other)
			}
		}
		if b.pending[id] = kept; len(kept) == 0 {
			delete(b.pending, id)
		}
	}()
}

// settle waits until no call of the ID is under way.
func (b *brought) settle(ctx context.Context, id string) error {
	b.mu.Lock()
	pending := append([]<-chan struct{}(nil), b.pending[id]...)
	b.mu.Unlock()
	for _, done := range pending {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// shut ends all calls under way and closes our own connections.
func (c *client) shut() {
	c.close()
	if c.cluster != nil {
		c.cluster.close()
	}
	if c.links != nil {
		c.links.close()
		if p := c.links.target.primary; p != nil {
			p.close()
		}
	}
}

// subscription returns an unconnected subscription and a function that ends it without blocking.
func (c *client) subscription(ctx context.Context) (*redis.PubSub, func()) {
	var l *link
	switch {
	case c.links != nil:
		l = newLink(c.links.target)
	case c.cluster != nil:
		l = c.cluster.subscribe()
	default:
		pubsub := c.UniversalClient.Subscribe(ctx)
		return pubsub, func() { go pubsub.Close() }
	}
	l.once = true
	pubsub := l.client.Subscribe(ctx)
	return pubsub, func() {
		l.cut() // whatever the library is about to do on it fails at once
		go l.client.Close()
	}
}
