package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/redis"
)

func init() { backends["redis"] = prepareRedis }

// compareAndDelete is the release that Redis' own documentation shows.
var compareAndDelete = goredis.NewScript(`if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("del",KEYS[1])
else
    return 0
end`)

func prepareRedis(ctx context.Context, o options) (*setup, error) {
	if o.addr == "" {
		o.addr = "127.0.0.1:16379"
	}
	var closers []func()
	s := &setup{close: func() {
		for _, c := range closers {
			c()
		}
	}}
	newClient := func() *goredis.Client {
		c := goredis.NewClient(&goredis.Options{Addr: o.addr})
		closers = append(closers, func() { c.Close() })
		return c
	}
	fail := func(err error) (*setup, error) {
		s.close()
		return nil, err
	}
	raw := newClient()
	info, err := raw.Info(ctx, "server").Result()
	if err != nil {
		return fail(err)
	}
	s.server = "Redis " + field(info, "redis_version") + " at " + o.addr

	ours, err := locker.Open(ctx, "redis://"+o.addr+"?prefix=bench-locker:", &locker.Options{TTL: o.ttl})
	if err != nil {
		return fail(err)
	}
	closers = append(closers, func() { ours.Close() })
	prefix := "bench-client:"
	brought, err := locker.New(ctx, redis.New(newClient(), &redis.Options{Prefix: &prefix}), &locker.Options{TTL: o.ttl})
	if err != nil {
		return fail(err)
	}
	closers = append(closers, func() { brought.Close() })

	connector, err := driver.Parse("redis://" + o.addr + "?prefix=bench-driver:")
	if err != nil {
		return fail(err)
	}
	alone, err := withDriver(ctx, connector, o)
	if err != nil {
		return fail(err)
	}
	closers = append(closers, func() { alone.Close() })

	pool := redsync.New(redsyncpool.NewPool(newClient()))
	obtainer := redislock.New(newClient())
	rueidis, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{o.addr}},
		KeyMajority:    1,
		KeyValidity:    o.ttl,
		NoLoopTracking: true,
		KeyPrefix:      "bench-rueidislock",
	})
	if err != nil {
		return fail(err)
	}
	closers = append(closers, rueidis.Close)

	s.subjects = []subject{
		{name: "raw go-redis", settings: "SET NX PX, then EVALSHA compare-and-delete; default options", acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			var b [16]byte
			rand.Read(b[:])
			key, value := "bench-raw:"+name, hex.EncodeToString(b[:])
			ok, err := raw.SetNX(ctx, key, value, o.ttl).Result()
			if err == nil && !ok {
				err = errors.New("held")
			}
			return func(ctx context.Context) error {
				n, err := compareAndDelete.Run(ctx, raw, []string{key}, value).Int()
				if err == nil && n != 1 {
					err = errors.New("not held")
				}
				return err
			}, err
		}},
		{name: "locker", settings: "locker.Open(redis://...): token, renewal and hints", acquire: withLocker(ours)},
		{name: "locker with client", settings: "the same with redis.New(client)", acquire: withLocker(brought)},
		{name: "driver alone", settings: "the driver without the engine: token and hints, no renewal", acquire: withConn(alone)},
		{name: "redislock", peer: true, settings: "Obtain without retry, no renewal", acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			lock, err := obtainer.Obtain(ctx, "bench-redislock:"+name, o.ttl, nil)
			if err != nil {
				return nil, err
			}
			return lock.Release, nil
		}},
		{name: "redsync", peer: true, settings: "one pool, default options, no renewal", acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			mutex := pool.NewMutex("bench-redsync:"+name, redsync.WithExpiry(o.ttl))
			if err := mutex.LockContext(ctx); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				_, err := mutex.UnlockContext(ctx)
				return err
			}, nil
		}},
		{name: "rueidislock", peer: true, settings: "KeyMajority 1, NoLoopTracking (Redis >= 7.0.5), client-side caching on", acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			_, cancel, err := rueidis.WithContext(ctx, name)
			if err != nil {
				return nil, err
			}
			return func(context.Context) error { cancel(); return nil }, nil
		}},
	}
	return s, nil
}

func field(info, key string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("(no %s)", key)
}
