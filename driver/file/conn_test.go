//go:build linux || darwin

package file

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

const testTTL = 3 * time.Second

func connect(t *testing.T, dir string) *conn {
	t.Helper()
	c, err := New(dir, nil).Connect(t.Context(), driver.Config{TTL: testTTL, Owner: "test:1", Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c.(*conn)
}

func request(name string) driver.Request {
	var id [16]byte
	rand.Read(id[:])
	return driver.Request{Name: name, ID: hex.EncodeToString(id[:]), Owner: "test:1"}
}

func lock(t *testing.T, c *conn, name string) driver.Hold {
	t.Helper()
	h, err := c.TryLock(t.Context(), request(name))
	require.NoError(t, err, name)
	return h
}

func release(t *testing.T, h driver.Hold) {
	t.Helper()
	require.NoError(t, h.Release(context.Background()))
}

func renew(c *conn, holds ...driver.Hold) []driver.Renewal {
	results := make([]driver.Renewal, len(holds))
	c.Renew(context.Background(), holds, func(i int, r driver.Renewal) { results[i] = r })
	return results
}

func TestExclusion(t *testing.T) {
	dir := t.TempDir()
	a, b := connect(t, dir), connect(t, dir)
	before := clock.System()
	h := lock(t, a, "job")
	require.False(t, h.Grant().Sent.Before(before))
	require.Equal(t, testTTL, h.Grant().TTL)
	_, err := b.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld)
	_, err = a.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld, "another acquisition of the same Conn is a stranger")
	require.NoError(t, renew(a, h)[0].Err)
	release(t, h)
	require.NoError(t, h.Release(t.Context()), "it is gone by this hold's release")
	require.ErrorIs(t, renew(a, h)[0].Err, driver.ErrNotHeld)
	release(t, lock(t, b, "job"))
}

func TestSameID(t *testing.T) {
	c := connect(t, t.TempDir())
	req := request("job")
	first, err := c.TryLock(t.Context(), req)
	require.NoError(t, err)
	again, err := c.TryLock(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, first.Grant().Token, again.Grant().Token)
	require.True(t, first.Grant().Sent.Before(again.Grant().Sent), "the TTL is set anew")
	require.NoError(t, c.Undo(t.Context(), request("job")), "a stranger's ID")
	require.NoError(t, renew(c, again)[0].Err)
	require.NoError(t, c.Undo(t.Context(), req))
	require.ErrorIs(t, renew(c, again)[0].Err, driver.ErrNotHeld)
	release(t, lock(t, c, "job"))
}

// A file system that hangs: TryLock and Renew end with their context, and Undo waits for the attempt and takes it back.
func TestHungFileSystem(t *testing.T) {
	c := connect(t, t.TempDir())
	held := lock(t, c, "other")
	hang, hanging := make(chan struct{}), make(chan struct{})
	c.wall = func() time.Time { close(hanging); <-hang; return time.Now() }
	ctx, cancel := context.WithCancel(t.Context())
	req := request("job")
	got := make(chan error)
	go func() { _, err := c.TryLock(ctx, req); got <- err }()
	<-hanging
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Undo(short, req), context.DeadlineExceeded, "it may still be granted")

	e := held.(*hold).entry
	e.mu.Lock()
	calls := 0
	expired, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c.Renew(expired, []driver.Hold{held}, func(i int, r driver.Renewal) {
		calls++
		require.ErrorIs(t, r.Err, context.DeadlineExceeded)
	})
	require.Equal(t, 1, calls)
	e.mu.Unlock()

	close(hang)
	require.NoError(t, c.Undo(t.Context(), req))
	release(t, lock(t, connect(t, c.path), "job"))
}

