package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

// token is the create revision plus the prefix's offset.
func (c *conn) token(rev int64, offset []*mvccpb.KeyValue) (uint64, error) {
	n, err := c.parseOffset(offset)
	if err != nil {
		return 0, err
	}
	if rev < 1 || n > math.MaxInt64-rev {
		return 0, fmt.Errorf("%w: revision %d and offset %d make no token", driver.ErrConflict, rev, n)
	}
	return uint64(n + rev), nil
}

func (c *conn) parseOffset(kv []*mvccpb.KeyValue) (int64, error) {
	if len(kv) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(kv[0].Value), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: the key %q should hold the offset of tokens and holds something else", driver.ErrConflict, c.offsetKey())
	}
	return n, nil
}

// Advance implements driver.Advancer by raising the offset of the prefix. Every later holder of the name has a greater
// create revision than h and reads the offset at its grant, which is after h has gone.
func (c *conn) Advance(ctx context.Context, h driver.Hold, floor uint64) error {
	own, ok := h.(*hold)
	if !ok || own.conn != c {
		return errors.New("etcd: Advance with another connection's hold")
	}
	if floor > math.MaxInt64 {
		return fmt.Errorf("%w: no token can be above %d", driver.ErrConfig, floor)
	}
	if own.session.ctx.Err() != nil {
		return context.Cause(own.session.ctx)
	}
	want := int64(floor) - own.rev
	if want <= 0 {
		return nil
	}
	key := c.offsetKey()
	var mod int64 // the offset's modification revision as last seen; 0 where it doesn't exist
	for {
		resp, err := c.client.Txn(bare(ctx)).
			If(clientv3.Compare(clientv3.ModRevision(own.key), "=", own.rev), clientv3.Compare(clientv3.ModRevision(key), "=", mod)).
			Then(clientv3.OpPut(key, strconv.FormatInt(want, 10))).
			Else(clientv3.OpGet(own.key), clientv3.OpGet(key)).
			Commit()
		if err != nil {
			return c.classify(err)
		}
		if resp.Succeeded {
			return nil
		}
		if kv := kvs(resp, 0); len(kv) == 0 || kv[0].ModRevision != own.rev {
			return fmt.Errorf("%w: the key %q was deleted or replaced", driver.ErrNotHeld, own.key)
		}
		offset := kvs(resp, 1)
		stored, err := c.parseOffset(offset)
		if err != nil {
			return err
		}
		if stored >= want {
			return nil
		}
		mod = 0
		if len(offset) > 0 {
			mod = offset[0].ModRevision
		}
	}
}
