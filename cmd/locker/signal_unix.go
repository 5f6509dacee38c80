//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are what reaches this process.
type signals struct {
	all  chan os.Signal
	chld chan os.Signal // a child has ended or stopped
}

// notify asks for all signals that have a meaning for a command. HUP and INT stay ignored where they were, as under
// nohup(1), for the command too. TSTP isn't among them before the command has started: it stops the wait.
func notify() *signals {
	s := &signals{all: make(chan os.Signal, 64), chld: make(chan os.Signal, 1)}
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT} {
		if !signal.Ignored(sig) {
			signal.Notify(s.all, sig)
		}
	}
	// A write to a closed pipe must fail and not end this process while a command runs.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	signal.Notify(s.chld, unix.SIGCHLD)
	return s
}

// fatal reports whether a signal ends the wait for a lock.
func fatal(s os.Signal) bool {
	return s == unix.SIGINT || s == unix.SIGTERM || s == unix.SIGHUP || s == unix.SIGQUIT
}

// number returns a signal's number.
func number(s os.Signal) int { return int(s.(syscall.Signal)) }
