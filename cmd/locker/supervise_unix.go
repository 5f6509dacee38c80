//go:build unix

package main

import (
	"errors"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killInterval is the pause between two looks for what is left after KILL.
const killInterval = 10 * time.Millisecond

// errNoRenewal is why a command is stopped while its lease still lasts.
var errNoRenewal = errors.New("its renewal wasn't confirmed in time")

// supervise waits until nothing is left of the command, passes signals on, and stops it before the lease ends:
//
//	running → stopping   the command has ended and left something behind, or the lease has ended or is about to: TERM
//	stopping → killing   the grace period is over, or the lease's deadline is near: KILL, until nothing is left
//
// Each step is taken after a look at the lease, so that nothing goes on that a pause of this process has made wrong.
func (c *child) supervise(r *runner) outcome {
	signal.Notify(r.signals.all, unix.SIGTSTP)
	defer c.tty.takeBack(c.pid)
	var (
		o        outcome
		lease    = deadline{lease: r.lease}
		ended    = r.lease.Context().Done()
		stopping bool
		killAt   time.Time
		timer    = time.NewTimer(0)
	)
	stop := func() {
		if !stopping {
			stopping, killAt = true, lease.killTime(r.grace)
			if time.Now().Before(killAt) {
				c.stop(unix.SIGTERM)
			}
		}
	}
	for {
		stopped := c.reap()
		if c.gone {
			if _, cause := lease.look(); o.lost == nil {
				o.lost = cause
			}
			o.code = c.exitCode()
			return o
		}
		next := time.Hour
		remaining, cause := lease.look()
		if cause == nil && remaining <= r.grace {
			cause = errNoRenewal
		} else if cause == nil {
			next = remaining - r.grace
		}
		if cause != nil && o.lost == nil {
			o.lost, o.told = cause, true
			r.say("lost %q, stopping the command: %v", r.lease.Name(), cause)
			stop()
			if t := lease.killTime(r.grace); t.Before(killAt) {
				killAt = t // it was being stopped already, with more time
			}
		}
		if c.ended {
			stop()
		}
		if stopping {
			next = time.Until(killAt)
			if next <= 0 {
				c.stop(unix.SIGKILL)
				next = killInterval
			}
		} else if stopped != 0 {
			c.suspend(r, stopped)
			continue
		}
		timer.Reset(next)
		select {
		case s := <-r.signals.all:
			c.forward(s)
		case <-r.signals.chld:
		case <-ended:
			ended = nil
		case <-timer.C:
		}
	}
}

// suspend is called when the command was stopped. Where there is a terminal somebody has pressed ^Z, or the command
// wants the terminal and doesn't have it. If it can't get it, this process and those that it was started with stop too,
// so that the shell takes over. The lease isn't renewed then, and is looked at before the command goes on.
func (c *child) suspend(r *runner, by syscall.Signal) {
	switch {
	case c.tty == nil || by == unix.SIGSTOP: // that is between whoever sent it and the command
		return
	case by != unix.SIGTSTP && c.tty.give(c.pid):
		unix.Kill(-c.pid, unix.SIGCONT)
		return
	}
	had := c.tty.takeBack(c.pid)
	// It returns when this process goes on, or at once if there is no shell that could make it go on. SIGTSTP won't do:
	// once it was caught, the Go runtime doesn't give it back its default action.
	unix.Kill(0, unix.SIGTTIN)
	if r.lease.Context().Err() != nil {
		return
	}
	if had {
		c.tty.give(c.pid)
	}
	unix.Kill(-c.pid, unix.SIGCONT)
}
