package consul

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/internal/testserver"
)

func TestConformance(t *testing.T) {
	conformance.Contender()
	// It keeps its data over a restart, as the shared server doesn't.
	s := testserver.Private(t, testserver.Consul, &testserver.Options{Args: []string{
		"-dev=false", "-server", "-bootstrap-expect=1", "-data-dir=/consul/data", "-bind=127.0.0.1", "-hcl=performance { raft_multiplier = 1 }",
	}})
	// The operator keeps no connections, whose goroutines would look like leaks.
	config := api.DefaultNonPooledConfig()
	config.Address = s.Addr
	client, err := api.NewClient(config)
	require.NoError(t, err)
	do := func(a testserver.Action) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return s.Do(ctx, a) }
	}
	conformance.Run(t, conformance.Backend{
		Name:     "consul",
		Addrs:    []string{s.Addr},
		URL:      func(addrs []string) string { return "consul://" + addrs[0] + "?lockdelay=0s" },
		TTL:      time.Second, // the server's minimum
		TakeOver: 2 * time.Second,
		Admin:    operator{client, settings{prefix: defaultPrefix}}.admin(),
		Servers: conformance.Servers{
			Stop: do(testserver.Kill), Start: do(testserver.Start),
			Pause: do(testserver.Pause), Resume: do(testserver.Resume),
		},
		RequireAll: true,
	})
}

// operator acts on a server by hand.
type operator struct {
	c *api.Client
	settings
}

func (o operator) get(ctx context.Context, name string) (*api.KVPair, error) {
	q := &api.QueryOptions{RequireConsistent: true}
	e, _, err := o.c.KV().Get(o.key(name), q.WithContext(ctx))
	return e, err
}

func (o operator) admin() conformance.Admin {
	held := func(ctx context.Context, name string) (*api.KVPair, error) {
		e, err := o.get(ctx, name)
		if err == nil && (e == nil || e.Session == "") {
			err = errors.New("it isn't locked")
		}
		return e, err
	}
	return conformance.Admin{
		Entry: func(ctx context.Context, name string) (conformance.Entry, error) {
			e, err := o.get(ctx, name)
			if err != nil || e == nil || e.Session == "" {
				return conformance.Entry{}, err
			}
			return conformance.Entry{Value: e.Session + " " + string(e.Value)}, nil
		},
		Delete: func(ctx context.Context, name string) error {
			_, err := held(ctx, name)
			if err == nil {
				_, err = o.c.KV().Delete(o.key(name), new(api.WriteOptions).WithContext(ctx))
			}
			return err
		},
		Replace: func(ctx context.Context, name string) error {
			if _, err := held(ctx, name); err != nil {
				return err
			}
			id, _, err := o.c.Session().CreateNoChecks(&api.SessionEntry{Name: "somebody else", TTL: "1h"}, nil)
			if err != nil {
				return err
			}
			ok, resp, _, err := o.c.Txn().Txn(api.TxnOps{
				{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: o.key(name)}},
				{KV: &api.KVTxnOp{Verb: api.KVLock, Key: o.key(name), Session: id, Flags: api.LockFlagValue}},
			}, nil)
			if err == nil && !ok {
				err = fmt.Errorf("refused: %v", resp.Errors[0])
			}
			return err
		},
		EndSession: func(ctx context.Context, name string) error {
			e, err := held(ctx, name)
			if err == nil {
				_, err = o.c.Session().Destroy(e.Session, nil)
			}
			return err
		},
		DropWaiter: func(ctx context.Context, name string) error {
			all, _, err := o.c.Session().List(new(api.QueryOptions).WithContext(ctx))
			if err != nil {
				return err
			}
			for _, s := range all {
				if strings.Contains(s.Name, name) {
					_, err := o.c.Session().Destroy(s.ID, nil)
					return err
				}
			}
			return errors.New("the waiter has no session")
		},
		Occupy: func(ctx context.Context, name string) (func(context.Context) error, error) {
			if _, err := o.c.KV().Put(&api.KVPair{Key: o.key(name), Value: []byte("data")}, nil); err != nil {
				return nil, err
			}
			before, err := o.get(ctx, name)
			return func(ctx context.Context) error {
				now, err := o.get(ctx, name)
				if err == nil && (now == nil || now.ModifyIndex != before.ModifyIndex) {
					err = fmt.Errorf("the key isn't what it was: %v", now)
				}
				_, delErr := o.c.KV().Delete(o.key(name), nil)
				return errors.Join(err, delErr)
			}, err
		},
		Entries: func(ctx context.Context) (keys []string, err error) {
			q := &api.QueryOptions{RequireConsistent: true}
			all, _, err := o.c.KV().List(o.under(), q.WithContext(ctx))
			for _, e := range all {
				if e.Session != "" {
					keys = append(keys, e.Key)
				}
			}
			return keys, err
		},
		Sessions: func(ctx context.Context) (n int, err error) {
			all, _, err := o.c.Session().List(new(api.QueryOptions).WithContext(ctx))
			for _, s := range all {
				if strings.HasPrefix(s.Name, "locker ") {
					n++
				}
			}
			return n, err
		},
	}
}
