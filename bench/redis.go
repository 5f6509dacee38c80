package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/leasekit/locker"
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
	newClient := func() *goredis.Client { return goredis.NewClient(&goredis.Options{Addr: o.addr}) }
	admin := newClient()
	s := &setup{close: func() { admin.Close() }, ping: func(ctx context.Context) error { return admin.Ping(ctx).Err() }}
	info, err := admin.Info(ctx, "server").Result()
	if err != nil {
		s.close()
		return nil, err
	}
	s.server = "Redis " + field(info, "redis_version") + " at " + o.addr
	s.subjects = []subject{
		{name: "raw go-redis", alone: true, settings: "SET NX PX, then EVALSHA compare-and-delete; default options",
			open: func(context.Context, bool) (client, error) { return rawRedis(newClient(), o), nil }},
		{name: "locker", settings: "locker.Open(redis://...): token, renewal and waiting", open: ofURL("redis://"+o.addr+"?prefix=bench-locker:", o)},
		{name: "locker with client", settings: "the same with redis.New(client)", open: func(ctx context.Context, waits bool) (client, error) {
			c, prefix := newClient(), "bench-client:"
			cl, err := ofLocker(func(ctx context.Context) (locker.Locker, error) {
				return locker.New(ctx, redis.New(c, &redis.Options{Prefix: &prefix}), &locker.Options{TTL: o.ttl})
			})(ctx, waits)
			end := cl.close
			cl.close = func() { end(); c.Close() }
			return cl, err
		}},
		{name: "driver alone", alone: true, settings: "the driver without the engine: token, no renewal", open: ofDriver("redis://"+o.addr+"?prefix=bench-driver:", o)},
		{name: "redislock", peer: true, settings: "Obtain, no renewal; to wait: LinearBackoff(10 ms)",
			open: func(_ context.Context, waits bool) (client, error) { return ofRedislock(newClient(), o, waits), nil }},
		{name: "redsync", peer: true, settings: "one pool, default options, no renewal; to wait: as many tries as it takes",
			open: func(_ context.Context, waits bool) (client, error) { return ofRedsync(newClient(), o, waits), nil }},
		{name: "rueidislock", peer: true, settings: "KeyMajority 1, NoLoopTracking (Redis >= 7.0.5), client-side caching on",
			open: func(context.Context, bool) (client, error) { return ofRueidislock(o) }},
	}
	return s, nil
}

func rawRedis(c *goredis.Client, o options) client {
	return client{
		acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			key, value := "bench-raw:"+name, random()
			ok, err := c.SetNX(ctx, key, value, o.ttl).Result()
			if err == nil && !ok {
				err = errHeld
			}
			return func(ctx context.Context) error {
				n, err := compareAndDelete.Run(ctx, c, []string{key}, value).Int()
				if err == nil && n != 1 {
					err = errNotHeld
				}
				return err
			}, err
		},
		close: func() { c.Close() },
	}
}

func ofRedislock(c *goredis.Client, o options, waits bool) client {
	obtainer := redislock.New(c)
	var opts *redislock.Options
	if waits {
		opts = &redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)}
	}
	return client{
		acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			lock, err := obtainer.Obtain(ctx, "bench-redislock:"+name, o.ttl, opts)
			if err != nil {
				return nil, err
			}
			return lock.Release, nil
		},
		close: func() { c.Close() },
	}
}

func ofRedsync(c *goredis.Client, o options, waits bool) client {
	pool := redsync.New(redsyncpool.NewPool(c))
	return client{
		acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			mutex := pool.NewMutex("bench-redsync:"+name, redsync.WithExpiry(o.ttl))
			err := mutex.LockContext(ctx)
			for waits && errors.Is(err, redsync.ErrFailed) && ctx.Err() == nil {
				err = mutex.LockContext(ctx)
			}
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				_, err := mutex.UnlockContext(ctx)
				return err
			}, nil
		},
		close: func() { c.Close() },
	}
}

func ofRueidislock(o options) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{o.addr}},
		KeyMajority:    1,
		KeyValidity:    o.ttl,
		NoLoopTracking: true,
		KeyPrefix:      "bench-rueidislock",
	})
	if err != nil {
		return client{}, err
	}
	return client{
		acquire: func(ctx context.Context, name string) (func(context.Context) error, error) {
			_, cancel, err := l.WithContext(ctx, name)
			if err != nil {
				return nil, err
			}
			return func(context.Context) error { cancel(); return nil }, nil
		},
		close: l.Close,
	}, nil
}

func field(info, key string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("(no %s)", key)
}
