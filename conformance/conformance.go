// Package conformance is the suite that decides what a correct driver is. A driver that passes it keeps the promises of
// package locker; one that doesn't is told which promise it breaks, by the name and the rule of a case.
//
// The test of a driver fills in a [Backend] and calls [Run]. What the suite can do to a backend depends on what it is
// given: with Addrs it puts TCP proxies in between and breaks connections, with [Admin] it acts behind the library's
// back, with [Servers] it stops them. A case whose means are missing is skipped visibly, by name; with RequireAll it
// fails instead, unless Excuses gives a reason.
//
// A case never fails because a machine is slow: lower bounds of times are exact, upper ones are generous multiples of the
// TTL, and what nobody can see from outside without a race is judged by records made in an order that proves it (see
// witness.go). A case that fails while the machine or the server stood still for a good part of the TTL is run again.
//
// Cases run several at a time. LOCKER_TEST_LONG=1 repeats many of them a hundred times and more.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
)

// Backend is a backend to be tested. Name, URL or Connector, and TTL are required.
type Backend struct {
	// Name is the backend's name in what the suite prints.
	Name string

	// Addrs are the addresses ("host:port") of the servers; none for a backend without servers. The suite puts a proxy of
	// its own in front of each.
	Addrs []string

	// URL returns the URL of the backend with its servers at the given addresses, as many as Addrs has and in the same
	// order. All URLs must lead to the same store, which nobody else uses and which is empty at the start: a database, a
	// prefix or a directory of its own.
	URL func(addrs []string) string

	// TTL is the shortest sensible TTL, from which all other times of the suite follow. One second is a good choice where
	// the backend allows it; less than 500 ms makes a suite that fails on a busy machine.
	TTL time.Duration

	// TakeOver is the documented bound on the time from the crash of a holder with TTL to the grant to one that waits.
	TakeOver time.Duration

	// ProcessBound says that an entry ends with its holder's process and not with a TTL, as locks of a file do.
	ProcessBound bool

	Admin   Admin   // acts behind the library's back
	Servers Servers // stops servers and starts them

	// Excuses say why a case, or all cases that need something, aren't run: by a case's name ("WAIT-19") or by a need's
	// ("Servers.Stop"). The reasons are printed.
	Excuses map[string]string

	// RequireAll makes a case fail that can't be run and isn't excused.
	RequireAll bool

	// Only names the cases to run; none means all.
	Only []string

	// Background are names of functions whose goroutines may outlive a Locker, since the whole process shares them. A name
	// matches each function that it is a part of.
	Background []string

	// Connector makes the Connector that Lockers are made with; nil means driver.Parse of the URL. It is for drivers that
	// are given a client.
	Connector func(addrs []string) (driver.Connector, error)

	// NewLocker makes a Locker; nil means locker.New. It is for tests of this suite, and of other engines.
	NewLocker func(context.Context, driver.Connector, *locker.Options) (locker.Locker, error)

	// Log is called with what [Check] would only say in passing: cases that aren't run and why. nil discards it.
	Log func(text string)
}

// Admin acts on the backend directly, without the library. Each function may be nil. Names are lock names, as they are
// given to Acquire.
type Admin struct {
	// Entry returns the entry by which a name is held, and the zero Entry if there is none. The suite also calls it all the
	// time, to see how soon the server answers.
	Entry func(ctx context.Context, name string) (Entry, error)
	// Delete removes the entry by which a name is held, as an operator does by mistake.
	Delete func(ctx context.Context, name string) error
	// Replace makes somebody else the holder of a held name, in one step or in two.
	Replace func(ctx context.Context, name string) error
	// EndSession ends the session, or the server's lease, of the holder of a name.
	EndSession func(ctx context.Context, name string) error
	// DropWaiter removes the queue entry of the one who waits for a name, or ends its session. The waiter's Owner is the
	// name.
	DropWaiter func(ctx context.Context, name string) error
	// Occupy puts something that isn't a lock where the entry of a name would stand. check returns an error if it isn't
	// what it was, and removes it.
	Occupy func(ctx context.Context, name string) (check func(context.Context) error, err error)
	// Entries lists what holders and waiters have in the store at this moment, in the backend's own words: keys, nodes,
	// files that stand for a lock held or a place in a queue. What outlives a lock by design isn't listed.
	Entries func(ctx context.Context) ([]string, error)
	// Sessions counts the sessions, or the server's leases, that Lockers have.
	Sessions func(ctx context.Context) (int, error)
}

