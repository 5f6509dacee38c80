package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/internal/testserver"
	"go.uber.org/zap"
)

func TestConformance(t *testing.T) {
	conformance.Contender()
	s := testserver.Private(t, testserver.Etcd, nil)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	const ttl = time.Second // as the test servers grant it
	do := func(a testserver.Action) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return s.Do(ctx, a) }
	}
	conformance.Run(t, conformance.Backend{
		Name:     "etcd",
		Addrs:    []string{s.Addr},
		URL:      func(addrs []string) string { return "etcd://" + addrs[0] + "/conformance" },
		TTL:      ttl,
		TakeOver: ttl + time.Second,
		Admin:    operator{c}.admin(),
		Servers: conformance.Servers{
			Stop: do(testserver.Kill), Start: do(testserver.Start),
			Pause: do(testserver.Pause), Resume: do(testserver.Resume),
		},
		RequireAll: true,
	})
}

// operator acts on a server by hand.
type operator struct{ c *clientv3.Client }

// queue returns the keys of a name, the holder's first.
func (o operator) queue(ctx context.Context, name string) ([]*mvccpb.KeyValue, error) {
	resp, err := o.c.Get(ctx, "/conformance/"+name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	return resp.Kvs, nil
}

func (o operator) at(i int, do func(ctx context.Context, kv *mvccpb.KeyValue) error) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		q, err := o.queue(ctx, name)
		if err == nil && len(q) <= i {
			err = fmt.Errorf("there are only %d keys", len(q))
		}
		if err != nil {
			return err
		}
		return do(ctx, q[i])
	}
}

func (o operator) admin() conformance.Admin {
	const other = "/somebody-else"
	remove := func(ctx context.Context, kv *mvccpb.KeyValue) error {
		if strings.HasSuffix(string(kv.Key), other) { // with its lease, which would look like a leak
			_, err := o.c.Revoke(ctx, clientv3.LeaseID(kv.Lease))
			return err
		}
		_, err := o.c.Delete(ctx, string(kv.Key))
		return err
	}
	return conformance.Admin{
		Entry: func(ctx context.Context, name string) (conformance.Entry, error) {
			q, err := o.queue(ctx, name)
			if err != nil || len(q) == 0 {
				return conformance.Entry{}, err
			}
			lease, err := o.c.TimeToLive(ctx, clientv3.LeaseID(q[0].Lease))
			return conformance.Entry{Value: fmt.Sprint(q[0]), Remaining: time.Duration(lease.TTL) * time.Second}, err
		},
		Delete:     o.at(0, remove),
		DropWaiter: o.at(1, remove),
		Replace: o.at(0, func(ctx context.Context, kv *mvccpb.KeyValue) error {
			lease, err := o.c.Grant(ctx, 60)
			if err != nil {
				return err
			}
			key := string(kv.Key[:strings.LastIndexByte(string(kv.Key), '/')]) + other
			_, err = o.c.Txn(ctx).Then(clientv3.OpDelete(string(kv.Key)), clientv3.OpPut(key, "somebody else", clientv3.WithLease(lease.ID))).Commit()
			return err
		}),
		EndSession: o.at(0, func(ctx context.Context, kv *mvccpb.KeyValue) error {
			_, err := o.c.Revoke(ctx, clientv3.LeaseID(kv.Lease))
			return err
		}),
		Occupy: func(ctx context.Context, name string) (func(context.Context) error, error) {
			key := "/conformance/" + name + "/foreign"
			_, err := o.c.Put(ctx, key, "data")
			return func(ctx context.Context) error {
				resp, err := o.c.Delete(ctx, key, clientv3.WithPrevKV())
				if err == nil && (len(resp.PrevKvs) != 1 || string(resp.PrevKvs[0].Value) != "data" || resp.PrevKvs[0].Version != 1) {
					err = errors.New("the foreign key isn't what it was")
				}
				return err
			}, err
		},
		Entries: func(ctx context.Context) (keys []string, err error) {
			resp, err := o.c.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err == nil {
				for _, kv := range resp.Kvs {
					keys = append(keys, string(kv.Key))
				}
			}
			return keys, err
		},
		Sessions: func(ctx context.Context) (int, error) {
			resp, err := o.c.Leases(ctx)
			if err != nil {
				return 0, err
			}
			return len(resp.Leases), nil
		},
	}
}
