package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/internal/testserver"
)

func TestConformance(t *testing.T) {
	conformance.Contender()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			var servers []*testserver.Server
			var clients []*goredis.Client
			var addrs []string
			for range n { // of one's own, since the group's forget their data when they are restarted
				s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--appendonly", "yes"}})
				c := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1})
				t.Cleanup(func() { c.Close() })
				servers, clients, addrs = append(servers, s), append(clients, c), append(addrs, s.Addr)
			}
			do := func(a testserver.Action) func(context.Context, int) error {
				return func(ctx context.Context, i int) error { return servers[i].Do(ctx, a) }
			}
			conformance.Run(t, conformance.Backend{
				Name:     "redlock",
				Addrs:    addrs,
				URL:      func(addrs []string) string { return "redlock://" + strings.Join(addrs, ",") },
				TTL:      time.Second,
				TakeOver: time.Second,
				Admin:    operator(clients).admin(),
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
		})
	}
}

// operator acts on all servers by hand.
type operator []*goredis.Client

func (o operator) each(f func(c *goredis.Client) error) error {
	var errs []error
	for _, c := range o {
		errs = append(errs, f(c))
	}
	return errors.Join(errs...)
}

func (o operator) admin() conformance.Admin {
	key := func(name string) string { return DefaultPrefix + name }
	return conformance.Admin{
		// The entry is what a majority has.
		Entry: func(ctx context.Context, name string) (conformance.Entry, error) {
			count, entries := make(map[string]int), make(map[string]conformance.Entry)
			err := o.each(func(c *goredis.Client) error {
				value, err := c.Get(ctx, key(name)).Result()
				if errors.Is(err, goredis.Nil) {
					return nil
				}
				left, ttlErr := c.PTTL(ctx, key(name)).Result()
				count[value]++
				if e, ok := entries[value]; !ok || left < e.Remaining {
					entries[value] = conformance.Entry{Value: value, Remaining: left}
				}
				return errors.Join(err, ttlErr)
			})
			for value, n := range count {
				if n > len(o)/2 {
					return entries[value], err
				}
			}
			return conformance.Entry{}, err
		},
		Delete: func(ctx context.Context, name string) error {
			deleted := int64(0)
			err := o.each(func(c *goredis.Client) error {
				n, err := c.Del(ctx, key(name)).Result()
				deleted += n
				return err
			})
			if err == nil && deleted <= int64(len(o)/2) {
				err = errors.New("there is no such lock")
			}
			return err
		},
		Replace: func(ctx context.Context, name string) error {
			return o.each(func(c *goredis.Client) error {
				return c.Set(ctx, key(name), "somebody else", time.Hour).Err()
			})
		},
		Occupy: func(ctx context.Context, name string) (func(context.Context) error, error) {
			err := o.each(func(c *goredis.Client) error { return c.RPush(ctx, key(name), "a", "b").Err() })
			return func(ctx context.Context) error {
				return o.each(func(c *goredis.Client) error {
					list, err := c.LRange(ctx, key(name), 0, -1).Result()
					if err == nil && fmt.Sprint(list) != "[a b]" {
						err = fmt.Errorf("the list is %q", list)
					}
					return errors.Join(err, c.Del(ctx, key(name)).Err())
				})
			}, err
		},
		Entries: func(ctx context.Context) (keys []string, err error) {
			seen := make(map[string]bool)
			err = o.each(func(c *goredis.Client) error {
				i := c.Scan(ctx, 0, "*", 1000).Iterator()
				for i.Next(ctx) {
					if k := i.Val(); !strings.HasSuffix(k, "}:t") && !seen[k] { // the last token outlives its lock
						seen[k] = true
						keys = append(keys, k)
					}
				}
				return i.Err()
			})
			return keys, err
		},
	}
}