// Entry is what a server knows about a held name.
type Entry struct {
	Value     string        // all that tells one holder from another
	Remaining time.Duration // until the entry expires by itself; 0 if that isn't known
}

// Servers stops servers and starts them. i is an index of Backend.Addrs. Each function may be nil.
type Servers struct {
	Stop   func(ctx context.Context, i int) error // as in a crash
	Start  func(ctx context.Context, i int) error // with the data that it had, at the same address; returns when it answers
	Pause  func(ctx context.Context, i int) error // the process stands still and its connections stay
	Resume func(ctx context.Context, i int) error
}

// Check runs the cases that need no processes of their own, without package testing, and returns all failures joined.
// It also returns an error if the backend isn't ready to be tested.
func Check(ctx context.Context, b Backend) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	s := newSuite(b)
	var errs []error
	for r := range s.run(ctx, s.selected(nil)) {
		switch {
		case r.skipped != "":
			s.log(fmt.Sprintf("%s: %s", r.name, r.skipped))
		case len(r.failures) > 0:
			errs = append(errs, r.err())
		}
	}
	return errors.Join(append(errs, s.leftovers(ctx)...)...)
}

// ready says in a sentence what is missing before any case can be run.
func (b *Backend) ready(ctx context.Context) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("conformance: "+format, args...)
	}
	switch {
	case b.Name == "":
		return bad("Backend.Name is missing")
	case b.URL == nil && b.Connector == nil:
		return bad("Backend.URL of %s is missing: it returns the URL of the backend for given addresses", b.Name)
	case b.TTL <= 0:
		return bad("Backend.TTL of %s is missing: the shortest sensible TTL", b.Name)
	case b.RequireAll && len(b.Only) > 0:
		return bad("Backend.RequireAll and Backend.Only of %s exclude each other", b.Name)
	}
	for _, name := range b.Only {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name }) {
			return bad("Backend.Only of %s: there is no case %q", b.Name, name)
		}
	}
	for key := range b.Excuses {
		if !slices.Contains(needs, need(key)) && !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == key }) {
			return bad("Backend.Excuses of %s: there is no case and no need %q", b.Name, key)
		}
	}
	// A store that isn't there or isn't empty would fail every case in a way that says something else.
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	l, err := b.open(ctx, b.Addrs, nil, &locker.Options{TTL: b.TTL})
	if err != nil {
		return bad("%s can't be opened: %w", b.Name, err)
	}
	defer l.Close()
	if b.Admin.Entries != nil {
		left, err := b.Admin.Entries(ctx)
		if err != nil {
			return bad("Admin.Entries of %s: %w", b.Name, err)
		}
		if len(left) > 0 {
			return bad("the store of %s isn't empty: it has %d entries, such as %q; give the suite a database, prefix or directory of its own", b.Name, len(left), left[0])
		}
	}
	lease, err := l.TryAcquire(ctx, "conformance-"+newTag())
	if err != nil {
		return bad("%s isn't there or doesn't grant a free name: %w", b.Name, err)
	}
	if lease == nil {
		return bad("%s grants a name without a lease and without an error", b.Name)
	}
	if err := lease.Release(ctx); err != nil {
		return bad("%s doesn't release a name: %w", b.Name, err)
	}
	return nil
}

// open makes a Locker. between is nil or wraps the driver.
func (b *Backend) open(ctx context.Context, addrs []string, wrap func(driver.Connector) driver.Connector, opts *locker.Options) (locker.Locker, error) {
	if b.Connector == nil && b.NewLocker == nil && wrap == nil {
		return locker.Open(ctx, b.URL(addrs), opts)
	}
	c, err := b.connector(addrs)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		c = wrap(c)
	}
	if b.NewLocker != nil {
		return b.NewLocker(ctx, c, opts)
	}
	return locker.New(ctx, c, opts)
}

func (b *Backend) connector(addrs []string) (driver.Connector, error) {
	if b.Connector != nil {
		return b.Connector(addrs)
	}
	return driver.Parse(b.URL(addrs))
}

// excuse returns why a case isn't run, and "" if it is.
func (b *Backend) excuse(c testCase) string {
	if why := b.Excuses[c.name]; why != "" {
		return "excused: " + why
	}
	var missing []string
	for _, n := range c.needs {
		if why := b.Excuses[string(n)]; why != "" {
			return fmt.Sprintf("excused, needs %s: %s", n, why)
		}
		if !n.met(b) {
			missing = append(missing, string(n))
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return "not run: needs " + strings.Join(missing, ", ")
}