func TestCloseUnlocks(t *testing.T) {
	dir := t.TempDir()
	c, err := New(dir, nil).Connect(t.Context(), driver.Config{TTL: testTTL, Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	require.NoError(t, err)
	h := lock(t, c.(*conn), "job")
	require.NoError(t, c.Close())
	release(t, lock(t, connect(t, dir), "job"))
	_, err = c.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, errClosed)
	require.ErrorIs(t, h.Release(t.Context()), errClosed)
}

func TestTokensRise(t *testing.T) {
	dir := t.TempDir()
	var last uint64
	take := func(c *conn) uint64 {
		h := lock(t, c, "job")
		defer release(t, h)
		token := h.Grant().Token
		require.Greater(t, token, last)
		last = token
		return token
	}
	a, b := connect(t, dir), connect(t, dir)
	for range 10 {
		take(a)
		take(b)
	}
	require.InDelta(t, time.Now().UnixMicro(), last, float64(time.Hour.Microseconds()), "it is the wall clock")
	// A restart with a clock that was stepped back.
	c := connect(t, dir)
	c.wall = func() time.Time { return time.Unix(1000, 0) }
	previous := last
	require.Equal(t, previous+1, take(c))
	// A clock before the epoch.
	c.wall = func() time.Time { return time.Unix(-1000, 0) }
	require.Equal(t, previous+2, take(c))
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	a, b := connect(t, filepath.Join(dir, "x")), connect(t, filepath.Join(dir, "x"))
	e, err := b.Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.Equal(t, driver.Entry{Name: "job", Waiters: -1}, e)
	require.NoDirExists(t, filepath.Join(dir, "x"), "looking creates nothing")
	long := strings.Repeat("a.b/", 128)
	req := request("job")
	before := time.Now().Truncate(time.Millisecond)
	h, err := a.TryLock(t.Context(), req)
	require.NoError(t, err)
	h2 := lock(t, a, long)
	e, err = b.Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.True(t, e.Held)
	require.Equal(t, []any{req.ID, "test:1", h.Grant().Token}, []any{e.ID, e.Owner, e.Token})
	require.WithinRange(t, e.Since, before, time.Now())
	var names []string
	require.NoError(t, b.List(t.Context(), func(e driver.Entry) bool { names = append(names, e.Name); return true }))
	require.ElementsMatch(t, []string{"job", long}, names)
	release(t, h2)
	release(t, h)
	e, err = b.Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.False(t, e.Held)
	names = nil
	require.NoError(t, b.List(t.Context(), func(e driver.Entry) bool { names = append(names, e.Name); return true }))
	require.Empty(t, names)

	stop := flock1(t, filepath.Join(dir, "x", "job"))
	e, err = b.Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.Equal(t, driver.Entry{Name: "job", Held: true, Waiters: -1}, e, "a foreign holder has no label")
	stop()
}

// Looking takes a shared lock for a moment; nobody may take it for a holder.
func TestInspectDisturbsNobody(t *testing.T) {
	dir := t.TempDir()
	c, looker := connect(t, dir), connect(t, dir)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				looker.Inspect(context.Background(), "job")
			}
		}
	}()
	for range 300 {
		release(t, lock(t, c, "job"))
	}
	close(stop)
	<-done
}

// flock1 holds path with flock(1) until stop is called.
func flock1(t *testing.T, path string) (stop func()) {
	t.Helper()
	bin, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("flock(1) isn't installed")
	}
	cmd := exec.Command(bin, "--nonblock", path, "sh", "-c", "echo locked; read x")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var b [7]byte
	_, err = out.Read(b[:])
	require.NoError(t, err)
	return func() { in.Close(); cmd.Wait() }
}

func TestFlock1(t *testing.T) {
	dir := t.TempDir()
	c := connect(t, dir)
	h := lock(t, c, "job") // also creates the file
	err := exec.Command("flock", "--nonblock", filepath.Join(dir, "job"), "true").Run()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("flock(1) isn't installed")
	}
	require.Error(t, err, "flock(1) got a held lock")
	release(t, h)
	stop := flock1(t, filepath.Join(dir, "job"))
	_, err = c.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld)
	// The usual shell form truncates the locked file.
	_, err = c.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld)
	stop()
	release(t, lock(t, c, "job"))
	out, err := exec.Command("sh", "-c", `( flock 9; echo $$ >&9 ) 9>"$1"`, "sh", filepath.Join(dir, "job")).CombinedOutput()
	require.NoError(t, err, string(out))
	h2 := lock(t, c, "job")
	require.Greater(t, h2.Grant().Token, h.Grant().Token)
	release(t, h2)
	// A reader's shared lock excludes as well.
	cmd := exec.Command("flock", "--shared", filepath.Join(dir, "job"), "sh", "-c", "echo; read x; true")
	in, _ := cmd.StdinPipe()
	pipe, _ := cmd.StdoutPipe()
	require.NoError(t, cmd.Start())
	_, err = pipe.Read(make([]byte, 1))
	require.NoError(t, err)
	_, err = c.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld)
	in.Close()
	require.NoError(t, cmd.Wait())
}
