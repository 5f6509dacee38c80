package consul

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/internal/clock"
)

// Who has missed most releases tries first, whoever has just come last, and nobody waits when there is nobody to wait for.
func TestWAIT18WaitersTakeTurns(t *testing.T) {
	var m manners
	now := clock.System()
	const others = 15
	for i := range 3 * others {
		now = now.Add(time.Millisecond)
		require.True(t, m.taken(now, "a", fmt.Sprint("session", i%others), uint64(100+i)))
	}
	require.False(t, m.taken(now, "a", "session0", 100+3*others-1), "the same grant, seen again")

	require.Zero(t, m.turn(now, "a", others-1), "the one who has waited longest")
	require.Zero(t, m.turn(now, "a", 10*others), "one who was passed over")
	for missed := others - 2; missed >= -1; missed-- {
		before := m.turn(now, "a", missed+1)
		require.Greater(t, m.turn(now, "a", missed), before, "after %d releases missed", missed)
		require.LessOrEqual(t, m.turn(now, "a", missed), maxTurn)
	}
	require.Zero(t, m.turn(now, "b", -1), "another name")
	require.Zero(t, m.turn(now.Add(2*memory), "a", -1), "long ago")
}

// Those who don't come any more are forgotten, after some grants to others.
func TestTurnsOfThoseWhoHaveGone(t *testing.T) {
	var m manners
	now := clock.System()
	for i := range 100 {
		m.taken(now, "a", fmt.Sprint("session", i%20), uint64(i+1))
	}
	require.NotZero(t, m.turn(now, "a", 2))
	for i := range 200 {
		m.taken(now, "a", fmt.Sprint("session", i%2), uint64(1000+i))
	}
	require.Zero(t, m.turn(now, "a", 1))
}

// However many sessions come and go, little is kept of them.
func TestTurnsRememberFewSessions(t *testing.T) {
	var m manners
	now := clock.System()
	for i := range 10000 {
		m.taken(now, "a", fmt.Sprint("session", i), uint64(i+1))
	}
	require.LessOrEqual(t, len(m.names["a"].holders), maxHolders)
}
