package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/leasekit/locker/driver"
)

// recheck is how long a waiter trusts its watches: a member that was paused tells nothing, and doesn't say so.
const recheck = 3 * time.Second

// Lock implements driver.Queuer. The place in the queue is the same key that TryLock creates, and it is kept when Lock
// fails with an unknown.
func (c *conn) Lock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	folder, key := c.folder(req.Name), c.key(req)
	s, cl, resp, err := c.enter(ctx, req, func(ctx context.Context, s *session) (*clientv3.TxnResponse, error) {
		ctx, stop := bounded(ctx)
		defer stop()
		return c.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, value(req), clientv3.WithLease(s.id)), c.getFirst(folder), clientv3.OpGet(c.offsetKey())).
			Else(clientv3.OpGet(key), c.getFirst(folder), clientv3.OpGet(c.offsetKey())).
			Commit()
	})
	if err != nil {
		return nil, err
	}
	rev := resp.Header.Revision
	if !resp.Succeeded {
		own := kvs(resp, 0)[0]
		if own.Lease != int64(s.id) {
			return nil, c.evict(ctx, own)
		}
		c.found(cl)
		rev = own.CreateRevision
	}
	if first := kvs(resp, 1); len(first) > 0 && first[0].CreateRevision == rev {
		return c.granted(ctx, req, s, cl, rev, kvs(resp, 2))
	}
	for failed := 0; ; {
		v, err := c.look(ctx, folder, key, rev)
		switch {
		case err != nil:
			return nil, err
		case v.own == nil || v.own.CreateRevision != rev || v.own.Lease != int64(s.id):
			return nil, fmt.Errorf("etcd: the place in the queue, %q, has gone", key)
		case v.before == nil:
			if err := c.refresh(ctx, s); err != nil {
				return nil, err
			}
			return c.granted(ctx, req, s, cl, rev, v.offset)
		case v.before.Lease == 0:
			if err := c.remove(ctx, key); err != nil {
				return nil, err
			}
			c.drop(ctx, key)
			return nil, conflict(v.before)
		}
		if c.await(ctx, s, string(v.before.Key), key, v.rev+1) {
			failed = 0
		} else {
			failed++
			pause(ctx, min(time.Duration(failed)*50*time.Millisecond, time.Second))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if s.ctx.Err() != nil {
			return nil, fmt.Errorf("etcd: the place in the queue, %q, has gone: no lease %x", key, s.id)
		}
	}
}

// view is the queue as a waiter sees it, at one revision.
type view struct {
	own, before *mvccpb.KeyValue // nil if not there
	offset      []*mvccpb.KeyValue
	rev         int64
}

// look reads, linearizably, what a place in the queue is worth: that it is still there, who is before it, and the offset
// that counts if nobody is.
func (c *conn) look(ctx context.Context, folder, key string, rev int64) (v view, err error) {
	ctx, stop := bounded(ctx)
	defer stop()
	resp, err := c.client.Txn(ctx).Then(
		clientv3.OpGet(key),
		clientv3.OpGet(folder, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(rev-1))...),
		clientv3.OpGet(c.offsetKey()),
	).Commit()
	if err != nil {
		return v, c.classify(err)
	}
	if kv := kvs(resp, 0); len(kv) > 0 {
		v.own = kv[0]
	}
	if kv := kvs(resp, 1); len(kv) > 0 {
		v.before = kv[0]
	}
	v.offset, v.rev = kvs(resp, 2), resp.Header.Revision
	return v, nil
}

// refresh renews a session of which less than half of the TTL is left.
func (c *conn) refresh(ctx context.Context, s *session) error {
	if s.ctx.Err() != nil {
		return errNoSession
	}
	r := c.validity(s)
	if c.cfg.Now().Sub(r.Sent) < r.TTL/2 {
		return nil
	}
	ctx, stop := bounded(ctx)
	defer stop()
	return c.keepAlive(ctx, s)
}

// await returns when something may have changed since the revision before rev: the key before was deleted, the own key
// was touched, the session was lost, or it is time to look anyway. It reports false if the watches failed.
func (c *conn) await(ctx context.Context, s *session, before, own string, rev int64) (ok bool) {
	wctx, stop := context.WithTimeout(c.watching(), recheck+rand.N(recheck/4))
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	defer context.AfterFunc(s.ctx, stop)()
	gone := c.client.Watch(wctx, before, clientv3.WithRev(rev), clientv3.WithFilterPut())
	touched := c.client.Watch(wctx, own, clientv3.WithRev(rev))
	for {
		var r clientv3.WatchResponse
		select {
		case <-wctx.Done():
			return true
		case r = <-gone:
		case r = <-touched:
		}
		switch {
		case wctx.Err() != nil || len(r.Events) > 0:
			return true
		case r.Created || r.IsProgressNotify():
		default: // it failed: compacted, no leader, an expired token
			return false
		}
	}
}

// watching returns the context of watches. The client library tells streams apart by the metadata of contexts, so it is
// always the same but for what has to differ: a stream that was opened with a token that has expired can't watch
// anything new.
func (c *conn) watching() context.Context {
	md := metadata.MD{}
	if c.login != nil {
		n, _ := c.login.logins()
		md.Set("locker-login", fmt.Sprint(n))
	}
	return clientv3.WithRequireLeader(metadata.NewOutgoingContext(c.ctx, md))
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
