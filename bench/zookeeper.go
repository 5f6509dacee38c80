package main

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	_ "github.com/leasekit/locker/driver/zookeeper"
)

func init() { backends["zookeeper"] = prepareZooKeeper }

type silent struct{}

func (silent) Printf(string, ...any) {}

func prepareZooKeeper(ctx context.Context, o options) (*setup, error) {
	if o.addr == "" {
		o.addr = "127.0.0.1:16181"
	}
	newClient := func() (*zk.Conn, error) {
		c, _, err := zk.Connect([]string{o.addr}, o.ttl, zk.WithLogger(silent{}), zk.WithLogInfo(false))
		return c, err
	}
	admin, err := newClient()
	if err != nil {
		return nil, err
	}
	s := &setup{server: "ZooKeeper at " + o.addr, close: admin.Close, ping: func(context.Context) error {
		_, _, err := admin.Exists("/bench-ping")
		return err
	}}
	if err := s.ping(ctx); err != nil {
		s.close()
		return nil, err
	}
	with := func(make func(*zk.Conn) acquire) func(context.Context, bool) (client, error) {
		return func(context.Context, bool) (client, error) {
			c, err := newClient()
			if err != nil {
				return client{}, err
			}
			return client{acquire: make(c), close: c.Close}, nil
		}
	}
	s.subjects = []subject{
		{name: "raw client", alone: true, settings: "create an ephemeral sequential node, list its siblings, delete it", open: with(rawZooKeeper)},
		{name: "locker", settings: "locker.Open(zk://...): token, renewal and waiting", open: ofURL("zk://"+o.addr+"/bench-locker", o)},
		{name: "driver alone", alone: true, settings: "the driver without the engine", open: ofDriver("zk://"+o.addr+"/bench-driver", o)},
		{name: "zk.Lock", peer: true, settings: "zk.NewLock on one connection of a client", open: with(func(c *zk.Conn) acquire {
			return func(_ context.Context, name string) (func(context.Context) error, error) {
				l := zk.NewLock(c, "/bench-peer/"+flat(name), zk.WorldACL(zk.PermAll))
				return func(context.Context) error { return l.Unlock() }, l.Lock()
			}
		})},
	}
	return s, nil
}

// flat makes one node's name of a lock's.
func flat(name string) string { return strings.ReplaceAll(name, "/", "-") }

func rawZooKeeper(c *zk.Conn) acquire {
	acl := zk.WorldACL(zk.PermAll)
	create := func(folder string) (string, error) {
		return c.Create(folder+"/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, acl)
	}
	return func(_ context.Context, name string) (func(context.Context) error, error) {
		folder := "/bench-raw/" + flat(name)
		node, err := create(folder)
		if errors.Is(err, zk.ErrNoNode) {
			for _, parent := range []string{"/bench-raw", folder} {
				if _, err := c.Create(parent, nil, 0, acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
					return nil, err
				}
			}
			node, err = create(folder)
		}
		if err != nil {
			return nil, err
		}
		nodes, _, err := c.Children(folder)
		if err == nil && slices.Min(nodes) != path.Base(node) {
			err = errHeld
		}
		return func(context.Context) error { return c.Delete(node, -1) }, err
	}
}
