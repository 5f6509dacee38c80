package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

// TryLock implements driver.Conn with one transaction: if there is no key under the name's folder, create this one's. Only
// if there is one, another request looks what it is: branches that aren't taken cost the server a tenth of its work.
func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	folder, key := c.folder(req.Name), c.key(req)
	s, cl, resp, err := c.enter(ctx, req, func(ctx context.Context, s *session) (*clientv3.TxnResponse, error) {
		return c.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(folder).WithPrefix(), "=", 0)).
			Then(clientv3.OpPut(key, value(req), clientv3.WithLease(s.id)), clientv3.OpGet(c.offsetKey())).
			Commit()
	})
	if err != nil {
		return nil, err
	}
	if resp.Succeeded {
		return c.granted(ctx, req, s, cl, resp.Header.Revision, kvs(resp, 1))
	}
	look, stop := bounded(ctx)
	defer stop()
	resp, err = c.client.Txn(look).Then(clientv3.OpGet(key), c.getFirst(folder), clientv3.OpGet(c.offsetKey())).Commit()
	if err != nil {
		return nil, c.refused(ctx, key, c.classify(err))
	}
	own, first := kvs(resp, 0), kvs(resp, 1)
	switch {
	case len(first) == 0: // freed between the two requests
		c.drop(ctx, key)
		return nil, driver.ErrHeld
	case len(own) > 0 && own[0].Lease != int64(s.id):
		return nil, c.evict(ctx, own[0])
	case len(own) > 0 && first[0].CreateRevision == own[0].CreateRevision:
		c.found(cl)
		return c.granted(ctx, req, s, cl, own[0].CreateRevision, kvs(resp, 2))
	case len(own) > 0: // a place in the queue
		if err := c.remove(ctx, key); err != nil {
			return nil, err
		}
	}
	c.drop(ctx, key)
	if first[0].Lease == 0 {
		return nil, conflict(first[0])
	}
	return nil, driver.ErrHeld
}

// enter commits a transaction that may create the entry of req, under a session that lives.
func (c *conn) enter(ctx context.Context, req driver.Request, txn func(context.Context, *session) (*clientv3.TxnResponse, error)) (*session, *claim, *clientv3.TxnResponse, error) {
	key := c.key(req)
	for renewed := false; ; renewed = true {
		cl, err := c.stake(ctx, key)
		if err != nil {
			return nil, nil, nil, c.refused(ctx, key, err)
		}
		s := cl.session
		resp, err := c.put(ctx, cl, func(ctx context.Context) (*clientv3.TxnResponse, error) { return txn(ctx, s) })
		if errors.Is(err, errNoSession) {
			// Nothing was written: the lease is gone, and with it what was held under it.
			err = c.lose(s, "it has expired or was revoked")
			if !renewed {
				continue
			}
		}
		if err != nil {
			return nil, nil, nil, c.refused(ctx, key, err)
		}
		return s, cl, resp, nil
	}
}

// refused ends the claim of a key if err is an answer: nobody will undo it.
func (c *conn) refused(ctx context.Context, key string, err error) error {
	if driver.IsAnswer(err) {
		c.drop(ctx, key)
	}
	return err
}

// getFirst reads the oldest key of a folder: the one that holds the name. Not with WithKeysOnly, here and elsewhere: since
// 3.7 that leaves out the lease too.
func (c *conn) getFirst(folder string) clientv3.Op {
	return clientv3.OpGet(folder, clientv3.WithFirstCreate()...)
}

func kvs(resp *clientv3.TxnResponse, i int) []*mvccpb.KeyValue {
	r, ok := resp.Responses[i].Response.(*pb.ResponseOp_ResponseRange)
	if !ok {
		return nil
	}
	return r.ResponseRange.Kvs
}

// value is what people see of an entry.
func value(req driver.Request) string {
	return req.ID + " " + strconv.FormatInt(time.Now().UnixMilli(), 10) + " " + req.Owner
}

