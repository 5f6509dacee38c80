//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// Inspect implements driver.Inspector. Whether a file is locked shows only in an attempt to lock it; a shared one, for
// some microseconds, disturbs nobody (see flock), and so a foreign holder that shares isn't seen. After a crash of the
// holder, a foreign one such as flock(1) is shown with the label of the one that crashed.
func (c *conn) Inspect(ctx context.Context, name string) (e driver.Entry, err error) {
	err = c.do(ctx, func() error {
		e = driver.Entry{Name: name, Waiters: -1}
		d, err := c.directory(false)
		if err == nil {
			dirs, base := d.encode(name)
			e, err = d.inspect(name, dirs, base)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // nobody has ever locked it
		}
		return classify(err)
	})
	if err != nil {
		return driver.Entry{}, err
	}
	return e, nil
}

// List implements driver.Inspector.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	var held []driver.Entry
	err := c.do(ctx, func() error {
		d, err := c.directory(false)
		if err == nil {
			err = d.list(nil, func(e driver.Entry) { held = append(held, e) })
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return classify(err)
	})
	if err != nil {
		return err
	}
	for _, e := range held {
		if !yield(e) {
			break
		}
	}
	return nil
}

// list calls f for each held name in the directory and in those that long names are split into.
func (d *directory) list(dirs []string, f func(driver.Entry)) error {
	children, err := d.children(dirs)
	if err != nil {
		return err
	}
	for _, child := range children {
		if _, ok := piece(child.Name()); ok && child.IsDir() {
			if err := d.list(append(dirs[:len(dirs):len(dirs)], child.Name()), f); err != nil {
				return err
			}
			continue
		}
		name, ok := d.decode(dirs, child.Name())
		if !ok || !child.Type().IsRegular() {
			continue
		}
		e, err := d.inspect(name, dirs, child.Name())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if e.Held {
			f(e)
		}
	}
	return nil
}

func (d *directory) children(dirs []string) (children []os.DirEntry, err error) {
	err = d.walk(dirs, false, func(dirfd int) error {
		fd, err := unix.Openat(dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: d.file.Name(), Err: err}
		}
		f := os.NewFile(uintptr(fd), d.file.Name())
		defer f.Close()
		children, err = f.ReadDir(-1)
		return err
	})
	return children, err
}

// inspect looks whether a file is locked, and by whom.
func (d *directory) inspect(name string, dirs []string, base string) (driver.Entry, error) {
	e := driver.Entry{Name: name, Waiters: -1}
	err := d.walk(dirs, false, func(dirfd int) error {
		var fd int
		err := retry(func() (err error) {
			fd, err = unix.Openat(dirfd, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			return
		})
		if err != nil {
			return &fs.PathError{Op: "open", Path: filepath.Join(d.file.Name(), base), Err: err}
		}
		defer unix.Close(fd)
		if unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) == nil {
			return unix.Flock(fd, unix.LOCK_UN)
		}
		e.Held = true
		s, err := readCounter(d, dirfd, counterName(base))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if r, ok := parseRecord(s); ok && r.id != "" {
			e.ID, e.Since, e.Owner, e.Token = r.id, r.since, r.owner, r.token
		}
		return err
	})
	return e, err
}
