package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// signals are what reaches this process.
type signals struct{ all chan os.Signal }

func notify() *signals {
	s := &signals{all: make(chan os.Signal, 64)}
	signal.Notify(s.all, os.Interrupt, syscall.SIGTERM)
	return s
}

// fatal reports whether a signal ends the wait for a lock.
func fatal(os.Signal) bool { return true }

// number returns a signal's number.
func number(s os.Signal) int { return int(s.(syscall.Signal)) }

// runnable returns why a file can't be executed, as far as that shows without trying.
func runnable(file string) error {
	_, err := exec.LookPath(file)
	return err
}

// missing reports whether a file isn't there at all.
func missing(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)
}

// child is a command. What it starts isn't known here.
type child struct{ cmd *exec.Cmd }

func start(file string, argv, env []string) (*child, error) {
	cmd := exec.Command(file, argv[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return &child{cmd}, cmd.Start()
}

var errNoRenewal = errors.New("its renewal wasn't confirmed in time")

// supervise waits for the command and ends it before the lease ends. An interrupt reaches it from the console itself.
func (c *child) supervise(r *runner) outcome {
	var o outcome
	done := make(chan struct{})
	go func() {
		c.cmd.Wait()
		close(done)
	}()
	lease := deadline{lease: r.lease}
	for {
		remaining, cause := lease.look()
		if cause == nil && remaining <= r.grace {
			cause = errNoRenewal
		}
		next := remaining - r.grace
		if cause != nil {
			if o.lost == nil {
				r.say("lost %q, stopping the command: %v", r.lease.Name(), cause)
				o.lost, o.told = cause, true
			}
			c.cmd.Process.Kill()
			next = time.Second
		}
		select {
		case <-done:
			o.code = c.cmd.ProcessState.ExitCode()
			return o
		case <-r.signals.all:
		case <-r.lease.Context().Done():
			select {
			case <-done:
			case <-time.After(10 * time.Millisecond):
			}
		case <-time.After(next):
		}
	}
}
