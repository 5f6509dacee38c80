package file

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

func TestRealFileSystems(t *testing.T) {
	for path, typ := range map[string]string{"/proc": "proc", "/proc/locks.d": "proc", "/sys/kernel": "sysfs", "/dev/pts/x/y": "devpts"} {
		err := tryLock(t, path)
		require.ErrorIs(t, err, driver.ErrConfig, path)
		require.ErrorContains(t, err, "type "+typ)
	}
	dir, err := os.MkdirTemp("/dev/shm", "locker-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	require.NoError(t, tryLock(t, dir))
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer f.Close()
	fsys, err := statfs(int(f.Fd()))
	require.NoError(t, err)
	require.Equal(t, fileSystem{name: "tmpfs", local: true}, fsys)
}

func TestLocalTypes(t *testing.T) {
	for _, magic := range []uint32{unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.SMB2_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC, gfs2Magic, lustreMagic, gpfsMagic} {
		require.Empty(t, localTypes[magic])
		require.NotEmpty(t, otherTypes[magic])
	}
}

// Without root's powers: a directory or file that may not be used.
func TestDenied(t *testing.T) {
	if os.Getenv("LOCKER_FILE_TEST_DENIED") == "" {
		if os.Geteuid() == 0 {
			// The directories belong to root, as those of a package do; the test itself runs as somebody else.
			top, err := os.MkdirTemp("", "locker-test-")
			require.NoError(t, err)
			defer os.RemoveAll(top)
			require.NoError(t, os.Chmod(top, 0o755))
			bin := filepath.Join(top, "test")
			b, err := os.ReadFile(os.Args[0])
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(bin, b, 0o755))
			for name, mode := range map[string]os.FileMode{"readonly": 0o755, "closed": 0o700, "unsearchable": 0o744, "sticky": 0o777 | os.ModeSticky} {
				require.NoError(t, os.Mkdir(filepath.Join(top, name), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(top, name, "taken"), nil, 0o600))
				require.NoError(t, os.Chmod(filepath.Join(top, name), mode))
			}
			cmd := exec.Command(bin, "-test.run=^TestDenied$", "-test.v")
			cmd.Dir = "/"
			cmd.Env = append(os.Environ(), "LOCKER_FILE_TEST_DENIED="+top, "TMPDIR=/tmp")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger, NoSetGroups: true}}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "--- PASS: TestDenied/")
			return
		}
		t.Skip("it takes root to set up")
	}
	top := os.Getenv("LOCKER_FILE_TEST_DENIED")
	for _, name := range []string{"readonly", "closed", "unsearchable", "closed/below", "readonly/below"} {
		t.Run(name, func(t *testing.T) {
			err := tryLock(t, filepath.Join(top, name))
			require.ErrorIs(t, err, driver.ErrDenied)
			require.ErrorContains(t, err, "permission denied")
		})
	}
	t.Run("root's file in a shared directory", func(t *testing.T) {
		c := connect(t, filepath.Join(top, "sticky"))
		_, err := c.TryLock(t.Context(), request("taken"))
		require.ErrorIs(t, err, driver.ErrDenied)
		release(t, lock(t, c, "free"))
	})
	t.Run("looking needs no right to write", func(t *testing.T) {
		e, err := connect(t, filepath.Join(top, "readonly")).Inspect(t.Context(), "nothing")
		require.NoError(t, err)
		require.False(t, e.Held)
	})
}

// The descriptor doesn't leak into children that are started while the lock is held.
func TestChildrenDoNotInherit(t *testing.T) {
	dir := t.TempDir()
	c := connect(t, dir)
	h := lock(t, c, "job")
	out, err := exec.Command("sh", "-c", "ls -l /proc/self/fd/").CombinedOutput()
	require.NoError(t, err)
	require.NotContains(t, string(out), dir)
	release(t, h)
}
