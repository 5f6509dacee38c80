//go:build linux || darwin

package file

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

func TestDamagedCounter(t *testing.T) {
	const holder = "0123456789abcdef0123456789abcdef 1700000000000 host:1\n"
	future := uint64(time.Now().Add(time.Hour).UnixMicro())
	for _, test := range []struct {
		name, content string
		floor         uint64 // what the file says
		warns         bool
	}{
		{"empty", "", 0, true},
		{"cut in the token", fmt.Sprint(future), 0, true},
		{"no holder", fmt.Sprintf("%d\n", future), future, false},
		{"cut in the holder", fmt.Sprintf("%d\n0123456789ab", future), future, false},
		{"whole", fmt.Sprintf("%d\n%s", future, holder), future, false},
		{"longer owner than ours", fmt.Sprintf("%d\n0123 17 %s\n", future, strings.Repeat("x", 1<<20)), future, false},
		{"zero", "0\n", 0, true},
		{"negative", "-5\n", 0, true},
		{"beyond int64", fmt.Sprintf("%d\n", uint64(math.MaxInt64)+1), 0, true},
		{"leading zero", fmt.Sprintf("0%d\n", future), 0, true},
		{"garbage", "\x00\xff\n\n\n", 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".job.token"), []byte(test.content), 0o600))
			c := connect(t, dir)
			var log bytes.Buffer
			c.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			before := uint64(time.Now().UnixMicro())
			h := lock(t, c, "job")
			require.GreaterOrEqual(t, h.Grant().Token, before)
			require.Greater(t, h.Grant().Token, test.floor)
			require.LessOrEqual(t, h.Grant().Token, max(test.floor+1, uint64(time.Now().UnixMicro())))
			require.Equal(t, test.warns, log.Len() > 0, log.String())
			release(t, h)
		})
	}
	t.Run("used up", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, ".job.token")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "%d\n", uint64(math.MaxInt64)), 0o600))
		_, err := connect(t, dir).TryLock(t.Context(), request("job"))
		require.ErrorIs(t, err, driver.ErrConflict)
		require.NoError(t, exec.Command("flock", "--nonblock", filepath.Join(dir, "job"), "true").Run(), "nothing is locked")
	})
}

// What a crash can leave after each step of mint; the next token is above every one that was returned.
func TestCounterSurvivesACrashAtAnyStep(t *testing.T) {
	const stored = uint64(math.MaxInt64 - 1000) // far above the wall clock, so that only the file can keep it rising
	old := fmt.Sprintf("%d\n", stored)
	next := fmt.Sprintf("%d\n0123 17 owner\n", stored+1)
	for _, test := range []struct {
		name           string
		file, newFile  string
		want           uint64
		temporaryStays bool
	}{
		{"before the temporary file is created", old, "", stored + 1, false},
		{"before it is written", old, "", stored + 1, true},
		{"while it is written", old, next[:5], stored + 1, true},
		{"before it is renamed", old, next, stored + 1, true},
		{"of a longer one", old, next + strings.Repeat("x", 100), stored + 1, true},
		{"after it is renamed", next, "", stored + 2, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, ".job.token")
			require.NoError(t, os.WriteFile(path, []byte(test.file), 0o600))
			if test.temporaryStays {
				require.NoError(t, os.WriteFile(path+".new", []byte(test.newFile), 0o600))
			}
			h := lock(t, connect(t, dir), "job")
			require.Equal(t, test.want, h.Grant().Token)
			require.NoFileExists(t, path+".new")
			release(t, h)
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%d\n", test.want), string(b), "the holder is struck out")
		})
	}
}

// A full disk, or any other failure while the token is written: an unknown, nothing locked, and the old token stays.
func TestTokenCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	c := connect(t, dir)
	h := lock(t, c, "job")
	release(t, h)
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".job.token.new"), 0o700))
	_, err := c.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrConflict)
	require.ErrorContains(t, err, ".job.token.new")
	require.NoError(t, exec.Command("flock", "--nonblock", filepath.Join(dir, "job"), "true").Run(), "nothing is locked")
	require.NoError(t, os.Remove(filepath.Join(dir, ".job.token.new")))
	h2 := lock(t, c, "job")
	require.Greater(t, h2.Grant().Token, h.Grant().Token)
}

// TestMain lets tests start this binary as another process that takes a lock, prints its token and keeps it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LOCKER_FILE_TEST_HOLD"); dir != "" {
		holdForTest(dir)
		return
	}
	os.Exit(m.Run())
}

// holdForTest takes the lock "job" again and again if it is told to, and keeps the last one.
func holdForTest(dir string) {
	ctx := context.Background()
	c, err := New(dir, nil).Connect(ctx, driver.Config{TTL: testTTL, Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	rounds, _ := strconv.Atoi(os.Getenv("LOCKER_FILE_TEST_ROUNDS"))
	for i := 0; ; i++ {
		h, err := c.TryLock(ctx, request("job"))
		if err != nil {
			if errors.Is(err, driver.ErrHeld) {
				continue
			}
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(h.Grant().Token)
		if i >= rounds && rounds >= 0 {
			bufio.NewReader(os.Stdin).ReadByte()
			return
		}
		h.Release(ctx)
	}
}

// holder starts a process that holds "job" and returns it with its token.
func holder(t *testing.T, dir string, rounds int) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOCKER_FILE_TEST_HOLD="+dir, "LOCKER_FILE_TEST_ROUNDS="+strconv.Itoa(rounds))
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	s := bufio.NewScanner(out)
	require.True(t, s.Scan())
	return cmd, s
}

func TestLEAK04KilledHolderFreesAtOnce(t *testing.T) {
	dir := t.TempDir()
	cmd, out := holder(t, dir, 0)
	token, err := strconv.ParseUint(out.Text(), 10, 64)
	require.NoError(t, err)
	c := connect(t, dir)
	_, err = c.TryLock(t.Context(), request("job"))
	require.ErrorIs(t, err, driver.ErrHeld)
	e, err := c.Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.Equal(t, token, e.Token)
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	h := lock(t, c, "job") // no poll: the kernel has freed it before the process can be waited for
	require.Greater(t, h.Grant().Token, token)
}

// Processes that are killed at random moments, also while they write the token.
func TestTokensRiseOverKilledProcesses(t *testing.T) {
	dir := t.TempDir()
	var last uint64
	for range 20 {
		cmd, out := holder(t, dir, -1)
		lines := []string{out.Text()}
		for range 5 {
			require.True(t, out.Scan())
			lines = append(lines, out.Text())
		}
		require.NoError(t, cmd.Process.Kill())
		for out.Scan() {
			lines = append(lines, out.Text())
		}
		cmd.Wait()
		for _, line := range lines {
			token, err := strconv.ParseUint(line, 10, 64)
			require.NoError(t, err)
			require.Greater(t, token, last)
			last = token
		}
	}
	h := lock(t, connect(t, dir), "job")
	require.Greater(t, h.Grant().Token, last)
}
