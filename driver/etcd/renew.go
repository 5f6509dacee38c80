package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

// chunk is the number of keys in one transaction; servers allow 128 unless set otherwise.
const chunk = 100

// batch is the part of a renewal that belongs to one session.
type batch struct {
	holds   []*hold
	indices []int
}

// Renew implements driver.Conn. It renews each session with one keep-alive and then proves each key with a linearizable
// read: the lease's own list of keys isn't one.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	batches := make(map[*session]*batch)
	c.mu.Lock()
	for s := range c.sessions {
		if s.users > 0 || s.retired {
			batches[s] = &batch{}
		}
	}
	c.mu.Unlock()
	for i, h := range holds {
		own := h.(*hold)
		b := batches[own.session]
		if b == nil {
			b = &batch{}
			batches[own.session] = b
		}
		b.holds, b.indices = append(b.holds, own), append(b.indices, i)
	}
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	for s, b := range batches {
		all.Go(func() {
			left := c.renew(ctx, s, b, report)
			mu.Lock()
			defer mu.Unlock()
			unresolved += left
		})
	}
	all.Wait()
	return unresolved
}

// renew renews one session and reports its holds. The keep-alive and the reads are under way at the same time: if the
// lease turns out to live, a key that was read was there under the living lease, and its time counts from the keep-alive.
func (c *conn) renew(ctx context.Context, s *session, b *batch, report func(int, driver.Renewal)) (unresolved int) {
	if s.ctx.Err() != nil {
		for _, i := range b.indices {
			report(i, driver.Renewal{Err: context.Cause(s.ctx)})
		}
		return 0
	}
	c.mu.Lock()
	over := s.retired && s.users == 0
	fresh := c.cfg.Now().Sub(s.sent) < s.ttl/12 // another batch has renewed it just now
	c.mu.Unlock()
	if over && len(b.holds) == 0 {
		if c.revoke(ctx, s) != nil {
			return 1
		}
		return 0
	}
	var (
		kept, proved sync.WaitGroup
		alive        error
	)
	if !fresh {
		kept.Go(func() {
			_, alive = hedged(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.keepAlive(ctx, s) })
		})
	}
	for from := 0; from < len(b.holds); from += chunk {
		to := min(from+chunk, len(b.holds))
		holds, indices := b.holds[from:to], b.indices[from:to]
		proved.Go(func() {
			errs := c.prove(ctx, holds)
			kept.Wait()
			r := c.validity(s)
			for i, err := range errs {
				switch {
				case errors.Is(alive, errNoSession):
					report(indices[i], driver.Renewal{Err: context.Cause(s.ctx)})
				case err == nil && alive == nil:
					report(indices[i], r)
				case alive == nil || errors.Is(err, driver.ErrNotHeld):
					report(indices[i], driver.Renewal{Err: err})
				default:
					report(indices[i], driver.Renewal{Err: alive})
				}
			}
		})
	}
	kept.Wait()
	if alive == nil && c.doubtful(s) > 0 {
		unresolved = c.sweep(ctx, s)
	} else if alive != nil && !errors.Is(alive, errNoSession) {
		unresolved = c.doubtful(s)
	}
	proved.Wait()
	return unresolved
}

// hedged asks once, and again while there is no answer after one and after two thirds of the time. Requests go to one member
// after the other, and one that is paused says nothing: without this, a lease would depend on which member its few renewals
// meet. f has to be such that asking more than once does no harm.
func hedged[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		result T
		err    error
	}
	const most = 3
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	outcomes := make(chan outcome, most)
	ask := func() {
		result, err := f(ctx)
		outcomes <- outcome{result, err}
	}
	third := time.Second
	if d, ok := ctx.Deadline(); ok {
		third = time.Until(d) / most
	}
	again := time.NewTicker(max(third, time.Millisecond))
	defer again.Stop()
	go ask()
	for asked, pending := 1, 1; ; {
		select {
		case o := <-outcomes:
			if pending--; pending == 0 || o.err == nil || driver.IsAnswer(o.err) || errors.Is(o.err, errNoSession) {
				return o.result, o.err
			}
		case <-again.C:
			if asked < most {
				asked++
				pending++
				go ask()
			}
		}
	}
}

// prove returns for each hold nil if its key is as it was when it was granted.
func (c *conn) prove(ctx context.Context, holds []*hold) []error {
	ops := make([]clientv3.Op, len(holds))
	for i, h := range holds {
		ops[i] = clientv3.OpGet(h.key)
	}
	resp, err := hedged(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		resp, err := c.client.Txn(bare(ctx)).Then(ops...).Commit()
		return resp, c.classify(err)
	})
	errs := make([]error, len(holds))
	for i, h := range holds {
		errs[i] = err
		if err == nil {
			if kv := kvs(resp, i); len(kv) == 0 || kv[0].ModRevision != h.rev {
				errs[i] = fmt.Errorf("%w: the key %q was deleted or replaced", driver.ErrNotHeld, h.key)
				h.mu.Lock()
				h.replaced = true
				h.mu.Unlock()
			}
		}
	}
	return errs
}

// doubtful returns 1 if entries that nobody wants may appear under s.
func (c *conn) doubtful(s *session) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.retired {
		return 1
	}
	return 0
}

// sweep removes the keys of a retired session that no claim speaks for. A key was created after its claim was staked, so
// one that is listed and has no claim now belongs to a request that was given up.
func (c *conn) sweep(ctx context.Context, s *session) (unresolved int) {
	resp, err := c.client.TimeToLive(bare(ctx), s.id, clientv3.WithAttachedKeys())
	if err != nil {
		return 1
	}
	var stray []string
	c.mu.Lock()
	for _, k := range resp.Keys {
		key := string(k)
		if cl := c.claims[key]; strings.HasPrefix(key, c.prefix) && (cl == nil || cl.session != s) {
			stray = append(stray, key)
		}
	}
	c.mu.Unlock()
	for keys := range slices.Chunk(stray, chunk) {
		var (
			ifs  []clientv3.Cmp
			then []clientv3.Op
		)
		for _, key := range keys {
			ifs = append(ifs, clientv3.Compare(clientv3.LeaseValue(key), "=", int64(s.id)))
			then = append(then, clientv3.OpDelete(key))
		}
		if resp, err := c.client.Txn(bare(ctx)).If(ifs...).Then(then...).Commit(); err != nil || !resp.Succeeded {
			unresolved = 1
		}
	}
	return unresolved
}
