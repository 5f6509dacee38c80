// Package file is the driver for locks within one host, kept by the kernel as flock(2) on a file per name. It needs no
// server and its kind is correctness: the kernel frees a lock at the moment its holder dies.
//
// # What lies in the directory
//
// A name's lock is the file of that name itself, so that flock(1) on it and this driver exclude each other:
//
//	nightly            the locked file; it is created empty, and never written, truncated or removed
//	.nightly.token     the last token, and below it the holder: "<hex ID> <acquired, ms> <owner>"
//	.nightly.token.new the next one of these while it is written
//
// In names a leading dot, the slash, the percent sign and control characters are percent-encoded: "a/b" is the file
// "a%2Fb". Where the file system may take two spellings for one (macOS, ZFS, case-folding directories) capital letters
// and everything beyond ASCII are encoded too. An encoding of more than 240 bytes encodes its dots as well and is split
// into directories: ".<240 bytes>.d/<rest>".
//
// # What must be true of it
//
// The directory is created with mode 0700 if it is missing. It has to belong to this user or to root and to lie on a
// local file system: on network, FUSE, virtiofs and 9p file systems another machine may be granted the same lock, so
// that all types but the known local ones are refused. A directory that everybody may write to needs the sticky bit. The
// files have to be regular ones without further links and to belong to this user or root; where the directory is
// writable for a group but not for everybody, they may belong to any of its members. Users share locks through a
// directory with owner root, their group, and mode 2770.
//
// Removing or replacing a file or the directory while somebody holds the lock takes it away from its holder, who notices
// at the next renewal, within a tenth of the TTL. Removing them when no process uses them is harmless: tokens go on from
// the wall clock. The TTL bounds nothing else: a frozen process keeps its lock.
//
// On an overlay file system, which is what a container's own files are on, locks work within the container only.
// Linux and macOS are supported; elsewhere Connect fails with ErrConfig.
package file

import (
	"path/filepath"
	"time"

	"github.com/leasekit/locker/driver"
)

// scheme is the URL scheme and the backend's name in errors and events.
const scheme = "file"

// poll is the longest pause between two looks at a held name. A look takes a few microseconds.
const poll = 25 * time.Millisecond

// renewDivisor makes renewals more frequent than elsewhere: they are two system calls, and the file's loss, which frees
// the name at once and not a TTL later, shows in nothing else.
const renewDivisor = 10

// Options are the driver's settings. There are none so far.
type Options struct{}

// New returns a connector for the locks in a directory, which is created when it is missing. A relative path is taken
// from the working directory of this moment. opts may be nil.
func New(dir string, opts *Options) driver.Connector {
	c := &connector{dir: dir}
	if dir != "" {
		c.dir, c.err = filepath.Abs(dir)
	}
	return c
}

// connector implements driver.Connector.
type connector struct {
	dir string // absolute and clean; "" if none was given
	err error  // of New
}

var _ driver.Connector = (*connector)(nil)

// Info describes the backend.
func (c *connector) Info() driver.Info {
	return driver.Info{
		Backend:      scheme,
		Correctness:  true,
		RenewDivisor: renewDivisor,
		Poll:         poll,
	}
}
