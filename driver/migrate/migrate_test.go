package migrate

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	_ "github.com/leasekit/locker/driver/file"
	"github.com/leasekit/locker/driver/memory"
)

const ttl = time.Second

func open(t *testing.T, c driver.Connector, phase Phase, to driver.Connector) locker.Locker {
	t.Helper()
	pair, err := Connect(c, to, phase)
	require.NoError(t, err)
	l, err := locker.New(t.Context(), pair, &locker.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// A fleet goes from phase to phase, process by process, and back again, under load: there is never a second holder, and
// the tokens rise in the order of the grants.
func TestFleetMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(), memory.New()
		// The old side's tokens are far ahead, as those of Redis are ahead of etcd's revisions.
		ahead := open(t, old, Old, new)
		lease, err := ahead.Acquire(t.Context(), "job")
		require.NoError(t, err)
		raise(t, old, "job", 1<<60)
		require.NoError(t, lease.Release(t.Context()))

		var (
			holders atomic.Int32
			mu      sync.Mutex
			last    locker.Token
			grants  = make(map[Phase]int)
		)
		work := func(ctx context.Context, phase Phase) {
			l := open(t, old, phase, new)
			for ctx.Err() == nil {
				lease, err := l.Acquire(ctx, "job")
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
					break
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders in phase %s", n, phase)
				}
				mu.Lock()
				if lease.Token() <= last {
					t.Errorf("token %d after %d in phase %s", lease.Token(), last, phase)
				}
				last = lease.Token()
				grants[phase]++
				mu.Unlock()
				time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
				holders.Add(-1)
				require.NoError(t, lease.Release(context.Background()))
			}
			require.NoError(t, l.Close())
		}
		const fleet = 5
		var stops [fleet]context.CancelFunc
		var wg sync.WaitGroup
		for _, phase := range []Phase{Old, Both, New, Both, Old} {
			for i := range fleet {
				if stops[i] != nil {
					stops[i]()
				}
				ctx, stop := context.WithCancel(t.Context())
				stops[i] = stop
				wg.Go(func() { work(ctx, phase) })
				time.Sleep(ttl)
			}
			time.Sleep(ttl) // nobody is left of the phase before
		}
		for _, stop := range stops {
			stop()
		}
		wg.Wait()
		for _, phase := range []Phase{Old, Both, New} {
			require.Greater(t, grants[phase], 50, phase)
		}
		t.Log(grants)
	})
}

// raise raises the tokens of a store that holds name, through a connection of its own.
func raise(t *testing.T, s *memory.Store, name string, floor uint64) {
	t.Helper()
	c := connectTo(t, s)
	e, err := c.(driver.Inspector).Inspect(t.Context(), name)
	require.NoError(t, err)
	h, err := c.TryLock(t.Context(), driver.Request{Name: name, ID: e.ID, Owner: e.Owner})
	require.NoError(t, err)
	require.NoError(t, c.(driver.Advancer).Advance(t.Context(), h, floor))
}

// A lease of both sides ends when either is lost, and the other one is freed.
func TestLossOfOneSide(t *testing.T) {
	for name, pick := range map[string]int{"old": from, "new": to} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores := [2]*memory.Store{memory.New(), memory.New()}
				l := open(t, stores[from], Both, stores[to])
				lease, err := l.Acquire(t.Context(), "job")
				require.NoError(t, err)
				require.True(t, stores[pick].Expire("job"))
				<-lease.Context().Done()
				require.ErrorIs(t, context.Cause(lease.Context()), locker.ErrLost)
				synctest.Wait()
				for i, s := range stores {
					require.False(t, s.Expire("job"), "side %d is still held", i)
				}
			})
		})
	}
}

// Who waits for the new side keeps the old one meanwhile, for longer than a TTL, and starts again if it is lost.
func TestWaitForTheNewSide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(), memory.New()
		ahead := open(t, old, New, new)
		lease, err := ahead.Acquire(t.Context(), "job")
		require.NoError(t, err)
		waiting := open(t, old, Both, new)
		granted := make(chan locker.Lease, 1)
		go func() {
			l, err := waiting.Acquire(context.Background(), "job")
			require.NoError(t, err)
			granted <- l
		}()
		behind := open(t, old, Old, new)
		for range 50 {
			time.Sleep(ttl / 10)
			_, err := behind.TryAcquire(t.Context(), "job")
			require.ErrorIs(t, err, locker.ErrHeld)
		}
		require.True(t, old.Expire("job"))
		time.Sleep(2 * ttl)
		_, err = behind.TryAcquire(t.Context(), "job")
		require.ErrorIs(t, err, locker.ErrHeld, "it has taken the old side again")

		require.NoError(t, lease.Release(t.Context()))
		next := <-granted
		require.Greater(t, next.Token(), lease.Token())
		require.Greater(t, next.Remaining(), ttl/3)
		time.Sleep(3 * ttl)
		require.NoError(t, next.Context().Err())
		require.NoError(t, next.Release(t.Context()))
		synctest.Wait()
		require.False(t, old.Expire("job"))
		require.False(t, new.Expire("job"))
	})
}

