//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/internal/testserver"
)

// 73 says that somebody has to allow something, on every command.
func TestDenied(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		// Root may do everything, so the program runs as somebody else: in a directory that this user can reach.
		dir, err := os.MkdirTemp("", "locker-denied-")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		require.NoError(t, os.Chmod(dir, 0o755))
		program, err := os.ReadFile(binary)
		require.NoError(t, err)
		copied := filepath.Join(dir, "locker")
		require.NoError(t, os.WriteFile(copied, program, 0o755))
		locks := filepath.Join(dir, "locks")
		require.NoError(t, os.Mkdir(locks, 0o555))
		p := place{url: "file://" + locks}
		for _, args := range [][]string{{"run", "job", "true"}, {"run", "--no-wait", "--ok-if-held", "job", "true"}} {
			c := p.command(t, args...)
			c.Path, c.Dir = copied, dir
			if os.Geteuid() == 0 {
				c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
			}
			c.start()
			require.Equal(t, 73, c.code(), "%q", args)
			said, err := os.ReadFile(c.Stderr.(*os.File).Name())
			require.NoError(t, err)
			require.Contains(t, string(said), "permission denied")
		}
		entries, err := os.ReadDir(locks)
		require.NoError(t, err)
		require.Empty(t, entries)
	})
	t.Run("redis", func(t *testing.T) {
		s := testserver.Need(t, testserver.Redis)
		c := redis.NewClient(&redis.Options{Addr: s.Addr})
		t.Cleanup(func() { c.Close() })
		user := "cli-" + rand.Text()
		require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", user, "on", ">correct", "~*", "&*", "+@all").Err())
		t.Cleanup(func() { c.Do(context.Background(), "ACL", "DELUSER", user) })
		for _, login := range []string{user + ":wrong-password@", "nobody:wrong-password@"} {
			p := place{url: "redis://" + login + s.Addr}
			for _, args := range [][]string{{"run", "job", "touch", "ran"}, {"inspect", "job"}, {"list"}, {"doctor"}} {
				c := p.run(t, args...)
				require.Equal(t, 73, c.code(), "%q: %s", args, c.stderr())
				require.Len(t, lines(c.stderr()), 1)
				require.NotContains(t, c.stderr(), "wrong-password")
				require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
			}
		}
		p := place{url: "redis://" + user + ":correct@" + s.Addr}
		require.Equal(t, 0, p.run(t, "run", user, "true").code())
	})
}
