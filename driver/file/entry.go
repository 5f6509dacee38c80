//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// entry is a locked file. The lock belongs to its open file description, of which nobody else has a descriptor.
type entry struct {
	conn  *conn
	dir   *directory
	dirs  []string // between the directory and the file
	base  string   // the file's name
	file  inode
	id    string // of the request
	token uint64
	grant driver.Grant

	mu       sync.Mutex
	fd       int
	released bool
	err      error // of the release
}

// lock locks the file and mints a token.
func (e *entry) lock(dirfd int, req driver.Request) (err error) {
	fd, err := openLock(dirfd, e.base, e.dir)
	if err != nil {
		return e.pathError("open", err)
	}
	defer func() {
		if err != nil {
			unlock(fd)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return e.pathError("stat", err)
	}
	if err := e.dir.checkFile(&st); err != nil {
		return e.pathError("open", err)
	}
	e.file = inodeOf(&st)
	if err := flock(fd); err != nil {
		if errors.Is(err, driver.ErrHeld) {
			return err
		}
		return e.pathError("flock", err)
	}
	e.token, err = e.conn.mint(e.dir, dirfd, e.base, req)
	if err != nil {
		return e.pathError("token of", err)
	}
	e.fd = fd
	return nil
}

// openLock opens the file of a lock, and creates it if it is missing. Nothing is followed, waited for or written.
func openLock(dirfd int, base string, d *directory) (fd int, err error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	for range 10 { // it may be created, or removed, between the two calls
		err = retry(func() (err error) { fd, err = unix.Openat(dirfd, base, flags, 0); return })
		if err != unix.ENOENT {
			break
		}
		err = retry(func() (err error) {
			fd, err = unix.Openat(dirfd, base, flags|unix.O_CREAT|unix.O_EXCL, d.mode)
			return
		})
		if err == nil && !d.private {
			unix.Fchmod(fd, d.mode) // the umask took the group's rights; whom it shuts out is told so
		}
		if err != unix.EEXIST {
			break
		}
	}
	switch err {
	case unix.ELOOP:
		return -1, fmt.Errorf("%w: a symbolic link stands there", driver.ErrConflict)
	case unix.ENXIO, unix.EOPNOTSUPP:
		return -1, fmt.Errorf("%w: a socket or device stands there", driver.ErrConflict)
	}
	return fd, err
}

// checkFile refuses what isn't a file of a lock.
func (d *directory) checkFile(st *unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%w: it isn't a regular file", driver.ErrConflict)
	case d.private && !trusted(st.Uid):
		return fmt.Errorf("%w: it belongs to user %d", driver.ErrConflict, st.Uid)
	case st.Nlink > 1:
		return fmt.Errorf("%w: it has a second hard link", driver.ErrConflict)
	}
	return nil
}

// flock locks a file without waiting. Somebody who only looks whether it is locked has a shared lock on it for some
// microseconds, which must not look like a holder: where nobody has more than a shared lock it tries a few times again.
func flock(fd int) error {
	for try := 0; ; try++ {
		err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if err != unix.EWOULDBLOCK {
			return err
		}
		if try == 3 || unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil {
			return driver.ErrHeld
		}
		unix.Flock(fd, unix.LOCK_UN)
		time.Sleep(time.Millisecond)
	}
}

// unlock unlocks before it closes: a process that was forked at the wrong moment may have the descriptor too.
func unlock(fd int) {
	unix.Flock(fd, unix.LOCK_UN)
	unix.Close(fd)
}

// same compares the locked file with what its path leads to.
func (e *entry) same(dirfd int) error {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(dirfd, e.base, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err == unix.ENOENT || err == nil && inodeOf(&st) != e.file {
		return errReplaced
	}
	if err != nil {
		return e.pathError("stat", err)
	}
	return nil
}

func (e *entry) pathError(op string, err error) error {
	path := filepath.Join(append(append([]string{e.dir.file.Name()}, e.dirs...), e.base)...)
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// release unlocks the file. It returns an error that matches ErrNotHeld if the lock was lost before.
func (e *entry) release() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.released {
		return e.err
	}
	err := e.proveLocked()
	strike := e.striker()
	unlock(e.fd)
	strike()
	e.released, e.fd = true, -1
	if errors.Is(err, driver.ErrNotHeld) {
		e.err = err
	}
	e.conn.forget(e.id)
	return e.err
}

// unlock takes back a grant that nobody was told of.
func (e *entry) unlock() {
	e.mu.Lock()
	defer e.mu.Unlock()
	unlock(e.fd)
	e.released, e.fd = true, -1
}

// hold implements driver.Hold. Several holds of one entry differ in when their request was sent.
type hold struct {
	*entry
	grant driver.Grant
}

var _ driver.Hold = (*hold)(nil)

// Grant implements driver.Hold.
func (h *hold) Grant() driver.Grant { return h.grant }

// Release implements driver.Hold.
func (h *hold) Release(ctx context.Context) error { return h.conn.do(ctx, h.entry.release) }
