package redlock

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Advance implements driver.Advancer by raising the name's counter on a majority that the hold still has. A floor that is
// ahead of the servers' time is kept until the time has caught up; if a majority loses the counter before, tokens fall
// below.
func (c *conn) Advance(ctx context.Context, h driver.Hold, floor uint64) error {
	own, ok := h.(*hold)
	if !ok || own.conn != c {
		return errors.New("redlock: Advance with another connection's hold")
	}
	if floor >= math.MaxInt64 {
		return fmt.Errorf("%w: no token can be above %d", driver.ErrConfig, floor)
	}
	if floor == 0 {
		return nil
	}
	replies := ask(c, attempts, c.limit, c.nodes, func(ctx context.Context, n *node, client *redis.Client) (bool, error) {
		return own.raiseAt(ctx, n, client, floor)
	})
	raised, gone := 0, 0
	var answers, errs []error
	err := count(ctx, c, replies, func(r reply[bool]) bool {
		switch {
		case driver.IsAnswer(r.err):
			answers = append(answers, r.err)
		case r.err != nil:
			errs = append(errs, r.err)
		case r.value:
			raised++
		default:
			gone++
		}
		return raised >= c.quorum || gone > len(c.nodes)-c.quorum
	})
	switch {
	case raised >= c.quorum:
		return nil
	case gone > len(c.nodes)-c.quorum:
		return driver.ErrNotHeld
	case err != nil:
		return err
	case len(answers) > len(c.nodes)-c.quorum:
		return errors.Join(answers...)
	}
	return undecided("advance "+own.key, append(errs, answers...))
}
