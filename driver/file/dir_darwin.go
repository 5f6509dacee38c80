package file

import "golang.org/x/sys/unix"

// localTypes are the file systems that only one machine mounts at a time, and on which flock works.
var localTypes = map[string]bool{"apfs": true, "hfs": true, "tmpfs": true, "ufs": true, "zfs": true}

// statfs describes the file system of an open directory. All of them may take two spellings for one name.
func statfs(fd int) (fileSystem, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return fileSystem{}, err
	}
	name := unix.ByteSliceToString(st.Fstypename[:])
	return fileSystem{name: name, local: localTypes[name] && st.Flags&unix.MNT_LOCAL != 0, folds: true}, nil
}

// fsync writes a file or directory to the medium, which fsync(2) alone doesn't do here.
func fsync(fd int) error {
	err := retry(func() error { _, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0); return err })
	if err == unix.ENOTSUP || err == unix.EINVAL || err == unix.ENOTTY {
		return retry(func() error { return unix.Fsync(fd) })
	}
	return err
}
