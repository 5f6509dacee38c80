package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Advance implements driver.Advancer by raising the name's counter. A floor that is ahead of the server's time is kept
// until the time has caught up; if the counter is lost before, by eviction or a restart without data, tokens fall below.
func (c *conn) Advance(ctx context.Context, h driver.Hold, floor uint64) error {
	own, ok := h.(*hold)
	if !ok || own.conn != c {
		return errors.New("redis: Advance with another connection's hold")
	}
	if floor >= math.MaxInt64 {
		return fmt.Errorf("%w: no token can be above %d", driver.ErrConfig, floor)
	}
	if floor == 0 {
		return nil
	}
	raised, err := call(ctx, c.client, attempts, "", func(ctx context.Context, client redis.UniversalClient) (bool, error) {
		reply, err := advanceScript.run(ctx, client, func() {}, []string{own.key, c.layout.companion(own.key, "t")}, own.value,
			strconv.FormatUint(floor, 10), c.retention)
		return reply == int64(1), err
	})
	if err == nil && !raised {
		return driver.ErrNotHeld
	}
	return explain("advance "+own.key, err)
}
