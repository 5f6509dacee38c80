package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasekit/locker"
)

const runHelp = `Run a command while holding the lock NAME.

Everything from NAME on belongs to the command; "--" between them may be given. The command is run without a shell, in
its own process group, with locker's standard input, output and error as they are. It finds LOCKER_NAME, LOCKER_TOKEN,
LOCKER_KIND and LOCKER_BACKEND in its environment. Without --wait or --no-wait, locker waits for the lock until it is
signalled.

INT, TERM, HUP, QUIT, TSTP, CONT and WINCH are passed on to the command's process group, USR1 and USR2 to the command
itself. If the lock is about to be lost, or is lost, the command and all that it started get TERM, and KILL before the
lock can be somebody else's. What the command leaves behind when it ends is stopped in the same way. The lock is
released after that.`

// runFlags are the flags of "locker run".
type runFlags struct {
	url              *urlFlag
	ttl, wait        durationFlag
	maxHold, grace   durationFlag
	require          kindFlag
	noWait, okIfHeld bool
	quiet, verbose   bool
}

func newRun(url *urlFlag) *cobra.Command {
	f := &runFlags{
		url:     url,
		ttl:     durationFlag{min: 1},
		maxHold: durationFlag{min: 1},
		grace:   durationFlag{min: time.Millisecond},
	}
	cmd := &cobra.Command{
		Use:   "run [flags] NAME [--] COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a lock",
		Long:  runHelp + "\n\n" + exitCodesHelp,
		Example: `  locker run nightly -- ./report --all
  locker run --no-wait --ok-if-held nightly -- ./report
  locker run --url redis://cache:6379 --wait 5m --max-hold 1h deploy -- make deploy`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false) // what follows NAME is the command's
	flags.Var(&f.ttl, "ttl", "how long others wait if this process dies, where the backend can't tell; default 15s")
	flags.Var(&f.wait, "wait", "wait no longer than this for the lock")
	flags.BoolVar(&f.noWait, "no-wait", false, "don't wait if somebody else holds the lock")
	flags.BoolVar(&f.okIfHeld, "ok-if-held", false, "exit with 0 instead of 75 if somebody else holds the lock")
	flags.Var(&f.maxHold, "max-hold", "stop the command before it has held the lock for this long")
	flags.Var(&f.grace, "grace", "the time between TERM and the end of the lock, for the command to stop;\nat most a third of the TTL, default 5s or that third")
	flags.Var(&f.require, "require", "the least kind of lock: efficiency or correctness")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but errors in the command line")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "print what happens to the lock")
	return cmd
}

// run checks all that can be known before, takes the lock, and runs the command. Its error is what there is to say at
// the end, with the exit code; nil stands for the command's 0.
func (f *runFlags) run(ctx context.Context, args []string) error {
	err := f.runArgs(ctx, args)
	if exit, ok := errors.AsType[*exitError](err); ok && f.quiet && exit.code != exitUsage {
		exit.err = nil
	}
	return err
}

func (f *runFlags) runArgs(ctx context.Context, args []string) error {
	name, argv, err := split(args)
	if err != nil {
		return err
	}
	if f.noWait && f.wait.set {
		return usageError("--wait and --no-wait exclude each other")
	}
	if f.quiet && f.verbose {
		return usageError("--quiet and --verbose exclude each other")
	}
	rawURL, err := f.url.value()
	if err != nil {
		return lockError(fmt.Errorf("locker: %w", err))
	}
	grace, err := f.graceFor(rawURL)
	if err != nil {
		return err
	}
	file, err := resolve(argv[0], os.Getenv("PATH"))
	if err != nil {
		return err
	}
	var backend string
	l, err := locker.Open(ctx, rawURL, f.options(&backend))
	if err != nil {
		return lockError(err)
	}
	defer closeSoon(l)

	signals := notify()
	lease, err := f.acquire(ctx, l, rawURL, name, signals)
	if err != nil {
		return err
	}
	r := &runner{
		lease:   lease,
		grace:   min(grace, lease.TTL()/3),
		signals: signals,
		say:     f.say,
	}
	return r.run(file, argv, environment(name, backend, lease))
}

// split takes the arguments of "run" apart.
func split(args []string) (name string, argv []string, err error) {
	if len(args) == 0 {
		return "", nil, usageError("the name of the lock is missing")
	}
	name, argv = args[0], args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return "", nil, usageError("the command is missing")
	}
	return name, argv, nil
}

// graceFor returns the grace period. More than a third of the TTL would stop healthy commands, since renewal is due
// when two thirds are left.
func (f *runFlags) graceFor(rawURL string) (time.Duration, error) {
	ttl := f.ttl.d
	if ttl == 0 {
		ttl = ttlOf(rawURL)
	}
	if f.grace.set {
		if ttl == 0 {
			ttl = 15 * time.Second
		}
		if f.grace.d > ttl/3 {
			return 0, usageError("--grace %v is more than a third of the TTL, which is %v", f.grace.d, ttl)
		}
		return f.grace.d, nil
	}
	return 5 * time.Second, nil
}

// acquire waits for the lock as the flags say. A signal ends the wait.
func (f *runFlags) acquire(ctx context.Context, l locker.Locker, rawURL, name string, signals *signals) (locker.Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan os.Signal, 1)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case s := <-signals.all:
				if fatal(s) {
					got <- s
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	var opts []locker.AcquireOption
	if f.noWait {
		opts = append(opts, locker.WithMaxWait(0))
	} else if f.wait.set {
		opts = append(opts, locker.WithMaxWait(f.wait.d))
	}
	if f.verbose {
		f.say("acquiring %q", name)
	}
	wiped := make(chan struct{})
	if f.noWait || f.quiet || f.verbose || watchedWidth() == 0 {
		close(wiped)
	} else {
		line := &waitingLine{out: os.Stderr, width: watchedWidth, name: name, rawURL: rawURL}
		go func() {
			defer close(wiped)
			line.show(ctx)
		}()
	}
	lease, err := l.Acquire(ctx, name, opts...)
	cancel()
	<-stopped
	<-wiped
	select {
	case s := <-got:
		if err == nil {
			release(lease, f.say)
		}
		return nil, &exitError{exitSignal + number(s), nil}
	default:
	}
	if err != nil {
		if f.okIfHeld && errors.Is(err, locker.ErrHeld) {
			return nil, &exitError{0, err}
		}
		return nil, lockError(err)
	}
	return lease, nil
}

// environment returns the command's environment.
func environment(name, backend string, lease locker.Lease) []string {
	var env []string
	for _, e := range os.Environ() {
		switch key, _, _ := strings.Cut(e, "="); key {
		case "LOCKER_NAME", "LOCKER_TOKEN", "LOCKER_KIND", "LOCKER_BACKEND":
		default:
			env = append(env, e)
		}
	}
	return append(env,
		"LOCKER_NAME="+name,
		"LOCKER_TOKEN="+strconv.FormatUint(uint64(lease.Token()), 10),
		"LOCKER_KIND="+lease.Kind().String(),
		"LOCKER_BACKEND="+backend,
	)
}

// say prints a line to standard error.
func (f *runFlags) say(format string, args ...any) {
	if !f.quiet {
		fmt.Fprintf(os.Stderr, "locker: "+format+"\n", args...)
	}
}
