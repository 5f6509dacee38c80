//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// child is a command and all that it starts. It is used from the main goroutine alone: nobody else waits for processes,
// so that none of their numbers is given to another process while it is in use here.
type child struct {
	pid    int // of the command, and its process group's number
	tty    *terminal
	ended  bool
	status unix.WaitStatus // of the command once it has ended
	gone   bool            // nothing is left of the command and what it started
}

// start starts a command in a process group of its own, which gets the terminal if there is one.
func start(file string, argv, env []string) (*child, error) {
	adopt()
	c := &child{tty: openTerminal()}
	attr := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attr)
	if c.tty.interactive() {
		attr.Foreground, attr.Ctty = true, c.tty.fd
		c.tty.lent = true
	}
	var err error
	c.pid, err = syscall.ForkExec(file, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: attr})
	if err != nil && c.tty != nil {
		c.tty.takeBack(foreground(c.tty.fd)) // from the process that couldn't become the command
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// reap takes note of processes that have ended or stopped. It returns the signal that stopped the command, or 0.
func (c *child) reap() (stopped syscall.Signal) {
	for !c.gone {
		var status unix.WaitStatus
		pid, err := unix.Wait4(c.waitFor(), &status, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil: // ECHILD
			c.ended = true
			c.gone = c.nothingLeft()
			return stopped
		case pid == 0:
			return stopped
		case pid == c.pid && status.Stopped():
			stopped = status.StopSignal()
		case pid == c.pid:
			c.ended, c.status = true, status
		}
	}
	return 0
}

// exitCode returns the command's code as shells give it.
func (c *child) exitCode() int {
	if c.status.Signaled() {
		return exitSignal + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// forward passes a signal on. USR1 and USR2 mean something to the command alone, and end those who don't know them.
func (c *child) forward(s os.Signal) {
	switch sig := s.(syscall.Signal); {
	case c.ended:
	case sig == unix.SIGUSR1 || sig == unix.SIGUSR2:
		unix.Kill(c.pid, sig)
	default:
		unix.Kill(-c.pid, sig)
	}
}

// stop sends TERM or KILL to the process group and to whatever has left it. A stopped process takes TERM only once it
// goes on.
func (c *child) stop(sig syscall.Signal) {
	c.signalAll(sig)
	if sig != unix.SIGKILL {
		c.signalAll(unix.SIGCONT)
	}
}

// signalAll signals the process group and whatever has left it. Once the command was waited for, the group's number may
// be another one's if none of its processes is left, so that each one is signalled by itself where they are known.
func (c *child) signalAll(sig syscall.Signal) {
	group := c.pid
	if c.ended {
		group = 0
	}
	pids, known := descendants(group)
	if !c.ended || !known {
		unix.Kill(-c.pid, sig)
	}
	for _, pid := range pids {
		unix.Kill(pid, sig)
	}
}
