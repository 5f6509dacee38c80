package file_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasekit/locker/conformance"
	_ "github.com/leasekit/locker/driver/file"
)

func TestConformance(t *testing.T) {
	conformance.Contender()
	dir := t.TempDir()
	conformance.Run(t, conformance.Backend{
		Name:         "file",
		URL:          func([]string) string { return "file://" + dir },
		TTL:          time.Second,
		TakeOver:     time.Second,
		ProcessBound: true,
		Admin:        directory(dir).admin(),
		Excuses: map[string]string{
			"Addrs":            "there is no connection",
			"Servers.Stop":     "there is no server",
			"Servers.Pause":    "there is no server",
			"Admin.EndSession": "there are no sessions",
			"Admin.Sessions":   "there are no sessions",
			"Admin.DropWaiter": "there is no queue",
			"WAIT-16":          "a look at a file is a system call, and no server has to answer it",
			"FAULTS-1":         "a system call does not arrive after its caller has gone",
		},
		RequireAll: true,
	})
}

// directory is the lock directory as an operator sees it.
type directory string

// path is that of the locked file, for names of letters, digits and hyphens.
func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) admin() conformance.Admin {
	return conformance.Admin{
		Entry: func(_ context.Context, name string) (conformance.Entry, error) {
			info, err := os.Stat(d.path(name))
			if err != nil {
				return conformance.Entry{}, err
			}
			return conformance.Entry{Value: fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino)}, nil
		},
		Delete: func(_ context.Context, name string) error { return os.Remove(d.path(name)) },
		Replace: func(_ context.Context, name string) error {
			other := d.path("replacement-" + name)
			f, err := os.OpenFile(other, os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return err
			}
			// It is kept open, and so locked, until the process ends or the file is removed.
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
				return err
			}
			return os.Rename(other, d.path(name))
		},
		Occupy: func(_ context.Context, name string) (func(context.Context) error, error) {
			return func(context.Context) error { return os.Remove(d.path(name)) }, os.Mkdir(d.path(name), 0o700)
		},
		Entries: func(context.Context) (locked []string, err error) {
			err = filepath.WalkDir(string(d), func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() || strings.HasPrefix(e.Name(), ".") {
					return err
				}
				f, err := os.Open(path)
				if err != nil {
					return nil // it has just gone
				}
				defer f.Close()
				if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil {
					locked = append(locked, path)
				}
				return nil
			})
			return locked, err
		},
	}
}
