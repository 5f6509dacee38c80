//go:build unix

package main

import (
	"os/signal"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process. A nil terminal stands for none.
//
// A process that reads from the terminal has to be in its foreground group, which also is what ^C and ^Z reach. The
// command gets it at once if standard input and output are the terminal. Otherwise locker may be part of a pipeline, the
// other parts of which would lose it; the command then gets it if it stops because it needs it.
type terminal struct {
	fd   int
	lent bool // to the command
}

// openTerminal returns the controlling terminal, or nil if there is none.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd}
}

// foreground returns the foreground process group of the terminal that fd is, or -1 if fd isn't the controlling one.
func foreground(fd int) int {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

// interactive reports whether the command gets the terminal from the start.
func (t *terminal) interactive() bool {
	group := unix.Getpgrp()
	return t != nil && foreground(0) == group && foreground(1) == group
}

// give makes a process group the foreground one if this process' own is. It reports whether it has.
func (t *terminal) give(group int) bool {
	if t == nil || foreground(t.fd) != unix.Getpgrp() {
		return false
	}
	t.lent = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) == nil
	return t.lent
}

// takeBack makes this process' own group the foreground one again if the given one is. It reports whether it was.
func (t *terminal) takeBack(group int) bool {
	if t == nil || !t.lent || foreground(t.fd) != group {
		return false
	}
	t.lent = false
	signal.Ignore(unix.SIGTTOU) // which would stop this process, as it is in the background now
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp()) == nil
}
