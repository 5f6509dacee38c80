package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/leasekit/locker"
)

// Exit codes of locker itself. Where sysexits(3) has one of the same meaning it is that. A command's own code is passed
// on, so that the help lists them.
const (
	exitUnfit       = 1 // doctor: something is wrong
	exitUsage       = 64
	exitUnavailable = 69
	exitDenied      = 73
	exitHeld        = 75
	exitConfig      = 78
	exitLost        = 79
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

const exitCodesHelp = `Exit codes:
  the command's own, or 128 + n if signal n ended it
  64       wrong usage
  69       the backend could not be asked; the command was not started
  73       the backend denies access; the command was not started
  75       somebody else holds the lock; the command was not started
  78       wrong configuration: the URL, the kind required, or what stands where the lock should be
  79       the lock was lost while the command ran, which was stopped
  126      the command was found and cannot be run
  127      the command was not found
  128 + n  signal n ended the wait for the lock; the command was not started`

const lookCodesHelp = `Exit codes:
  0   the backend has answered
  64  wrong usage
  69  the backend could not be asked
  73  the backend denies access
  78  wrong configuration: the URL, or what stands where the lock should be`

const doctorCodesHelp = `Exit codes:
  0   nothing is wrong; there may be notes, and without --strict warnings
  1   there is a failure, or with --strict a warning
  64  wrong usage
  69  the backend could not be asked
  73  the backend denies access
  78  wrong configuration: the URL is wrong, or doesn't fit the server`

// exitError ends the program with a code. Its text is printed unless --quiet is given.
type exitError struct {
	code int
	err  error // nil where there is nothing to say
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// usageError is an error in the command line.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf("locker: "+format, args...)}
}

// lockError gives an error of package locker its code.
func lockError(err error) error {
	code := exitUnavailable
	switch {
	case errors.Is(err, locker.ErrInvalidName):
		code = exitUsage
	case errors.Is(err, locker.ErrHeld):
		code = exitHeld
	case errors.Is(err, locker.ErrDenied):
		code = exitDenied
	case errors.Is(err, locker.ErrConfig), errors.Is(err, locker.ErrConflict):
		code = exitConfig
	}
	return &exitError{code, err}
}

// execute runs the command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	root := newRoot(os.Getenv)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exitError](err)
	if !ok { // of cobra itself, such as an unknown command
		exit = usageError("%w", err).(*exitError)
	}
	if exit.code == exitUsage {
		fmt.Fprintf(stderr, "%v\nSee '%s --help'.\n", exit, cmd.CommandPath())
	} else if exit.err != nil {
		fmt.Fprintln(stderr, exit)
	}
	return exit.code
}
