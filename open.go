package locker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// Open returns the Locker that a URL names. Its scheme chooses the driver, which has to be imported; its documentation
// says what else the URL can hold. Every URL can hold ttl=, require=, max-hold= and owner=.
//
// Open succeeds while servers are away: the first Acquire then waits for them. It fails with an error that matches
// ErrConfig if the URL or the options are wrong, before any traffic, and with ErrConfig or ErrDenied if a server that
// answers says so. It reads no environment variables, and no error or log record holds a password.
func Open(ctx context.Context, rawURL string, opts *Options) (Locker, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	s := settingsOf(opts)
	s.merge(u)
	c, err := u.Connector()
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	return open(ctx, c, s)
}

// New returns a Locker over a driver's Connector, for a program that has a client of its backend already:
//
//	l, err := locker.New(ctx, redis.New(client, nil), nil)
//
// Its errors are those of Open.
func New(ctx context.Context, c driver.Connector, opts *Options) (Locker, error) {
	return open(ctx, c, settingsOf(opts))
}

func open(ctx context.Context, c driver.Connector, s settings) (Locker, error) {
	info := c.Info()
	fail := func(err error) (Locker, error) { return nil, &Error{Op: "open", Backend: info.Backend, Err: err} }
	ttl, err := s.check(info)
	if err != nil {
		return fail(err)
	}
	now := clock.System
	if info.MonotonicOnly {
		now = clock.Monotonic
	}
	e := newEngine(info, ttl, s, now)
	conn, err := c.Connect(ctx, driver.Config{TTL: ttl, Owner: s.owner, Logger: e.log, Now: now})
	if err != nil {
		e.cancel()
		if !driver.IsPermanent(err) {
			err = unavailable(err)
		}
		return fail(err)
	}
	return e.connected(conn), nil
}

// settings are Options together with what the URL says.
type settings struct {
	ttl, maxHold time.Duration
	require      Kind
	owner        string
	logger       *slog.Logger
	hooks        Hooks
}

func settingsOf(o *Options) settings {
	if o == nil {
		o = &Options{}
	}
	s := settings{o.TTL, o.MaxHold, o.Require, o.Owner, o.Logger, o.Hooks}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	return s
}

// merge takes the shared parameters out of the URL. What is wrong with them is reported together with the driver's.
func (s *settings) merge(u *driver.URL) {
	const conflict = "parameter %q and Options.%s have different values"
	if d, ok := u.Duration("ttl"); ok {
		switch {
		case d <= 0:
			u.Errorf("parameter %q: %v isn't positive", "ttl", d)
		case s.ttl != 0 && s.ttl != d:
			u.Errorf(conflict, "ttl", "TTL")
		}
		s.ttl = d
	}
	if d, ok := u.Duration("max-hold"); ok {
		switch {
		case d <= 0:
			u.Errorf("parameter %q: %v isn't positive", "max-hold", d)
		case s.maxHold != 0 && s.maxHold != d:
			u.Errorf(conflict, "max-hold", "MaxHold")
		}
		s.maxHold = d
	}
	if text, ok := u.Param("require"); ok {
		var k Kind
		if err := k.UnmarshalText([]byte(text)); err != nil {
			u.Errorf("parameter %q: %q is neither efficiency nor correctness", "require", text)
		} else if s.require != 0 && s.require != k {
			u.Errorf(conflict, "require", "Require")
		}
		s.require = k
	}
	if owner, ok := u.Param("owner"); ok {
		switch {
		case owner == "":
			u.Errorf("parameter %q is empty", "owner")
		case s.owner != "" && s.owner != owner:
			u.Errorf(conflict, "owner", "Owner")
		}
		s.owner = owner
	}
}

// check completes the settings and returns the TTL to ask for.
func (s *settings) check(info driver.Info) (ttl time.Duration, err error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	lo, hi := max(minTTL, info.MinTTL), maxTTL
	if info.MaxTTL > 0 {
		hi = min(hi, info.MaxTTL)
	}
	if s.ttl == 0 {
		s.ttl = min(max(defaultTTL, lo), hi)
	}
	ttl = s.ttl
	if g := info.Granularity; g > 0 && ttl > 0 && ttl <= hi {
		ttl = (ttl + g - 1) / g * g
	}
	if s.ttl < minTTL || ttl < lo || ttl > hi {
		bad("TTL %v isn't between %v and %v", s.ttl, lo, hi)
	}
	if s.maxHold < 0 {
		bad("MaxHold %v is negative", s.maxHold)
	}
	switch s.require {
	case 0, Efficiency:
	case Correctness:
		if !info.Correctness {
			bad("%s gives locks of kind efficiency, and correctness is required", info.Backend)
		}
	default:
		bad("Require: %v is neither efficiency nor correctness", s.require)
	}
	if s.owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		s.owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if err := checkOwner(s.owner); err != nil {
		bad("owner: %w", err)
	}
	if len(errs) > 0 {
		return 0, fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return ttl, nil
}

func checkOwner(owner string) error {
	if len(owner) > 128 {
		return fmt.Errorf("it has %d bytes, and 128 are allowed", len(owner))
	}
	if !utf8.ValidString(owner) {
		return errors.New("it isn't valid UTF-8")
	}
	for _, r := range owner {
		if unicode.IsControl(r) {
			return errors.New("it holds a control character")
		}
	}
	return nil
}
