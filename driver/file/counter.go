//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// record is what the file beside a lock holds: the last token in its first line, and in the second the one who has it.
// The second line goes when the lock is released, and stays when its holder dies.
type record struct {
	token uint64
	id    string // "" if there is no second line
	since time.Time
	owner string
}

// maxRecord bounds what is read of a counter's file.
const maxRecord = 16 << 10

func (r record) String() string {
	return fmt.Sprintf("%d\n%s %d %s\n", r.token, r.id, r.since.UnixMilli(), r.owner)
}

// parseRecord reports false if the first line isn't a token, or isn't complete.
func parseRecord(s string) (r record, ok bool) {
	first, rest, ok := strings.Cut(s, "\n")
	token, err := strconv.ParseUint(first, 10, 63)
	if !ok || err != nil || token == 0 || first != strconv.FormatUint(token, 10) {
		return record{}, false
	}
	r.token = token
	second, _, ok := strings.Cut(rest, "\n")
	if !ok {
		return r, true
	}
	id, second, _ := strings.Cut(second, " ")
	since, owner, ok := strings.Cut(second, " ")
	ms, err := strconv.ParseInt(since, 10, 64)
	if ok && err == nil {
		r.id, r.since, r.owner = id, time.UnixMilli(ms), owner
	}
	return r, true
}

// mint writes the next token of a name and its holder. The caller has locked the name. Each step leaves a state that the
// next caller can go on from: the token is returned only once it is on the medium, the old file is complete until the
// new one is, and what a crash leaves of the new one is written over.
//
// The new file is locked from before the old one is read until it has taken its place. When somebody replaces the file
// of the lock, two processes can be here at once, and the counter must not fall back for the one that loses.
func (c *conn) mint(d *directory, dirfd int, base string, req driver.Request) (uint64, error) {
	name := counterName(base)
	temporary, err := lockTemporary(d, dirfd, name+temporarySuffix)
	if err != nil {
		return 0, err
	}
	defer func() {
		unix.Flock(int(temporary.Fd()), unix.LOCK_UN)
		temporary.Close()
	}()
	token, err := c.replaceCounter(d, dirfd, name, temporary, req)
	if err != nil {
		unix.Unlinkat(dirfd, name+temporarySuffix, 0)
		return 0, err
	}
	if err := fsync(dirfd); err != nil {
		return 0, &fs.PathError{Op: "sync the directory of", Path: name, Err: err}
	}
	return token, nil
}

func (c *conn) replaceCounter(d *directory, dirfd int, name string, temporary *os.File, req driver.Request) (uint64, error) {
	var stored uint64
	switch s, err := readCounter(d, dirfd, name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	default:
		r, ok := parseRecord(s)
		if !ok {
			c.cfg.Logger.Warn("the file of a token is damaged; tokens go on from the wall clock", "dir", c.path, "file", name)
		}
		stored = r.token
	}
	if stored == math.MaxInt64 {
		return 0, fmt.Errorf("%w: the greatest possible token is used up (%s)", driver.ErrConflict, name)
	}
	now := c.wall()
	r := record{token: stored + 1, id: req.ID, since: now, owner: req.Owner}
	if us := now.UnixMicro(); us > 0 {
		r.token = max(r.token, uint64(us))
	}
	if !d.private {
		unix.Fchmod(int(temporary.Fd()), d.mode) // the umask took the group's rights
	}
	err := temporary.Truncate(0)
	if err == nil {
		_, err = temporary.WriteString(r.String())
	}
	if err == nil {
		err = fsync(int(temporary.Fd()))
	}
	if err != nil {
		return 0, err
	}
	if err := unix.Renameat(dirfd, name+temporarySuffix, dirfd, name); err != nil {
		return 0, &fs.PathError{Op: "rename", Path: name + temporarySuffix, Err: err}
	}
	return r.token, nil
}

func readCounter(d *directory, dirfd int, name string) (string, error) {
	f, err := openCounter(d, dirfd, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	return string(b), err
}

// openCounter opens one of the files beside a lock, with the same care as the lock itself.
func openCounter(d *directory, dirfd int, name string, flags int) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(dirfd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, d.mode)
		return
	})
	if err == unix.ELOOP || err == unix.EISDIR || err == unix.ENXIO {
		err = fmt.Errorf("%w: %w", driver.ErrConflict, err)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = d.checkFile(&st)
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f, nil
}

// lockTemporary opens and locks the new file. Its name is fixed, so that crashes leave one at most. Another process may
// rename or remove it in between.
func lockTemporary(d *directory, dirfd int, name string) (*os.File, error) {
	for range 10 {
		f, err := openCounter(d, dirfd, name, unix.O_WRONLY|unix.O_CREAT)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		fd := int(f.Fd())
		if err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
		}
		var opened, named unix.Stat_t
		if unix.Fstat(fd, &opened) == nil && unix.Fstatat(dirfd, name, &named, unix.AT_SYMLINK_NOFOLLOW) == nil &&
			inodeOf(&opened) == inodeOf(&named) {
			return f, nil
		}
		unix.Flock(fd, unix.LOCK_UN)
		f.Close()
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is replaced again and again")}
}

// striker returns a function that strikes the entry's holder out of the counter's file. It opens the file at once
// and can be called when the lock is free again: the next holder puts a new file in its place. It is best effort, as
// nothing depends on it but what Inspect shows about a foreign holder.
func (e *entry) striker() (strike func()) {
	var f *os.File
	d := e.dir
	d.walk(e.dirs, false, func(dirfd int) (err error) {
		f, err = openCounter(d, dirfd, counterName(e.base), unix.O_RDWR)
		return err
	})
	return func() {
		if f == nil {
			return
		}
		defer f.Close()
		b, _ := io.ReadAll(io.LimitReader(f, maxRecord))
		if r, ok := parseRecord(string(b)); ok && r.id == e.id {
			f.Truncate(int64(strings.IndexByte(string(b), '\n') + 1))
		}
	}
}
