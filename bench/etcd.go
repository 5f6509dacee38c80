package main

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	_ "github.com/leasekit/locker/driver/etcd"
)

func init() { backends["etcd"] = prepareEtcd }

func prepareEtcd(ctx context.Context, o options) (*setup, error) {
	if o.addr == "" {
		o.addr = "127.0.0.1:16679"
	}
	newClient := func() (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{Endpoints: []string{o.addr}, Logger: zap.NewNop()})
	}
	admin, err := newClient()
	if err != nil {
		return nil, err
	}
	s := &setup{close: func() { admin.Close() }, ping: func(ctx context.Context) error {
		_, err := admin.Get(ctx, "bench-ping")
		return err
	}}
	status, err := admin.Status(ctx, o.addr)
	if err != nil {
		s.close()
		return nil, err
	}
	s.server = "etcd " + status.Version + " at " + o.addr
	with := func(make func(context.Context, *clientv3.Client) (acquire, error)) func(context.Context, bool) (client, error) {
		return func(ctx context.Context, _ bool) (client, error) {
			c, err := newClient()
			if err != nil {
				return client{}, err
			}
			a, err := make(ctx, c)
			return client{acquire: a, close: func() { c.Close() }}, err
		}
	}
	s.subjects = []subject{
		{name: "raw client", alone: true, settings: "Txn that creates the key under one lease, then Delete", open: with(func(ctx context.Context, c *clientv3.Client) (acquire, error) {
			return rawEtcd(ctx, c, o)
		})},
		{name: "locker", settings: "locker.Open(etcd://...): token, renewal and waiting", open: ofURL("etcd://"+o.addr+"/bench-locker", o)},
		{name: "driver alone", alone: true, settings: "the driver without the engine", open: ofDriver("etcd://"+o.addr+"/bench-driver", o)},
		{name: "session shared", peer: true, settings: "concurrency.NewMutex on one session of a client", open: with(func(_ context.Context, c *clientv3.Client) (acquire, error) {
			session, err := concurrency.NewSession(c, concurrency.WithTTL(int(o.ttl.Seconds())))
			return func(ctx context.Context, name string) (func(context.Context) error, error) {
				m := concurrency.NewMutex(session, "/bench-shared/"+name)
				return m.Unlock, m.Lock(ctx)
			}, err
		})},
		{name: "session each", peer: true, settings: "concurrency.NewMutex, each on a session of its own", open: with(func(_ context.Context, c *clientv3.Client) (acquire, error) {
			return func(ctx context.Context, name string) (func(context.Context) error, error) {
				session, err := concurrency.NewSession(c, concurrency.WithTTL(int(o.ttl.Seconds())), concurrency.WithContext(ctx))
				if err != nil {
					return nil, err
				}
				m := concurrency.NewMutex(session, "/bench-each/"+name)
				return func(ctx context.Context) error {
					defer session.Close()
					return m.Unlock(ctx)
				}, m.Lock(ctx)
			}, nil
		})},
	}
	return s, nil
}

func rawEtcd(ctx context.Context, c *clientv3.Client, o options) (acquire, error) {
	lease, err := c.Grant(ctx, int64(o.ttl.Seconds()))
	if err != nil {
		return nil, err
	}
	if _, err := c.KeepAlive(context.WithoutCancel(ctx), lease.ID); err != nil {
		return nil, err
	}
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		key := "/bench-raw/" + name
		resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, random(), clientv3.WithLease(lease.ID))).Commit()
		if err == nil && !resp.Succeeded {
			err = errHeld
		}
		return func(ctx context.Context) error {
			resp, err := c.Delete(ctx, key)
			if err == nil && resp.Deleted != 1 {
				err = errNotHeld
			}
			return err
		}, err
	}, nil
}
