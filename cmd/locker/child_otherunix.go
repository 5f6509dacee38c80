//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt does nothing: orphans fall to init, and only the process group is known.
func adopt() {}

// dieWithParent does nothing: a command outlives a locker that was killed.
func dieWithParent(*syscall.SysProcAttr) {}

// waitFor returns whom to wait for: the command, since its orphans can't be waited for.
func (c *child) waitFor() int {
	if c.ended {
		return -c.pid // nobody, which is ECHILD
	}
	return c.pid
}

// nothingLeft reports whether the process group has ended. A zombie whose parent doesn't wait for it counts as left.
func (c *child) nothingLeft() bool { return unix.Kill(-c.pid, 0) == unix.ESRCH }

// descendants returns nothing: who has left the process group isn't found.
func descendants(int) ([]int, bool) { return nil, false }
