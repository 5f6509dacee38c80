package interop

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	_ "github.com/leasekit/locker/driver/redlock"
	"github.com/leasekit/locker/internal/testserver"
)

// redsyncOn is redsync with a pool for each server.
func redsyncOn(clients []*goredis.Client, ttl time.Duration) sort {
	var pools []redis.Pool
	for _, c := range clients {
		pools = append(pools, redsyncpool.NewPool(c))
	}
	all := redsync.New(pools...)
	try := func(ctx context.Context, key string) (func(context.Context) error, error) {
		mutex := all.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1))
		err := mutex.TryLockContext(ctx)
		if taken := new(redsync.ErrTaken); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
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
	return sort{name: "redsync", try: try, take: retrying(try)}
}

// Redlock's own lock and redsync's exclude each other on the same servers, in both directions.
func TestRedlock(t *testing.T) {
	servers := testserver.Group(t, testserver.Redlock)[:3]
	var clients []*goredis.Client
	var addrs []string
	for _, s := range servers {
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr})
		t.Cleanup(func() { c.Close() })
		clients, addrs = append(clients, c), append(addrs, s.Addr)
	}
	const ttl = 10 * time.Second
	url := "redlock://" + strings.Join(addrs, ",") + "?prefix="
	key := func() string { return "interop:" + rand.Text() }
	other := redsyncOn(clients, ttl)
	both := [2]sort{ours(t, url, ttl), other}

	t.Run("exclude", func(t *testing.T) {
		for i, holder := range both {
			key, waiter := key(), both[1-i]
			release, err := holder.try(t.Context(), key)
			require.NoError(t, err)
			_, err = waiter.try(t.Context(), key)
			require.ErrorIs(t, err, errHeld, "%s got what %s holds", waiter.name, holder.name)
			require.NoError(t, release(t.Context()))
			release, err = waiter.take(t.Context(), key)
			require.NoError(t, err, "%s doesn't get what %s has released", waiter.name, holder.name)
			require.NoError(t, release(t.Context()))
		}
	})
	t.Run("contend", func(t *testing.T) {
		contend(t, key(), 8, both[0], ours(t, url, ttl), other)
	})
	t.Run("keep", func(t *testing.T) {
		// Held for longer than its TTL by one who renews it.
		const short = time.Second
		key, l := key(), ours(t, url, short)
		release, err := l.take(t.Context(), key)
		require.NoError(t, err)
		for start := time.Now(); time.Since(start) < 5*short/2; time.Sleep(retry) {
			_, err := other.try(t.Context(), key)
			require.ErrorIs(t, err, errHeld)
		}
		require.NoError(t, release(t.Context()))
	})
	t.Run("late release", func(t *testing.T) {
		// Each finds its lock gone and the other one's in its place, and leaves that alone.
		for i, first := range both {
			key, second := key(), both[1-i]
			late, err := first.take(t.Context(), key)
			require.NoError(t, err)
			require.Eventually(t, func() bool { // a node that was late may still be about to grant
				for _, c := range clients {
					c.Del(t.Context(), key)
				}
				release, err := second.try(t.Context(), key)
				if err != nil {
					return false
				}
				require.Error(t, late(t.Context()), "%s released what %s holds", first.name, second.name)
				require.NoError(t, release(t.Context()), "%s has freed the lock of %s", first.name, second.name)
				return true
			}, 20*time.Second, retry)
		}
	})
}
