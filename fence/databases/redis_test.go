package databases

import (
	"context"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/fence"
	"github.com/leasekit/locker/internal/testserver"
)

var guardedWrite = redis.NewScript(fence.RedisGuard + `
redis.call('RPUSH', KEYS[2], ARGV[2])
return redis.call('SET', KEYS[1], ARGV[1])`)

func TestRedis(t *testing.T) {
	for _, name := range []testserver.Name{testserver.Redis, testserver.Redis8, testserver.Valkey} {
		t.Run(string(name), func(t *testing.T) {
			s := testserver.Need(t, name)
			c := redis.NewClient(&redis.Options{Addr: s.Addr})
			t.Cleanup(func() { c.Close() })
			keys := func(name string) []string {
				return []string{"{" + name + "}:value", "{" + name + "}:log", "{" + name + "}:fence"}
			}
			guarded(t, resource{
				write: func(ctx context.Context, name string, token locker.Token, value string) error {
					t.Cleanup(func() { c.Del(context.Background(), keys(name)...) })
					err := guardedWrite.Run(ctx, c, keys(name), value, uint64(token), uint64(token)).Err()
					return fence.RedisError(name, token, err)
				},
				read: func(ctx context.Context, name string) string {
					value, err := c.Get(ctx, keys(name)[0]).Result()
					require.NoError(t, err)
					return value
				},
				log: func(ctx context.Context, name string) (tokens []locker.Token) {
					list, err := c.LRange(ctx, keys(name)[1], 0, -1).Result()
					require.NoError(t, err)
					for _, text := range list {
						token, err := strconv.ParseUint(text, 10, 64)
						require.NoError(t, err)
						tokens = append(tokens, locker.Token(token))
					}
					return tokens
				},
			})
			// What isn't a token, in the script's arguments or under the fence's key, changes nothing.
			bad := keys("bad/" + t.Name())
			t.Cleanup(func() { c.Del(context.Background(), bad...) })
			for _, token := range []any{"", "-1", "1.5", "0x10", "007", "+7", "1e3", "9223372036854775808", " 5", "5 "} {
				err := fence.RedisError("bad", 0, guardedWrite.Run(t.Context(), c, bad, "value", "1", token).Err())
				require.ErrorIs(t, err, fence.ErrNoToken, "%q", token)
			}
			require.NoError(t, c.Set(t.Context(), bad[2], "something else", 0).Err())
			require.ErrorIs(t, fence.RedisError("bad", 7, guardedWrite.Run(t.Context(), c, bad, "value", "7", "7").Err()), fence.ErrSetup)
			n, err := c.Exists(t.Context(), bad[0], bad[1]).Result()
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
