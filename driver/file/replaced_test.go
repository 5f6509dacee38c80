//go:build linux || darwin

package file

import (
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
)

func TestReplacedFile(t *testing.T) {
	move := func(t *testing.T, path string) { require.NoError(t, os.Rename(path, path+".moved")) }
	for _, test := range []struct {
		name   string
		change func(t *testing.T, dir string)
	}{
		{"removed", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "job"))) }},
		{"replaced", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o600))
			require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "job")))
		}},
		{"replaced by a link to itself", func(t *testing.T, dir string) {
			move(t, filepath.Join(dir, "job"))
			require.NoError(t, os.Symlink("job.moved", filepath.Join(dir, "job")))
		}},
		{"directory moved", func(t *testing.T, dir string) { move(t, dir) }},
		{"directory replaced", func(t *testing.T, dir string) {
			move(t, dir)
			require.NoError(t, os.Mkdir(dir, 0o700))
		}},
		{"directory removed", func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(dir)) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			c := connect(t, dir)
			h := lock(t, c, "job")
			test.change(t, dir)
			require.ErrorIs(t, renew(c, h)[0].Err, driver.ErrNotHeld)
			require.ErrorIs(t, h.Release(t.Context()), driver.ErrNotHeld)
			if strings.Contains(test.name, "link") {
				_, err := c.TryLock(t.Context(), request("job"))
				require.ErrorIs(t, err, driver.ErrConflict)
				return
			}
			// The same Conn meets others at the new file.
			h2 := lock(t, c, "job")
			require.Greater(t, h2.Grant().Token, h.Grant().Token)
			require.NoError(t, renew(c, h2)[0].Err)
			_, err := connect(t, dir).TryLock(t.Context(), request("job"))
			require.ErrorIs(t, err, driver.ErrHeld)
		})
	}
}

// The file is removed between the lock and the last look: what is granted is the new one.
func TestReplacedWhileMinting(t *testing.T) {
	dir := t.TempDir()
	c := connect(t, dir)
	removals := 0
	c.wall = func() time.Time {
		if removals++; removals <= 2 {
			require.NoError(t, os.Remove(filepath.Join(dir, "job")))
		}
		return time.Now()
	}
	h := lock(t, c, "job")
	require.Equal(t, 3, removals)
	require.NoError(t, renew(c, h)[0].Err)
	_, err := connect(t, dir).TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld)
}

// A holder whose file was removed while it mints doesn't set the counter back for the one who locks the new file.
func TestCounterDoesNotFallBack(t *testing.T) {
	dir := t.TempDir()
	slow, fast := connect(t, dir), connect(t, dir)
	var once sync.Once
	minting, goOn := make(chan struct{}), make(chan struct{})
	slow.wall = func() time.Time {
		once.Do(func() {
			close(minting)
			<-goOn
		})
		return time.Unix(1000, 0) // its clock is behind
	}
	done := make(chan driver.Hold)
	go func() { done <- lock(t, slow, "job") }()
	<-minting
	require.NoError(t, os.Remove(filepath.Join(dir, "job")))
	_, err := fast.TryLock(t.Context(), request("job"))
	require.False(t, err == nil || driver.IsAnswer(err), "the counter is being written: %v", err)
	close(goOn)
	first := <-done
	release(t, first)
	h := lock(t, fast, "job")
	require.Greater(t, h.Grant().Token, first.Grant().Token)
}

// An unlink between open and flock must not give two holders.
func TestReplacedWhileLocking(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		for {
			select {
			case <-stop:
				return
			default:
				os.Remove(filepath.Join(dir, "job"))
				time.Sleep(time.Duration(mathrand.Int64N(int64(5 * time.Millisecond))))
			}
		}
	}()
	c := connect(t, dir)
	var last uint64
	for granted := 0; granted < 100; {
		h, err := c.TryLock(t.Context(), request("job"))
		if err != nil {
			require.False(t, driver.IsAnswer(err), err)
			continue
		}
		granted++
		require.Greater(t, h.Grant().Token, last)
		last = h.Grant().Token
		if err := h.Release(t.Context()); err != nil {
			require.ErrorIs(t, err, driver.ErrNotHeld)
		}
	}
	close(stop)
	<-removed
}
