package main

import (
	"context"
	"io"
	"log"
	"net/http"

	"github.com/hashicorp/consul/api"

	_ "github.com/leasekit/locker/driver/consul"
)

func init() { backends["consul"] = prepareConsul }

func prepareConsul(ctx context.Context, o options) (*setup, error) {
	if o.addr == "" {
		o.addr = "127.0.0.1:16850"
	}
	log.SetOutput(io.Discard) // net/http prints a line for each connection that the server refuses
	newClient := func() (*api.Client, error) { return api.NewClient(&api.Config{Address: o.addr}) }
	// The agent refuses more than 200 connections from one address, idle ones included. Left to its default, the client
	// library's transport keeps three of them and makes a new one for nearly each request of 64 goroutines.
	newRaw := func() (*api.Client, error) {
		t := &http.Transport{MaxConnsPerHost: 64, MaxIdleConnsPerHost: 64}
		return api.NewClient(&api.Config{Address: o.addr, HttpClient: &http.Client{Transport: t}})
	}
	admin, err := newClient()
	if err != nil {
		return nil, err
	}
	self, err := admin.Agent().Self()
	if err != nil {
		return nil, err
	}
	version, _ := self["Config"]["Version"].(string)
	s := &setup{server: "Consul " + version + " at " + o.addr, close: func() {}, ping: func(ctx context.Context) error {
		_, _, err := admin.KV().Get("bench-ping", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		return err
	}}
	s.subjects = []subject{
		{name: "raw client", alone: true, settings: "Txn lock under one session, then KV release; up to 64 connections", open: func(ctx context.Context, _ bool) (client, error) {
			c, err := newRaw()
			if err != nil {
				return client{}, err
			}
			return rawConsul(c, o)
		}},
		{name: "api.Lock", peer: true, settings: "client.LockKey, which makes a session each time", open: func(context.Context, bool) (client, error) {
			c, err := newClient()
			if err != nil {
				return client{}, err
			}
			return client{
				acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
					l, err := c.LockKey("bench-peer/" + name)
					if err != nil {
						return nil, err
					}
					lost, err := l.Lock(ctx.Done())
					if err == nil && lost == nil {
						err = ctx.Err()
					}
					return func(context.Context) error { return l.Unlock() }, err
				},
				close: func() {},
			}, nil
		}},
		{name: "locker", settings: "locker.Open(consul://...): token, renewal and waiting; lockdelay=0s", open: ofURL("consul://"+o.addr+"/bench-locker?lockdelay=0s", o)},
		{name: "driver alone", alone: true, settings: "the driver without the engine", open: ofDriver("consul://"+o.addr+"/bench-driver?lockdelay=0s", o)},
	}
	return s, nil
}

func rawConsul(c *api.Client, o options) (client, error) {
	session, _, err := c.Session().CreateNoChecks(&api.SessionEntry{TTL: o.ttl.String()}, nil)
	if err != nil {
		return client{}, err
	}
	done := make(chan struct{})
	go c.Session().RenewPeriodic(o.ttl.String(), session, nil, done)
	return client{
		acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			key, value := "bench-raw/"+name, []byte(random())
			ok, _, _, err := c.Txn().Txn(api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVLock, Key: key, Value: value, Session: session}}},
				(&api.QueryOptions{}).WithContext(ctx))
			if err == nil && !ok {
				err = errHeld
			}
			return func(ctx context.Context) error {
				ok, _, err := c.KV().Release(&api.KVPair{Key: key, Value: value, Session: session}, (&api.WriteOptions{}).WithContext(ctx))
				if err == nil && !ok {
					err = errNotHeld
				}
				return err
			}, err
		},
		close: func() { close(done) },
	}, nil
}