// An attempt that finds the new side held gives back the old one. When the answer to that is lost, the request may still
// arrive at any time: whatever the order, it never takes away what the acquisition is granted later.
func TestGivingBackWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, new := memory.New(), memory.New()
		old := &faulty{Connector: store}
		conn := connectTo(t, &connector{old, new})
		other := connectTo(t, new)
		theirs, err := other.TryLock(t.Context(), request("job"))
		require.NoError(t, err)

		var late []func()
		old.release = func(apply func()) error {
			late = append(late, apply) // it arrives later
			return errors.New("the connection was lost")
		}
		req := request("job")
		_, err = conn.TryLock(t.Context(), req)
		require.Error(t, err)
		require.False(t, driver.IsAnswer(err), "the old side may be held still, so nothing is known: %v", err)

		require.NoError(t, theirs.Release(t.Context()))
		old.release = nil
		h, err := conn.TryLock(t.Context(), req)
		require.NoError(t, err)
		for _, apply := range late {
			apply()
		}
		report := renew(t, conn, h)
		require.NoError(t, report.Err, "the late request has freed somebody else's entry")
		require.NoError(t, h.Release(t.Context()))
		require.False(t, store.Expire("job"))

		// The same, given up: Undo leaves nothing.
		theirs, err = other.TryLock(t.Context(), request("job"))
		require.NoError(t, err)
		old.release = func(func()) error { return errors.New("the connection was lost") }
		req = request("job")
		_, err = conn.TryLock(t.Context(), req)
		require.Error(t, err)
		require.NoError(t, conn.Undo(t.Context(), req))
		require.False(t, store.Expire("job"))
		require.NoError(t, theirs.Release(t.Context()))
		require.Empty(t, conn.(*pairConn).past)
	})
}

type pairConn = conn

// When the tokens can't be raised, nothing is granted.
func TestRaisingFails(t *testing.T) {
	for name, problem := range map[string]error{"unknown": errors.New("timeout"), "denied": driver.ErrDenied} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, new := memory.New(), memory.New()
				old := &faulty{Connector: store, advance: problem}
				ahead := connectTo(t, new)
				h, err := ahead.TryLock(t.Context(), request("other"))
				require.NoError(t, err)
				require.NoError(t, ahead.(driver.Advancer).Advance(t.Context(), h, 1<<60))

				l := open(t, old, Both, new)
				_, err = l.TryAcquire(t.Context(), "job")
				if problem == driver.ErrDenied {
					require.ErrorIs(t, err, locker.ErrDenied)
				} else {
					require.ErrorIs(t, err, locker.ErrUnavailable)
				}
				synctest.Wait()
				require.False(t, store.Expire("job"))
				require.False(t, new.Expire("job"))
			})
		})
	}
}

// Release tells of each side: what isn't confirmed is asked again, and what was gone is a loss.
func TestReleaseOfBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, new := memory.New(), memory.New()
		old := &faulty{Connector: store}
		conn := connectTo(t, &connector{old, new})
		lock := func() driver.Hold {
			h, err := conn.TryLock(t.Context(), request("job"))
			require.NoError(t, err)
			return h
		}
		h := lock()
		old.release = func(func()) error { return errors.New("timeout") }
		require.False(t, driver.IsAnswer(h.Release(t.Context())))
		require.False(t, new.Expire("job"), "the new side is free already")
		old.release = nil
		require.NoError(t, h.Release(t.Context()))
		require.False(t, store.Expire("job"))

		h = lock()
		require.True(t, new.Expire("job"))
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
		require.False(t, store.Expire("job"), "the other side is freed nevertheless")
	})
}

func TestRenewalOfBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, new := memory.New(), memory.New()
		old := &faulty{Connector: store}
		conn := connectTo(t, &connector{old, new})
		h, err := conn.TryLock(t.Context(), request("job"))
		require.NoError(t, err)
		time.Sleep(ttl / 4)
		require.NoError(t, renew(t, conn, h).Err)
		old.renew = errors.New("timeout")
		r := renew(t, conn, h)
		require.Error(t, r.Err)
		require.False(t, driver.IsAnswer(r.Err))
		require.True(t, new.Expire("job"))
		require.ErrorIs(t, renew(t, conn, h).Err, driver.ErrNotHeld, "one lost side counts more than a silent one")
	})
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(), memory.New()
		conn := connectTo(t, &connector{old, new})
		look := conn.(driver.Inspector)
		e, err := look.Inspect(t.Context(), "job")
		require.NoError(t, err)
		require.Equal(t, driver.Entry{Name: "job"}, e)
		_, err = conn.TryLock(t.Context(), request("job"))
		require.NoError(t, err)
		_, err = connectTo(t, old).TryLock(t.Context(), request("only old"))
		require.NoError(t, err)
		var names []string
		require.NoError(t, look.List(t.Context(), func(e driver.Entry) bool {
			require.True(t, e.Held)
			require.NotZero(t, e.Token)
			names = append(names, e.Name)
			return true
		}))
		require.ElementsMatch(t, []string{"job", "only old"}, names)
	})
}

func TestURL(t *testing.T) {
	good := pairURL("memory://a", "memory://b", Both)
	c, err := driver.Parse(good)
	require.NoError(t, err)
	require.Equal(t, "migrate", c.Info().Backend)
	for phase, backend := range map[Phase]string{Old: "memory", New: "file"} {
		c, err := driver.Parse(pairURL("memory://a", "file:///tmp/x", phase))
		require.NoError(t, err)
		require.Equal(t, backend, c.Info().Backend)
	}
	for raw, want := range map[string]string{
		"migrate://host?from=memory%3A%2F%2Fa&to=memory%3A%2F%2Fb&phase=both": "no host",
		"migrate:?to=memory%3A%2F%2Fb&phase=both":                             `"from" is missing`,
		"migrate:?from=memory%3A%2F%2Fb&phase=both":                           `"to" is missing`,
		"migrate:?from=memory%3A%2F%2Fa&to=memory%3A%2F%2Fb":                  `"phase" is missing`,
		pairURL("memory://a", "memory://b", "between"):                        `not "between"`,
		pairURL("memory://a", "memory://a", Both):                             "are the same",
		pairURL("memory://a", "nothing://a", Both):                            `unknown scheme "nothing"`,
		pairURL("memory://a?ttl=3s", "memory://b", Both):                      `"ttl" belongs to the outer URL`,
		pairURL("memory://a?color=red", "memory://b", Both):                   `unknown parameter "color"`,
		pairURL(good, "memory://b", Both):                                     "can't be part of another",
	} {
		_, err := driver.Parse(raw)
		require.ErrorIs(t, err, driver.ErrConfig, raw)
		require.Contains(t, err.Error(), want)
	}
	// No secret of either side is told.
	_, err = driver.Parse(pairURL("redis://me:hunter2@h:port", "etcd://u:hunter2@h/x?y=z", Both))
	require.ErrorIs(t, err, driver.ErrConfig)
	require.NotContains(t, err.Error(), "hunter2")
	// A side that can't raise its tokens is found when it is opened, whatever its phase was before.
	_, err = locker.Open(t.Context(), pairURL("file://"+t.TempDir(), "memory://b", Both), nil)
	require.ErrorIs(t, err, locker.ErrConfig)
	require.True(t, strings.Contains(err.Error(), "can't be raised"), err)
}

func TestInfoIsTheWorse(t *testing.T) {
	a := described{driver.Info{Correctness: true, MinTTL: 1, Granularity: 4, Margin: 3, RenewDivisor: 4, Poll: 9, SharedSession: true}}
	b := described{driver.Info{MinTTL: 2, MaxTTL: 100, Granularity: 6, MonotonicOnly: true}}
	require.Equal(t, driver.Info{
		Backend: "migrate", MinTTL: 2, MaxTTL: 100, Granularity: 12, Margin: 3, RenewDivisor: 4, Poll: 9, SharedSession: true,
	}, (&connector{a, b}).Info())
}

type described struct{ info driver.Info }

func (d described) Info() driver.Info { return d.info }
func (d described) Connect(context.Context, driver.Config) (driver.Conn, error) {
	return nil, errors.New("not needed")
}
