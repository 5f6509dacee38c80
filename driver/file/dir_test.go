//go:build linux || darwin

package file

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// tryLock connects and tries "job", as a program does, and returns the first error.
func tryLock(t *testing.T, dir string) error {
	t.Helper()
	c, err := New(dir, nil).Connect(t.Context(), driver.Config{TTL: testTTL, Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	if err != nil {
		return err
	}
	defer c.Close()
	h, err := c.TryLock(t.Context(), request("job"))
	if err == nil {
		err = h.Release(t.Context())
	}
	return err
}

const stranger = 54321 // a user that exists nowhere

func chown(t *testing.T, path string, uid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	require.NoError(t, os.Lchown(path, uid, -1))
}

func TestHostileDirectories(t *testing.T) {
	mkdir := func(mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Chmod(dir, mode))
		}
	}
	for _, test := range []struct {
		name  string
		setup func(t *testing.T, dir string)
		want  error
		text  string
	}{
		{"missing", func(*testing.T, string) {}, nil, ""},
		{"private", mkdir(0o700), nil, ""},
		{"readable", mkdir(0o755), nil, ""},
		{"group", mkdir(0o770 | os.ModeSetgid), nil, ""},
		{"sticky", mkdir(0o777 | os.ModeSticky), nil, ""},
		{"world-writable", mkdir(0o777), driver.ErrConfig, "sticky"},
		{"world-writable, not for its group", mkdir(0o702), driver.ErrConfig, "sticky"},
		{"a stranger's", func(t *testing.T, dir string) {
			mkdir(0o755)(t, dir)
			chown(t, dir, stranger)
		}, driver.ErrConfig, "54321"},
		{"a stranger's group directory", func(t *testing.T, dir string) {
			mkdir(0o770)(t, dir)
			chown(t, dir, stranger)
		}, driver.ErrConfig, "54321"},
		{"a file", func(t *testing.T, dir string) { require.NoError(t, os.WriteFile(dir, nil, 0o600)) }, driver.ErrConfig, "not a directory"},
		{"below a file", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Dir(dir)+"/f", nil, 0o600))
			require.NoError(t, os.Symlink("f/x", dir))
		}, driver.ErrConfig, "not a directory"},
		{"a FIFO", func(t *testing.T, dir string) { require.NoError(t, unix.Mkfifo(dir, 0o600)) }, driver.ErrConfig, "not a directory"},
		{"a loop of links", func(t *testing.T, dir string) { require.NoError(t, os.Symlink("locks", dir)) }, driver.ErrConfig, "symbolic link"},
		{"one's own link", func(t *testing.T, dir string) {
			mkdir(0o700)(t, dir+".real")
			require.NoError(t, os.Symlink("locks.real", dir))
		}, nil, ""},
		{"a stranger's link to a good directory", func(t *testing.T, dir string) {
			mkdir(0o700)(t, dir+".real")
			require.NoError(t, os.Symlink("locks.real", dir))
			chown(t, dir, stranger)
		}, driver.ErrConfig, "symbolic link that belongs to user 54321"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			test.setup(t, dir)
			err := tryLock(t, dir)
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			require.ErrorContains(t, err, dir)
			require.NoFileExists(t, filepath.Join(dir, "job"))
			require.NoFileExists(t, filepath.Join(dir+".real", "job"))
		})
	}
}

func TestStrangersLinkOnTheWay(t *testing.T) {
	top := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(top, "victim"), 0o700))
	require.NoError(t, os.Symlink("victim", filepath.Join(top, "app")))
	chown(t, filepath.Join(top, "app"), stranger)
	err := tryLock(t, filepath.Join(top, "app", "locks"))
	require.ErrorIs(t, err, driver.ErrConfig)
	require.NoDirExists(t, filepath.Join(top, "victim", "locks"))
}

func TestHostileFiles(t *testing.T) {
	write := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("precious"), 0o600))
		}
	}
	for _, name := range []string{"job", ".job.token", ".job.token.new"} {
		for _, test := range []struct {
			name  string
			setup func(t *testing.T, dir string)
			text  string
		}{
			{"symbolic link", func(t *testing.T, dir string) {
				write("target")(t, dir)
				require.NoError(t, os.Symlink("target", filepath.Join(dir, name)))
			}, "symbolic link"},
			{"symbolic link to nothing", func(t *testing.T, dir string) {
				require.NoError(t, os.Symlink("target", filepath.Join(dir, name)))
			}, "symbolic link"},
			{"hard link", func(t *testing.T, dir string) {
				write("target")(t, dir)
				require.NoError(t, os.Link(filepath.Join(dir, "target"), filepath.Join(dir, name)))
			}, "hard link"},
			{"FIFO", func(t *testing.T, dir string) {
				require.NoError(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
			}, ""},
			{"directory", func(t *testing.T, dir string) {
				require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			}, ""},
			{"socket", func(t *testing.T, dir string) {
				require.NoError(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFSOCK|0o600, 0))
			}, ""},
			{"stranger's file", func(t *testing.T, dir string) {
				write(name)(t, dir)
				chown(t, filepath.Join(dir, name), stranger)
			}, "belongs to user 54321"},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				dir := t.TempDir()
				test.setup(t, dir)
				err := tryLock(t, dir)
				require.ErrorIs(t, err, driver.ErrConflict)
				require.ErrorContains(t, err, name)
				require.ErrorContains(t, err, test.text)
				if b, err := os.ReadFile(filepath.Join(dir, "target")); err == nil {
					require.Equal(t, "precious", string(b))
				} else {
					require.NoFileExists(t, filepath.Join(dir, "target"), "nothing is created through a link")
				}
			})
		}
	}
}

// In a directory of a trusted group its members' files are trusted; the umask doesn't keep them out.
func TestGroupDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o770))
	long := strings.Repeat("x", 300)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	c := connect(t, dir)
	for _, name := range []string{"job", long} {
		release(t, lock(t, c, name))
	}
	require.NoError(t, filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o060), fi.Mode()&0o060, path)
		require.Zero(t, fi.Mode()&0o006, path)
		return os.Lchown(path, map[bool]int{true: 0, false: stranger}[path == dir], -1)
	}))
	for _, name := range []string{"job", long} {
		release(t, lock(t, c, name))
	}
}

func TestFilesArePrivate(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := filepath.Join(t.TempDir(), "a", "b")
	release(t, lock(t, connect(t, dir), strings.Repeat("x", 300)))
	require.NoError(t, filepath.Walk(filepath.Dir(dir), func(path string, fi os.FileInfo, err error) error {
		require.NoError(t, err)
		require.Zero(t, fi.Mode()&0o077, path)
		return nil
	}))
}

func TestRefusedFileSystems(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	for _, typ := range []string{"nfs", "cifs", "fuse or virtiofs", "9p", "0x1234"} {
		c := &conn{path: dir, statfs: func(int) (fileSystem, error) { return fileSystem{name: typ}, nil }}
		_, err := c.directory(true)
		require.ErrorIs(t, err, driver.ErrConfig)
		require.ErrorContains(t, err, typ)
		require.NoDirExists(t, dir, "nothing is created there")
	}
}
