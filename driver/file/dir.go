//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// directory is an open lock directory that was found fit for locks.
type directory struct {
	file *os.File // all paths are resolved from here, so that nobody can put another directory in between
	id   inode
	spelling
	mode    uint32 // of the files in it
	private bool   // only files of this user or root are trusted
}

// inode is a file's identity. The kernel gives it to no other file while this one is open.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{uint64(st.Dev), uint64(st.Ino)} }

// fileSystem describes where a directory lies.
type fileSystem struct {
	name  string
	local bool // it is known to be one that only this machine mounts
	folds bool // it may take two spellings for one name
}

// openDirectory opens the directory at an absolute path, after it has created what is missing of it if it may. Its
// errors that are answers say what is wrong with it.
func openDirectory(path string, create bool, statfs func(fd int) (fileSystem, error)) (d *directory, err error) {
	defer func() {
		err = classify(err)
	}()
	if err := checkExisting(path, statfs); err != nil {
		return nil, err
	}
	if create {
		if err := makeDirectory(path); err != nil {
			return nil, err
		}
	}
	// A link is followed only if it was there, and trusted, before: it could be put there in this moment.
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	if fi, err := os.Lstat(path); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		flags |= unix.O_NOFOLLOW
	}
	var fd int
	err = retry(func() (err error) { fd, err = unix.Open(path, flags, 0); return })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d = &directory{file: os.NewFile(uintptr(fd), path)}
	if err := d.check(statfs); err != nil {
		d.file.Close()
		return nil, err
	}
	return d, nil
}

// checkExisting looks at what is there of a path before anything is created below it: the type of its file system, and
// the owners of symbolic links, which in a shared directory can lead anywhere.
func checkExisting(path string, statfs func(fd int) (fileSystem, error)) error {
	for p := path; p != "/"; p = filepath.Dir(p) {
		var st unix.Stat_t
		err := unix.Lstat(p, &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK && !trusted(st.Uid) {
			return fmt.Errorf("%w: %s is a symbolic link that belongs to user %d", driver.ErrConfig, p, st.Uid)
		}
	}
	for p := path; ; p = filepath.Dir(p) {
		f, err := os.OpenFile(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) && p != "/" {
			continue
		}
		if err != nil {
			return nil // it may be passable and not readable; the directory itself is looked at once it is open
		}
		defer f.Close()
		_, err = checkFileSystem(f, statfs)
		return err
	}
}

func checkFileSystem(f *os.File, statfs func(fd int) (fileSystem, error)) (fileSystem, error) {
	fsys, err := statfs(int(f.Fd()))
	if err != nil {
		return fsys, &fs.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	if !fsys.local {
		return fsys, fmt.Errorf("%w: %s is on a file system of type %s, and locks are kept only on known local ones, since "+
			"elsewhere another machine could be granted the same lock", driver.ErrConfig, f.Name(), fsys.name)
	}
	return fsys, nil
}

// makeDirectory creates a directory and those above it that are missing, and makes sure that they outlive a power cut:
// the tokens in them do.
func makeDirectory(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) && path != "/" {
		if err := makeDirectory(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		// Where nothing may be created the directory can be there all the same, and perhaps is only looked at.
		if _, statErr := os.Stat(path); statErr == nil {
			return nil
		}
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil // not readable, which is no reason against the directory
	}
	defer parent.Close()
	return parent.Sync()
}

// check looks whether the open directory is fit for locks.
func (d *directory) check(statfs func(fd int) (fileSystem, error)) error {
	fsys, err := checkFileSystem(d.file, statfs)
	if err != nil {
		return err
	}
	d.narrow = fsys.folds
	var st unix.Stat_t
	if err := unix.Fstat(d.fd(), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: d.file.Name(), Err: err}
	}
	d.id = inodeOf(&st)
	const everybody, group = 0o002, 0o020
	switch {
	case !trusted(st.Uid):
		return fmt.Errorf("%w: directory %s belongs to user %d, who could replace the locks", driver.ErrConfig, d.file.Name(), st.Uid)
	case st.Mode&everybody != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%w: everybody may write to directory %s and could replace the locks: it needs the sticky bit (chmod +t)",
			driver.ErrConfig, d.file.Name())
	}
	d.mode, d.private = 0o600, true
	if st.Mode&group != 0 && st.Mode&everybody == 0 {
		d.mode, d.private = 0o660, false
	}
	return nil
}

// trusted reports whether a user may own what locks depend on: this one and root, who can do as he likes anyway.
func trusted(uid uint32) bool { return uid == 0 || int(uid) == unix.Geteuid() }

func (d *directory) fd() int { return int(d.file.Fd()) }

// current reports whether the path still leads to this directory. If not, all others lock in another one.
func (d *directory) current() (bool, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Stat(d.file.Name(), &st) })
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: d.file.Name(), Err: err}
	}
	return inodeOf(&st) == d.id, nil
}

// walk opens the directories between the lock directory and a name's lock, of which most names have none, and calls f
// with the descriptor of the last one.
func (d *directory) walk(dirs []string, create bool, f func(dirfd int) error) error {
	dirfd := d.fd()
	for i, name := range dirs {
		next, err := d.openSub(dirfd, name, create)
		if i > 0 {
			unix.Close(dirfd)
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: filepath.Join(append([]string{d.file.Name()}, dirs[:i+1]...)...), Err: err}
		}
		dirfd = next
	}
	if len(dirs) > 0 {
		defer unix.Close(dirfd)
	}
	return f(dirfd)
}

func (d *directory) openSub(dirfd int, name string, create bool) (fd int, err error) {
	open := func() (err error) {
		fd, err = unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	}
	err = retry(open)
	if err == unix.ENOENT && create {
		mode := d.mode | d.mode>>2&0o110 // whoever may write here may also search
		if err = unix.Mkdirat(dirfd, name, mode); err == nil && !d.private {
			err = unix.Fchmodat(dirfd, name, mode, 0) // the umask took the group's rights
		}
		if err == nil {
			err = fsync(dirfd)
		}
		if err == nil || err == unix.EEXIST {
			err = retry(open)
		}
	}
	if err == unix.ENOTDIR || err == unix.ELOOP {
		err = fmt.Errorf("%w: %w", driver.ErrConflict, err)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if d.private && !trusted(st.Uid) {
		unix.Close(fd)
		return -1, fmt.Errorf("%w: it belongs to user %d", driver.ErrConflict, st.Uid)
	}
	return fd, nil
}
