package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasekit/locker"
)

// runner runs a command under a lease.
type runner struct {
	lease   locker.Lease
	grace   time.Duration // between TERM and the lease's end
	signals *signals
	say     func(format string, args ...any)
}

// outcome is what became of a command and of its lease until the last of its processes had ended.
type outcome struct {
	code int   // of the command
	lost error // why the lease ended, or was about to, while a process was left; nil if it didn't
	told bool  // the user has been told
}

// run starts the command, waits for its end, and releases the lock.
func (r *runner) run(file string, argv, env []string) error {
	c, err := start(file, argv, env)
	if err != nil {
		release(r.lease, r.say)
		return &exitError{exitCannotRun, fmt.Errorf("locker: %s: cannot be run: %w", argv[0], err)}
	}
	o := c.supervise(r)
	if err := release(r.lease, r.say); o.lost == nil {
		o.lost = err
	}
	if o.told {
		return &exitError{exitLost, nil}
	}
	if o.lost != nil {
		return &exitError{exitLost, fmt.Errorf("locker: lost %q while the command ran: %w", r.lease.Name(), o.lost)}
	}
	if o.code != 0 {
		return &exitError{o.code, nil}
	}
	return nil
}

// How long the end may take. A release that isn't confirmed by then has failed, and the lock is free one TTL later.
const (
	releaseTimeout = 3 * time.Second
	closeTimeout   = time.Second
)

// release frees the lock. It returns an error if the lock was lost before. That the release couldn't be confirmed is
// only a warning: the command has ended, and its exit code stands.
func release(lease locker.Lease, say func(string, ...any)) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := lease.Release(ctx)
	if errors.Is(err, locker.ErrLost) {
		return err
	}
	if err != nil {
		say("warning: the command has ended, and the release of its lock isn't confirmed: %v", err)
	}
	return nil
}

// closeSoon closes l and doesn't wait for it longer than is polite: the process ends now.
func closeSoon(l locker.Locker) {
	done := make(chan struct{})
	go func() {
		l.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
	}
}

// deadline keeps track of the lease's deadline. Once the lease has ended, however early, Remaining doesn't tell any more
// when others can have the lock at the latest.
type deadline struct {
	lease locker.Lease
	at    time.Time // as of the last look while the lease was live
}

// look returns how long the lease lasts unless it is renewed, and why it has ended if it has.
func (d *deadline) look() (remaining time.Duration, cause error) {
	if d.lease.Context().Err() != nil {
		return 0, context.Cause(d.lease.Context())
	}
	remaining = d.lease.Remaining()
	d.at = time.Now().Add(remaining)
	return remaining, nil
}

// killTime returns when KILL is due for a command that gets TERM now: after the grace period, and so long before the
// lease's deadline that its processes are gone by then. A deadline that has passed by the wall clock alone has passed
// while the machine slept.
func (d *deadline) killTime(grace time.Duration) time.Time {
	now := time.Now()
	latest := d.at.Add(-min(grace/4, time.Second))
	if !now.Round(0).Before(latest.Round(0)) {
		return now
	}
	if t := now.Add(grace); t.Before(latest) {
		return t
	}
	return latest
}
