package interop

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	_ "github.com/leasekit/locker/driver/redis"
	"github.com/leasekit/locker/internal/testserver"
)

var errHeld = errors.New("held")

// retry is how often those who poll look again.
const retry = 5 * time.Millisecond

// retrying makes a take out of a try.
func retrying(try func(context.Context, string) (func(context.Context) error, error)) func(context.Context, string) (func(context.Context) error, error) {
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		for {
			release, err := try(ctx, name)
			if !errors.Is(err, errHeld) {
				return release, err
			}
			select {
			case <-time.After(retry):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// others are the locks that people use on Redis beside ours, each on the very key.
func others(c *goredis.Client, ttl time.Duration) []sort {
	byHand := func(ctx context.Context, key string) (func(context.Context) error, error) {
		value := rand.Text()
		err := c.SetArgs(ctx, key, value, goredis.SetArgs{Mode: "NX", TTL: ttl}).Err()
		if errors.Is(err, goredis.Nil) {
			return nil, errHeld
		}
		return func(ctx context.Context) error {
			n, err := goredis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`).
				Run(ctx, c, []string{key}, value).Int()
			if err == nil && n != 1 {
				err = errors.New("not the owner")
			}
			return err
		}, err
	}
	obtainer := redislock.New(c)
	withRedislock := func(ctx context.Context, key string) (func(context.Context) error, error) {
		lock, err := obtainer.Obtain(ctx, key, ttl, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil, errHeld
		}
		if err != nil {
			return nil, err
		}
		return lock.Release, nil
	}
	pool := redsync.New(redsyncpool.NewPool(c))
	withRedsync := func(ctx context.Context, key string) (func(context.Context) error, error) {
		mutex := pool.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1))
		err := mutex.TryLockContext(ctx)
		if taken := new(redsync.ErrTaken); errors.As(err, &taken) {
			return nil, errHeld
		}
		return func(ctx context.Context) error {
			ok, err := mutex.UnlockContext(ctx)
			if err == nil && !ok {
				err = errors.New("not the owner")
			}
			return err
		}, err
	}
	var all []sort
	for name, try := range map[string]func(context.Context, string) (func(context.Context) error, error){
		"by hand": byHand, "redislock": withRedislock, "redsync": withRedsync,
	} {
		all = append(all, sort{name: name, try: try, take: retrying(try)})
	}
	return all
}

// ours is a Locker whose entries have the very names that are asked for.
func ours(t *testing.T, url string, ttl time.Duration) sort {
	t.Helper()
	l, err := locker.Open(t.Context(), url, &locker.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return sort{
		name: "locker",
		take: func(ctx context.Context, name string) (func(context.Context) error, error) {
			lease, err := l.Acquire(ctx, name)
			if err != nil {
				return nil, err
			}
			return lease.Release, nil
		},
		try: func(ctx context.Context, name string) (func(context.Context) error, error) {
			lease, err := l.TryAcquire(ctx, name)
			if errors.Is(err, locker.ErrHeld) {
				return nil, errHeld
			}
			if err != nil {
				return nil, err
			}
			return lease.Release, nil
		},
	}
}

func TestRedis(t *testing.T) {
	server := testserver.Need(t, testserver.Redis)
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr})
	t.Cleanup(func() { c.Close() })
	const ttl = 10 * time.Second
	url := server.URL("redis") + "?prefix="
	for _, other := range others(c, ttl) {
		t.Run(other.name, func(t *testing.T) {
			t.Parallel()
			key := func(t *testing.T) string { return "interop:" + rand.Text() }
			pair := func(t *testing.T) [2]sort { return [2]sort{ours(t, url, ttl), other} }

			t.Run("exclude", func(t *testing.T) {
				both := pair(t)
				for i, holder := range both {
					key, waiter := key(t), both[1-i]
					release, err := holder.try(t.Context(), key)
					require.NoError(t, err)
					_, err = waiter.try(t.Context(), key)
					require.ErrorIs(t, err, errHeld, "%s got what %s holds", waiter.name, holder.name)
					require.NoError(t, release(t.Context()))
					release, err = waiter.try(t.Context(), key)
					require.NoError(t, err, "%s doesn't get what %s has released", waiter.name, holder.name)
					require.NoError(t, release(t.Context()))
					n, err := c.Exists(t.Context(), key).Result()
					require.NoError(t, err)
					require.Zero(t, n)
				}
			})
			t.Run("contend", func(t *testing.T) {
				contend(t, key(t), 8, ours(t, url, ttl), ours(t, url, ttl), other)
			})
			t.Run("keep", func(t *testing.T) {
				// Held for longer than its TTL by one who renews it.
				const short = time.Second
				key := key(t)
				l := ours(t, url, short)
				release, err := l.take(t.Context(), key)
				require.NoError(t, err)
				for start := time.Now(); time.Since(start) < 5*short/2; time.Sleep(retry) {
					_, err := other.try(t.Context(), key)
					require.ErrorIs(t, err, errHeld)
				}
				require.NoError(t, release(t.Context()))
			})
			t.Run("wait", func(t *testing.T) {
				// A foreign release tells nobody: it is found by looking.
				key := key(t)
				release, err := other.take(t.Context(), key)
				require.NoError(t, err)
				granted := make(chan error, 1)
				l := ours(t, url, ttl)
				go func() {
					release, err := l.take(t.Context(), key)
					if err == nil {
						err = release(t.Context())
					}
					granted <- err
				}()
				select {
				case err := <-granted:
					t.Fatalf("Acquire returned %v while %s held", err, other.name)
				case <-time.After(100 * time.Millisecond):
				}
				require.NoError(t, release(t.Context()))
				released := time.Now()
				require.NoError(t, <-granted)
				require.Less(t, time.Since(released), ttl*9/10, "it waited for the TTL")
			})
			t.Run("late release", func(t *testing.T) {
				// Each finds its lock gone and the other one's in its place, and leaves that alone.
				both := pair(t)
				for i, first := range both {
					key, second := key(t), both[1-i]
					late, err := first.take(t.Context(), key)
					require.NoError(t, err)
					require.NoError(t, c.Del(t.Context(), key).Err())
					release, err := second.take(t.Context(), key)
					require.NoError(t, err)
					require.Error(t, late(t.Context()), "%s released what %s holds", first.name, second.name)
					require.NoError(t, release(t.Context()), "%s has freed the lock of %s", first.name, second.name)
				}
			})
		})
	}
}