// granted returns the hold of a key that was first in its folder when offset was read.
func (c *conn) granted(ctx context.Context, req driver.Request, s *session, cl *claim, rev int64, offset []*mvccpb.KeyValue) (driver.Hold, error) {
	key := c.key(req)
	token, err := c.token(rev, offset)
	if err != nil { // somebody else's key where the offset should be
		if err := c.remove(ctx, key); err != nil {
			return nil, err
		}
		c.drop(ctx, key)
		return nil, err
	}
	c.mu.Lock()
	cl.lost = req.Lost
	c.mu.Unlock()
	if s.ctx.Err() != nil { // lost while the reply was on its way: whoever told the others didn't know of this one
		return nil, fmt.Errorf("%w %x any more", errNoSession, s.id)
	}
	return &hold{conn: c, session: s, key: key, rev: rev, grant: driver.Grant{Token: token, Renewal: c.validity(s)}}, nil
}

// found notes that a request of cl whose outcome wasn't known has created its entry.
func (c *conn) found(cl *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl.unknown = max(cl.unknown-1, 0)
}

func conflict(kv *mvccpb.KeyValue) error {
	return fmt.Errorf("%w: the key %q belongs to no lease", driver.ErrConflict, kv.Key)
}

// evict removes an entry of this process that belongs to an earlier session.
func (c *conn) evict(ctx context.Context, kv *mvccpb.KeyValue) error {
	ctx, stop := bounded(ctx)
	defer stop()
	_, err := c.client.Txn(ctx).
		If(clientv3.Compare(clientv3.LeaseValue(string(kv.Key)), "=", kv.Lease)).
		Then(clientv3.OpDelete(string(kv.Key))).
		Commit()
	if err != nil {
		return c.classify(err)
	}
	return fmt.Errorf("etcd: an entry of the lease before, %x, was in the way and has been removed", kv.Lease)
}

// remove deletes a key that is this process' own by its name.
func (c *conn) remove(ctx context.Context, key string) error {
	ctx, stop := bounded(ctx)
	defer stop()
	_, err := c.client.Delete(ctx, key)
	return c.classify(err)
}

// Undo implements driver.Conn. If the outcome of a request isn't known, its entry can still appear after the deletion:
// then the session is given up.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	key := c.key(req)
	for {
		c.mu.Lock()
		cl := c.claims[key]
		if cl == nil {
			c.mu.Unlock()
			return nil // nothing was sent, or its outcome is known and was dealt with
		}
		flying, entry := cl.flying, cl.entry
		c.mu.Unlock()
		if flying == nil && !entry {
			c.drop(ctx, key)
			return nil
		}
		if flying == nil {
			break
		}
		select {
		case <-flying:
		case <-ctx.Done():
			return c.classify(ctx.Err())
		}
	}
	if err := c.remove(ctx, key); err != nil && !driver.IsPermanent(err) {
		return err
	} else if err != nil {
		c.mu.Lock()
		if cl := c.claims[key]; cl != nil {
			cl.unknown++ // it can't be removed as long as its session lives
		}
		c.mu.Unlock()
	}
	c.drop(ctx, key)
	return nil
}

// hold is an entry that was granted.
type hold struct {
	conn    *conn
	session *session
	key     string
	rev     int64 // that created the key; every change of it moves the key's modification revision
	grant   driver.Grant

	mu       sync.Mutex
	unsure   bool // a release was sent and its outcome isn't known
	replaced bool // a renewal has found the key changed or gone
}

// Grant implements driver.Hold.
func (h *hold) Grant() driver.Grant { return h.grant }

// Release implements driver.Hold: it deletes the key. No condition is needed, and one would cost the server a sixth of its
// work: the identity in the key's name is this acquisition's alone. Only what a renewal has found there, written over the
// entry by hand, is left alone.
func (h *hold) Release(ctx context.Context) error {
	c := h.conn
	if h.session.ctx.Err() != nil {
		c.drop(ctx, h.key)
		return context.Cause(h.session.ctx)
	}
	h.mu.Lock()
	replaced := h.replaced
	h.mu.Unlock()
	if replaced {
		c.drop(ctx, h.key)
		return fmt.Errorf("%w: the key %q was deleted or replaced", driver.ErrNotHeld, h.key)
	}
	ctx, stop := context.WithTimeout(bare(ctx), attempt/2) // so that the engine's next attempt, to another member, has time
	defer stop()
	resp, err := c.client.Delete(ctx, h.key)
	h.mu.Lock()
	unsure := h.unsure
	h.unsure = unsure || err != nil
	h.mu.Unlock()
	if err != nil {
		return c.classify(err)
	}
	c.drop(ctx, h.key)
	if resp.Deleted == 0 && !unsure {
		return fmt.Errorf("%w: the key %q was deleted", driver.ErrNotHeld, h.key)
	}
	return nil
}
