package file

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// localTypes are the file systems that only one machine mounts at a time, and on which flock works. The list is of
// those that are safe, not of those that aren't: an unknown one is refused.
var localTypes = map[uint32]string{
	unix.BCACHEFS_SUPER_MAGIC:  "bcachefs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.EXT4_SUPER_MAGIC:      "ext4",
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	unix.JFFS2_SUPER_MAGIC:     "jffs2",
	unix.NILFS_SUPER_MAGIC:     "nilfs2",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.REISERFS_SUPER_MAGIC:  "reiserfs",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.XFS_SUPER_MAGIC:       "xfs",
	jfsMagic:                   "jfs",
	ubifsMagic:                 "ubifs",
	zfsMagic:                   "zfs",
}

// otherTypes names some of those that are refused, for the message.
var otherTypes = map[uint32]string{
	unix.AFS_FS_MAGIC:         "afs",
	unix.AFS_SUPER_MAGIC:      "afs",
	unix.CEPH_SUPER_MAGIC:     "ceph",
	unix.CGROUP2_SUPER_MAGIC:  "cgroup2",
	unix.CIFS_SUPER_MAGIC:     "cifs",
	unix.CODA_SUPER_MAGIC:     "coda",
	unix.DEVPTS_SUPER_MAGIC:   "devpts",
	unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs",
	unix.EXFAT_SUPER_MAGIC:    "exfat",
	unix.FUSE_SUPER_MAGIC:     "fuse or virtiofs",
	unix.MSDOS_SUPER_MAGIC:    "vfat",
	unix.NFS_SUPER_MAGIC:      "nfs",
	unix.OCFS2_SUPER_MAGIC:    "ocfs2",
	unix.PROC_SUPER_MAGIC:     "proc",
	unix.SMB2_SUPER_MAGIC:     "smb2",
	unix.SMB_SUPER_MAGIC:      "smb",
	unix.SYSFS_MAGIC:          "sysfs",
	unix.V9FS_MAGIC:           "9p",
	gfs2Magic:                 "gfs2",
	gpfsMagic:                 "gpfs",
	lustreMagic:               "lustre",
}

// What package unix lacks.
const (
	gfs2Magic   = 0x01161970
	gpfsMagic   = 0x47504653
	jfsMagic    = 0x3153464a
	lustreMagic = 0x0bd00bd0
	ubifsMagic  = 0x24051905
	zfsMagic    = 0x2fc12fc1

	casefoldFlag = 0x40000000 // FS_CASEFOLD_FL
)

// statfs describes the file system of an open directory.
func statfs(fd int) (fileSystem, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return fileSystem{}, err
	}
	typ := uint32(st.Type)
	if name, ok := localTypes[typ]; ok {
		return fileSystem{name: name, local: true, folds: folds(fd, typ)}, nil
	}
	name, ok := otherTypes[typ]
	if !ok {
		name = fmt.Sprintf("%#x", typ)
	}
	return fileSystem{name: name}, nil
}

// folds reports whether a directory may take two spellings for one name: ext4, f2fs and tmpfs say so, ZFS doesn't.
func folds(fd int, typ uint32) bool {
	if typ == zfsMagic {
		return true
	}
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	return err == nil && flags&casefoldFlag != 0
}

// fsync writes a file or directory to the medium.
func fsync(fd int) error { return retry(func() error { return unix.Fsync(fd) }) }
