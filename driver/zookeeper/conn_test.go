package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
	"github.com/leasekit/locker/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

const ttl = 4 * time.Second

// uniquePrefix keeps a test apart from all others on the shared server.
func uniquePrefix(t testing.TB) string {
	return "/locker-test/" + newID()[:12]
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newRequest(name string) driver.Request {
	return driver.Request{Name: name, ID: newID(), Owner: "test:1"}
}

func config(t testing.TB, ttl time.Duration) driver.Config {
	logger := slog.New(slog.DiscardHandler)
	if testing.Verbose() && os.Getenv("LOCKER_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return driver.Config{TTL: ttl, Owner: "test:1", Logger: logger, Now: clock.System}
}

func dial(t testing.TB, addr, prefix string, o *Options) *conn {
	t.Helper()
	return dialTTL(t, addr, prefix, ttl, o)
}

func dialTTL(t testing.TB, addr, prefix string, ttl time.Duration, o *Options) *conn {
	t.Helper()
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Prefix = prefix
	c, err := New(strings.Split(addr, ","), &opts).Connect(context.Background(), config(t, ttl))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*conn)
}

// admin is a client of its own, with the server's root as its root.
func admin(t testing.TB, addr string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(strings.Split(addr, ","), 10*time.Second, zk.WithLogger(quiet{}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), d)
	t.Cleanup(stop)
	return ctx
}

func TestLockAndRelease(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t) + "/not/there/yet"
	a, b := dial(t, s.Addr, prefix, nil), dial(t, s.Addr, prefix, nil)
	ctx := within(t, 20*time.Second)

	var last uint64
	for range 3 {
		h, err := a.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		require.Greater(t, h.Grant().Token, last)
		require.Equal(t, ttl, h.Grant().TTL)
		last = h.Grant().Token
		for _, c := range []*conn{a, b} {
			_, err = c.TryLock(ctx, newRequest("x"))
			require.ErrorIs(t, err, driver.ErrHeld)
		}
		require.NoError(t, h.Release(ctx))
		require.ErrorIs(t, h.Release(ctx), driver.ErrNotHeld)
	}
	z := admin(t, s.Addr)
	children, _, err := z.Children(prefix + "/x")
	require.NoError(t, err)
	require.Empty(t, children)
}

func TestSameIDAgain(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	a, b := dial(t, s.Addr, prefix, nil), dial(t, s.Addr, prefix, nil)
	ctx := within(t, 20*time.Second)
	req := newRequest("x")
	h, err := a.TryLock(ctx, req)
	require.NoError(t, err)
	again, err := a.TryLock(ctx, req)
	require.NoError(t, err)
	require.Equal(t, h.Grant().Token, again.Grant().Token)
	_, err = b.TryLock(ctx, req)
	require.ErrorIs(t, err, driver.ErrHeld, "the same ID on another session is a stranger")
	z := admin(t, s.Addr)
	children, _, err := z.Children(prefix + "/x")
	require.NoError(t, err)
	require.Len(t, children, 1)
	require.NoError(t, a.Undo(ctx, req))
	children, _, err = z.Children(prefix + "/x")
	require.NoError(t, err)
	require.Empty(t, children)
}

func TestQueue(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	ctx := within(t, 30*time.Second)
	first, err := dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
	require.NoError(t, err)

	const n = 5
	type grant struct {
		who   int
		token uint64
	}
	got := make(chan grant, n)
	z := admin(t, s.Addr)
	var wg sync.WaitGroup
	for i := range n {
		c := dial(t, s.Addr, prefix, nil)
		wg.Go(func() {
			h, err := c.Lock(ctx, newRequest("x"))
			if err != nil {
				t.Error(err)
				return
			}
			got <- grant{i, h.Grant().Token}
			if err := h.Release(ctx); err != nil {
				t.Error(err)
			}
		})
		require.Eventually(t, func() bool {
			children, _, err := z.Children(prefix + "/x")
			return err == nil && len(children) == i+2
		}, 10*time.Second, 2*time.Millisecond)
	}
	require.Empty(t, got)
	require.NoError(t, first.Release(ctx))
	released := time.Now()
	wg.Wait()
	require.Less(t, time.Since(released), lookAgain/2, "a watch tells the next")
	close(got)
	last, next := first.Grant().Token, 0
	for g := range got {
		require.Equal(t, next, g.who, "first come, first served")
		require.Greater(t, g.token, last)
		last, next = g.token, next+1
	}
	require.Equal(t, n, next)
}

func TestRenewProvesNodes(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	c := dial(t, s.Addr, prefix, nil)
	ctx := within(t, 30*time.Second)
	z := admin(t, s.Addr)
	var holds []driver.Hold
	for i := range 5 {
		h, err := c.TryLock(ctx, newRequest(fmt.Sprint(i)))
		require.NoError(t, err)
		holds = append(holds, h)
	}
	renew := func() []driver.Renewal {
		out := make([]driver.Renewal, len(holds))
		require.Zero(t, c.Renew(ctx, holds, func(i int, r driver.Renewal) { out[i] = r }))
		return out
	}
	for _, r := range renew() {
		require.NoError(t, r.Err)
		require.Equal(t, ttl, r.TTL)
	}
	require.NoError(t, z.Delete(holds[1].(*hold).path, -1))
	_, err := z.Set(holds[3].(*hold).path, []byte("somebody else"), -1)
	require.NoError(t, err)
	for i, r := range renew() {
		if i == 1 || i == 3 {
			require.ErrorIs(t, r.Err, driver.ErrNotHeld)
			require.ErrorIs(t, holds[i].Release(ctx), driver.ErrNotHeld)
		} else {
			require.NoError(t, r.Err)
		}
	}
	data, _, err := z.Get(holds[3].(*hold).path)
	require.NoError(t, err)
	require.Equal(t, "somebody else", string(data))
}

// TestOWN05OverwrittenBeforeTheFirstRenewal is without the help of a watch.
func TestOWN05OverwrittenBeforeTheFirstRenewal(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	c := dial(t, s.Addr, prefix, nil)
	ctx := within(t, 30*time.Second)
	z := admin(t, s.Addr)
	for name, ends := range map[string]func(driver.Hold) error{
		"release": func(h driver.Hold) error { return h.Release(ctx) },
		"renewal": func(h driver.Hold) error { return renewOne(ctx, c, h).Err },
		"undo then release": func(h driver.Hold) error {
			require.NoError(t, c.Undo(ctx, h.(*hold).req))
			return h.Release(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := c.TryLock(ctx, newRequest(name))
			require.NoError(t, err)
			_, err = z.Set(h.(*hold).path, []byte("somebody else"), -1)
			require.NoError(t, err)
			require.ErrorIs(t, ends(h), driver.ErrNotHeld)
			data, _, err := z.Get(h.(*hold).path)
			require.NoError(t, err)
			require.Equal(t, "somebody else", string(data))
		})
	}
}
