package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/internal/testserver"
)

func TestConformance(t *testing.T)       { standalone(t, testserver.Redis) }
func TestConformanceRedis8(t *testing.T) { standalone(t, testserver.Redis8) }
func TestConformanceValkey(t *testing.T) { standalone(t, testserver.Valkey) }

func standalone(t *testing.T, name testserver.Name) {
	conformance.Contender()
	s := testserver.Private(t, name, &testserver.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "no"}}) // what a killed server has written stays
	do := func(a testserver.Action) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return s.Do(ctx, a) }
	}
	conformance.Run(t, conformance.Backend{
		Name:     string(name),
		Addrs:    []string{s.Addr},
		URL:      func(addrs []string) string { return "redis://" + addrs[0] },
		TTL:      time.Second,
		TakeOver: time.Second,
		Admin:    operator{admin(t, s)}.admin(),
		Servers: conformance.Servers{
			Stop: do(testserver.Kill), Start: do(testserver.Start),
			Pause: do(testserver.Pause), Resume: do(testserver.Resume),
		},
		Excuses: map[string]string{
			"Admin.EndSession": "there are no sessions",
			"Admin.Sessions":   "there are no sessions",
			"Admin.DropWaiter": "there is no queue",
		},
		RequireAll: true,
	})
}

// The suite behind Sentinel and on a cluster, whose members keep their data over a restart because it is saved before.
func TestConformanceSentinel(t *testing.T) {
	conformance.Contender()
	m := testserver.Group(t, testserver.Sentinel)
	c := failoverClient(t, m)
	group(t, "redis+sentinel", m, 2, c, func(addrs []string) string {
		return "test+sentinel://" + strings.Join(addrs[2:], ",") + "/main?" + viaParam(m[:2], addrs)
	})
}

func TestConformanceCluster(t *testing.T) {
	conformance.Contender()
	m := testserver.Group(t, testserver.RedisCluster)
	c := clusterClient(t, m)
	if err := c.ForEachMaster(t.Context(), func(ctx context.Context, c *goredis.Client) error { return c.FlushDB(ctx).Err() }); err != nil {
		t.Fatal(err)
	}
	group(t, "redis+cluster", m, len(m), c, func(addrs []string) string {
		return "test+cluster://" + strings.Join(addrs, ",") + "?" + viaParam(m, addrs)
	})
}

// group runs the suite on a group, whose first members have data.
func group(t *testing.T, name string, m []*testserver.Server, data int, c goredis.UniversalClient, url func([]string) string) {
	var addrs []string
	for _, s := range m {
		addrs = append(addrs, s.Addr)
	}
	do := func(a testserver.Action) func(context.Context, int) error {
		return func(ctx context.Context, i int) error {
			if a == testserver.Kill && i < data {
				if err := admin(t, m[i]).Save(ctx).Err(); err != nil {
					return err
				}
			}
			return m[i].Do(ctx, a)
		}
	}
	conformance.Run(t, conformance.Backend{
		Name:     name,
		Addrs:    addrs,
		URL:      url,
		TTL:      time.Second,
		TakeOver: time.Second,
		Admin:    operator{c}.admin(),
		Servers: conformance.Servers{
			Stop: do(testserver.Kill), Start: do(testserver.Start),
			Pause: do(testserver.Pause), Resume: do(testserver.Resume),
		},
		Excuses: map[string]string{
			"Admin.EndSession": "there are no sessions",
			"Admin.Sessions":   "there are no sessions",
			"Admin.DropWaiter": "there is no queue",
		},
		RequireAll: true,
	})
}

// operator acts on a server by hand.
type operator struct{ c goredis.UniversalClient }

func (o operator) admin() conformance.Admin {
	key := func(name string) string { return DefaultPrefix + name }
	return conformance.Admin{
		Entry: func(ctx context.Context, name string) (conformance.Entry, error) {
			value, err := o.c.Get(ctx, key(name)).Result()
			if errors.Is(err, goredis.Nil) {
				return conformance.Entry{}, nil
			}
			left, ttlErr := o.c.PTTL(ctx, key(name)).Result()
			return conformance.Entry{Value: value, Remaining: left}, errors.Join(err, ttlErr)
		},
		Delete: func(ctx context.Context, name string) error {
			n, err := o.c.Del(ctx, key(name)).Result()
			if err == nil && n == 0 {
				err = errors.New("there is no such key")
			}
			return err
		},
		Replace: func(ctx context.Context, name string) error {
			return o.c.SetXX(ctx, key(name), "somebody else", time.Hour).Err()
		},
		Occupy: func(ctx context.Context, name string) (func(context.Context) error, error) {
			if err := o.c.RPush(ctx, key(name), "a", "b").Err(); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				list, err := o.c.LRange(ctx, key(name), 0, -1).Result()
				if err == nil && fmt.Sprint(list) != "[a b]" {
					err = fmt.Errorf("the list is %q", list)
				}
				return errors.Join(err, o.c.Del(ctx, key(name)).Err())
			}, nil
		},
		Entries: func(ctx context.Context) (keys []string, err error) {
			var mu sync.Mutex
			scan := func(ctx context.Context, c *goredis.Client) error {
				i := c.Scan(ctx, 0, "*", 1000).Iterator()
				mu.Lock()
				defer mu.Unlock()
				for i.Next(ctx) {
					if k := i.Val(); !strings.HasSuffix(k, "}:t") { // the last token outlives its lock
						keys = append(keys, k)
					}
				}
				return i.Err()
			}
			if c, ok := o.c.(*goredis.ClusterClient); ok {
				err = c.ForEachMaster(ctx, scan)
			} else {
				err = scan(ctx, o.c.(*goredis.Client))
			}
			return keys, err
		},
	}
}
