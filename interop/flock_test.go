//go:build linux

package interop

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	_ "github.com/leasekit/locker/driver/file"
)

// TestFlock has flock(1) and us fight for one file. The witness is a directory that each makes while it holds the lock:
// making it fails if somebody else is inside.
func TestFlock(t *testing.T) {
	bin, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("flock(1) isn't installed")
	}
	dir := t.TempDir()
	l, err := locker.Open(t.Context(), "file://"+dir, nil)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	file, inside := filepath.Join(dir, "job"), filepath.Join(dir, "inside")

	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	script := `i=0; while [ $i -lt 50 ]; do "$0" "$1" sh -c 'mkdir "$0" && sleep 0.005 && rmdir "$0"' "$2" || exit 9; sleep 0.03; i=$((i+1)); done`
	var loops []*exec.Cmd
	for range 2 {
		cmd := exec.CommandContext(ctx, "sh", "-c", script, bin, file, inside)
		require.NoError(t, cmd.Start())
		loops = append(loops, cmd)
	}
	ended := make(chan error, len(loops))
	for _, cmd := range loops {
		go func() { ended <- cmd.Wait() }()
	}
	grants, during := 0, 0
	for running := len(loops); running > 0; {
		select {
		case err := <-ended:
			require.NoError(t, err, "flock(1) was granted what somebody else held")
			running--
			continue
		default:
		}
		lease, err := l.Acquire(ctx, "job")
		require.NoError(t, err)
		require.NoError(t, os.Mkdir(inside, 0o700), "granted while flock(1) held")
		time.Sleep(2 * time.Millisecond)
		require.NoError(t, os.Remove(inside))
		require.NoError(t, lease.Release(ctx))
		grants++
		if running == len(loops) {
			during++
		}
		time.Sleep(5 * time.Millisecond)
	}
	require.Greater(t, during, 3, "granted %d times, but not under contention", grants)
	t.Logf("granted %d times", grants)
}

// TestFlockHolds tries each while the other one holds.
func TestFlockHolds(t *testing.T) {
	bin, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("flock(1) isn't installed")
	}
	dir := t.TempDir()
	l, err := locker.Open(t.Context(), "file://"+dir, nil)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	file := filepath.Join(dir, "job")

	lease, err := l.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	require.Error(t, exec.Command(bin, "--nonblock", file, "true").Run())
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, exec.Command(bin, "--nonblock", file, "true").Run())

	holder := exec.Command(bin, file, "sh", "-c", "echo held; read line")
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	defer holder.Wait()
	defer in.Close()
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "job")
	require.ErrorIs(t, err, locker.ErrHeld)
	granted := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), "job")
		granted <- err
	}()
	select {
	case err := <-granted:
		t.Fatalf("Acquire returned %v while flock(1) held", err)
	case <-time.After(100 * time.Millisecond):
	}
	in.Close() // it ends, and the kernel frees its lock
	require.NoError(t, <-granted)
}
