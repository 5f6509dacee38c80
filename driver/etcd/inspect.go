package etcd

import (
	"context"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

// Inspect implements driver.Inspector.
func (c *conn) Inspect(ctx context.Context, name string) (driver.Entry, error) {
	e := driver.Entry{Name: name}
	ctx = bare(ctx)
	folder := c.folder(name)
	resp, err := c.client.Txn(ctx).Then(
		clientv3.OpGet(folder, clientv3.WithFirstCreate()...),
		clientv3.OpGet(folder, clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpGet(c.offsetKey()),
	).Commit()
	if err != nil {
		return e, c.classify(err)
	}
	first := kvs(resp, 0)
	if len(first) == 0 {
		return e, nil
	}
	if first[0].Lease == 0 {
		return e, conflict(first[0])
	}
	e.Waiters = int(resp.Responses[1].GetResponseRange().GetCount()) - 1
	if e, err = c.describe(e, first[0], kvs(resp, 2)); err != nil {
		return e, err
	}
	// What is left of the TTL is an extra: the lease may end at this moment, and the user may not be allowed to ask.
	if ttl, err := c.client.TimeToLive(ctx, clientv3.LeaseID(first[0].Lease)); err == nil && ttl.TTL > 0 {
		e.Remaining = time.Duration(ttl.TTL) * time.Second
	}
	return e, nil
}

// List implements driver.Inspector. It reads all keys under the prefix at one revision, in pages.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	const page = 1000
	from, end := c.prefix, clientv3.GetPrefixRangeEnd(c.prefix)
	if from == "" {
		from, end = "\x00", "\x00" // all keys
	}
	ctx = bare(ctx)
	var (
		rev    int64
		offset []*mvccpb.KeyValue
		first  *mvccpb.KeyValue // the oldest key of the folder being read
		name   string
		count  int
	)
	flush := func() (more bool, err error) {
		if first == nil || first.Lease == 0 {
			return true, nil
		}
		e, err := c.describe(driver.Entry{Name: name, Waiters: count - 1}, first, offset)
		if err != nil {
			return false, err
		}
		return yield(e), nil
	}
	for {
		resp, err := c.client.Txn(ctx).Then(
			clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev)),
			clientv3.OpGet(c.offsetKey()),
		).Commit()
		if err != nil {
			return c.classify(err)
		}
		if rev == 0 {
			rev, offset = resp.Header.Revision, kvs(resp, 1)
		}
		list := kvs(resp, 0)
		for _, kv := range list {
			encoded, rest, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), c.prefix), "/")
			n, valid := driver.DecodeName(encoded, safe)
			if !ok || !valid || strings.Contains(rest, "/") {
				continue // somebody else's
			}
			if n != name || first == nil {
				if more, err := flush(); err != nil || !more {
					return err
				}
				first, name, count = kv, n, 0
			}
			count++
			if kv.CreateRevision < first.CreateRevision {
				first = kv
			}
		}
		if len(list) < page {
			_, err := flush()
			return err
		}
		from = string(list[len(list)-1].Key) + "\x00"
	}
}

// describe fills in what the holder's entry says. A native peer's value says nothing, and the peer has no token.
func (c *conn) describe(e driver.Entry, kv *mvccpb.KeyValue, offset []*mvccpb.KeyValue) (driver.Entry, error) {
	e.Held = true
	id := string(kv.Key[strings.LastIndexByte(string(kv.Key), '/')+1:])
	fields := strings.SplitN(string(kv.Value), " ", 3)
	if len(fields) != 3 || fields[0] != id {
		return e, nil
	}
	e.ID, e.Owner = id, fields[2]
	if ms, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
		e.Since = time.UnixMilli(ms)
	}
	var err error
	e.Token, err = c.token(kv.CreateRevision, offset)
	return e, err
}
