//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// watchedWidth returns the width of the terminal that standard error is, or 0 if it is none, or if another process group
// has it in front: the shell's, for example, when locker was put into the background.
func watchedWidth() int {
	fd := int(os.Stderr.Fd())
	if foreground(fd) != unix.Getpgrp() {
		return 0
	}
	size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 { // nobody has said
		return 80
	}
	return int(size.Col)
}
