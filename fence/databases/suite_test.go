package databases

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/fence"
)

// resource is something that is written to under a guard. Each write is one atomic step together with the check.
type resource struct {
	write func(ctx context.Context, name string, token locker.Token, value string) error
	read  func(ctx context.Context, name string) string
	// log returns the tokens of the writes of a name in the order in which they were committed.
	log func(ctx context.Context, name string) []locker.Token
	// abandon checks and writes, and then gives up: by a roll-back, or by a connection that dies. nil where a write can't
	// be given up.
	abandon func(ctx context.Context, name string, token locker.Token, value string, crash bool)
}

// guarded is the contract of all guards.
func guarded(t *testing.T, r resource) {
	ctx := t.Context()
	name := func(t *testing.T) string { return fmt.Sprintf("%s/%d", t.Name(), rand.Uint64()) }
	stale := func(t *testing.T, err error, name string, seen, given locker.Token) {
		t.Helper()
		require.ErrorIs(t, err, fence.ErrStale)
		known, ok := errors.AsType[*fence.StaleError](err)
		require.True(t, ok, "%T", err)
		require.Equal(t, fence.StaleError{Name: name, Seen: seen, Given: given}, *known)
	}

	t.Run("equal passes, lower fails", func(t *testing.T) {
		name := name(t)
		require.NoError(t, r.write(ctx, name, 33, "A"))
		require.NoError(t, r.write(ctx, name, 33, "A again"))
		require.NoError(t, r.write(ctx, name, 34, "B"))
		stale(t, r.write(ctx, name, 33, "A, late"), name, 34, 33)
		stale(t, r.write(ctx, name, 1, "long ago"), name, 34, 1)
		require.Equal(t, "B", r.read(ctx, name))
		require.NoError(t, r.write(ctx, name, 34, "B again"))
		require.NoError(t, r.write(ctx, name, math.MaxInt64, "last"))
		stale(t, r.write(ctx, name, math.MaxInt64-1, "late"), name, math.MaxInt64, math.MaxInt64-1)
		require.Equal(t, "last", r.read(ctx, name))
	})
	t.Run("tokens are compared as numbers", func(t *testing.T) {
		name := name(t)
		require.NoError(t, r.write(ctx, name, 9, "nine"))
		require.NoError(t, r.write(ctx, name, 10, "ten"))
		stale(t, r.write(ctx, name, 9, "late"), name, 10, 9)
		// Larger than a floating-point number can tell apart.
		require.NoError(t, r.write(ctx, name, 1<<53+1, "big"))
		stale(t, r.write(ctx, name, 1<<53, "late"), name, 1<<53+1, 1<<53)
	})
	t.Run("no token", func(t *testing.T) {
		name := name(t)
		require.NoError(t, r.write(ctx, name, 5, "good"))
		for _, token := range []locker.Token{0, math.MaxInt64 + 1, math.MaxUint64} {
			require.ErrorIs(t, r.write(ctx, name, token, "bad"), fence.ErrNoToken)
		}
		require.Equal(t, "good", r.read(ctx, name))
	})
	t.Run("names are independent", func(t *testing.T) {
		base := name(t)
		require.NoError(t, r.write(ctx, base, 100, "other"))
		for _, other := range []string{base + " ", base + "x", base + "X", base + "é", base + "e\u0301", base + "ß", base + "ss", "  " + base, base + `'";--`, base + "%_"} {
			require.NoError(t, r.write(ctx, other, 1, other), "%q", other)
			require.Equal(t, other, r.read(ctx, other))
			stale(t, r.write(ctx, base, 99, "late"), base, 100, 99)
		}
	})
	t.Run("concurrent writers", func(t *testing.T) {
		name := name(t)
		const writers, writes = 12, 15
		var (
			wg     sync.WaitGroup
			mu     sync.Mutex
			passed = make(map[locker.Token]int)
		)
		for w := range writers {
			wg.Go(func() {
				for i := range writes {
					token := locker.Token(1 + rand.IntN(writers*writes))
					if i == writes-1 {
						token = locker.Token(writers*writes + w + 1)
					}
					err := r.write(ctx, name, token, fmt.Sprint(token))
					if !errors.Is(err, fence.ErrStale) {
						require.NoError(t, err)
						mu.Lock()
						passed[token]++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		last := locker.Token(writers*writes + writers)
		require.Equal(t, fmt.Sprint(last), r.read(ctx, name), "the greatest token has written last")
		tokens := r.log(ctx, name)
		total := 0
		for _, n := range passed {
			total += n
		}
		require.Len(t, tokens, total, "what passed was written, and what didn't was not")
		for i := 1; i < len(tokens); i++ {
			require.LessOrEqual(t, tokens[i-1], tokens[i], "write %d of %v", i, tokens)
		}
	})
	t.Run("given up", func(t *testing.T) {
		if r.abandon == nil {
			t.Skip("a script of Redis can't be given up half way")
		}
		for _, crash := range []bool{false, true} {
			name := name(t)
			require.NoError(t, r.write(ctx, name, 10, "kept"))
			r.abandon(ctx, name, 50, "dropped", crash)
			require.Equal(t, "kept", r.read(ctx, name))
			soon, stop := context.WithTimeout(ctx, 20*time.Second)
			require.NoError(t, r.write(soon, name, 20, "next"), "the token is forgotten with the write, and locks nobody out")
			stop()
			stale(t, r.write(ctx, name, 19, "late"), name, 20, 19)
			fresh := name + "/fresh"
			r.abandon(ctx, fresh, 50, "dropped", crash)
			require.NoError(t, r.write(ctx, fresh, 1, "first"))
		}
	})
}
