package locker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
)

// backend is a Connector that says what the test wants and refuses to be connected, unless connect says otherwise.
type backend struct {
	t       *testing.T
	info    driver.Info
	connect func(context.Context, driver.Config) (driver.Conn, error)
}

func (b *backend) Info() driver.Info { return b.info }

func (b *backend) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	if b.connect == nil {
		b.t.Error("there was traffic before the configuration was checked")
		return nil, errors.New("no traffic is expected")
	}
	return b.connect(ctx, cfg)
}

// silent is a Conn that must not be asked.
type silent struct {
	driver.Conn
	t *testing.T
}

func (s silent) TryLock(context.Context, driver.Request) (driver.Hold, error) {
	s.t.Error("there was traffic for a name that isn't valid")
	return nil, driver.ErrHeld
}

func (silent) Close() error { return nil }

// current is what the scheme "test" stands for in the test that runs.
var current *backend

func init() {
	driver.Register("test", func(u *driver.URL) (driver.Connector, error) {
		u.Int("db", 0, 15)
		return current, u.Err()
	})
}

// use makes URLs of the scheme "test" name a backend for the duration of a test.
func use(t *testing.T, b *backend) *backend {
	b.t, current = t, b
	t.Cleanup(func() { current = nil })
	return b
}

// wrong expects an error of Open or New about the configuration.
func wrong(t *testing.T, what string, l locker.Locker, err error, says ...string) {
	t.Helper()
	if l != nil {
		t.Errorf("%s: a Locker was returned", what)
		l.Close()
	}
	if !errors.Is(err, locker.ErrConfig) {
		t.Errorf("%s: %v doesn't match ErrConfig", what, err)
		return
	}
	var structured *locker.Error
	if !errors.As(err, &structured) || structured.Op != "open" {
		t.Errorf("%s: %v is no *Error of Open", what, err)
	}
	if errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("%s: %v matches ErrUnavailable", what, err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q doesn't say %q", what, err, s)
		}
	}
	if strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("%s: %q holds a secret", what, err)
	}
}

func TestEXP10OptionsRefused(t *testing.T) {
	limited := driver.Info{Backend: "test", MinTTL: 2 * time.Second, MaxTTL: 40 * time.Second, Granularity: time.Second}
	for _, c := range []struct {
		info driver.Info
		opts locker.Options
		says string
	}{
		{opts: locker.Options{TTL: -1 * time.Second}, says: "TTL -1s isn't between 100ms and 24h0m0s"},
		{opts: locker.Options{TTL: 1}, says: "TTL 1ns"},
		{opts: locker.Options{TTL: 999 * time.Microsecond}, says: "TTL 999µs"},
		{opts: locker.Options{TTL: time.Millisecond}, says: "TTL 1ms"},
		{opts: locker.Options{TTL: 100*time.Millisecond - 1}, says: "TTL 99.999999ms"},
		{opts: locker.Options{TTL: 24*time.Hour + 1}, says: "TTL 24h0m0.000000001s"},
		{opts: locker.Options{TTL: 1e6 * time.Hour}, says: "TTL 1000000h0m0s"},
		{opts: locker.Options{TTL: 1<<63 - 1}, says: "TTL"},
		{info: limited, opts: locker.Options{TTL: time.Millisecond}, says: "TTL 1ms isn't between 2s and 40s"},
		{info: limited, opts: locker.Options{TTL: time.Second}, says: "TTL 1s isn't between 2s and 40s"},
		{info: limited, opts: locker.Options{TTL: 41 * time.Second}, says: "TTL 41s isn't between 2s and 40s"},
		{info: limited, opts: locker.Options{TTL: 40*time.Second + 1}, says: "TTL 40.000000001s isn't between 2s and 40s"},
		{info: limited, opts: locker.Options{TTL: 1<<63 - 1}, says: "TTL"},
		{info: driver.Info{Backend: "test", Granularity: time.Second}, opts: locker.Options{TTL: time.Millisecond}, says: "TTL 1ms isn't between 100ms"},
		{opts: locker.Options{MaxHold: -1}, says: "MaxHold -1ns is negative"},
		{opts: locker.Options{Require: 3}, says: "Require: Kind(3)"},
		{opts: locker.Options{Require: locker.Correctness}, says: "test gives locks of kind efficiency, and correctness is required"},
		{opts: locker.Options{Owner: "a\nb"}, says: "owner: it holds a control character"},
		{opts: locker.Options{Owner: "\xff"}, says: "owner: it isn't valid UTF-8"},
		{opts: locker.Options{Owner: strings.Repeat("o", 129)}, says: "owner: it has 129 bytes, and 128 are allowed"},
		{opts: locker.Options{TTL: 1, MaxHold: -1}, says: "MaxHold"},
	} {
		if c.info.Backend == "" {
			c.info.Backend = "test"
		}
		b := use(t, &backend{info: c.info})
		what := fmt.Sprintf("%+v", c.opts)
		l, err := locker.New(t.Context(), b, &c.opts)
		wrong(t, what, l, err, "locker: open (test): invalid configuration: ", c.says)
		l, err = locker.Open(t.Context(), "test://:s3cr3t@h", &c.opts)
		wrong(t, what, l, err, "locker: open (test): invalid configuration: ", c.says)
	}
}

func TestURLRefused(t *testing.T) {
	use(t, &backend{info: driver.Info{Backend: "test"}})
	for query, says := range map[string]string{
		"ttl=15":              `"ttl": "15" isn't a duration with a unit`,
		"ttl=":                `"ttl"`,
		"ttl":                 `"ttl" has no value`,
		"ttl=soon":            `"ttl"`,
		"ttl=0s":              `"ttl": 0s isn't positive`,
		"ttl=-1s":             `"ttl": -1s isn't positive`,
		"ttl=1ms":             "TTL 1ms isn't between 100ms and 24h0m0s",
		"ttl=25h":             "TTL 25h0m0s isn't between",
		"ttl=5s&ttl=5s":       `"ttl" is given 2 times`,
		"TTL=5s":              `unknown parameter "TTL"`,
		"max-hold=60":         `"max-hold": "60" isn't a duration with a unit`,
		"max-hold=0s":         `"max-hold": 0s isn't positive`,
		"max-hold=-1s":        `"max-hold": -1s isn't positive`,
		"max_hold=1s":         `unknown parameter "max_hold"`,
		"require=":            `"require": "" is neither efficiency nor correctness`,
		"require=strong":      `"require": "strong" is neither efficiency nor correctness`,
		"require=Correctness": `"require"`,
		"require=correctness": "correctness is required",
		"owner=":              `"owner" is empty`,
		"owner=a%0Ab":         "owner: it holds a control character",
		"owner=%FF":           "owner: it isn't valid UTF-8",
		"db=16":               `"db": "16" isn't a whole number from 0 to 15`,
		"nosuch=1":            `unknown parameter "nosuch"`,
		"db=1&":               "parameter 2 has no valid name",
		"ttl=5&nosuch=1":      `unknown parameter "nosuch"`,
		"nosuch=1&ttl=5":      `"ttl"`,
	} {
		raw := "test://user:s3cr3t@h:1/p?" + query
		l, err := locker.Open(t.Context(), raw, nil)
		wrong(t, raw, l, err, "locker: open", "invalid configuration: ", says)
	}
	for raw, says := range map[string]string{
		"":                          "scheme",
		"/var/lib/locks":            "scheme",
		"nosuch://:s3cr3t@h":        `unknown scheme "nosuch"`,
		"etcd://u:s3cr3t@h":         `forgotten import of "github.com/leasekit/locker/driver/etcd"?`,
		"test://u:s3cr3t@h:99999":   "port",
		"test://u:s3cr3t@h:1 ":      "space",
		"test://u:s3cr3t@h#x":       "%23",
		"test://u:12?s3cr3t=1@h":    "%3F",
		"memory:":                   `"//"`,
		"memory://u:s3cr3t@x":       "user or password",
		"memory://a,b":              "not 2",
		"memory://x:1":              "port",
		"memory:///x":               "path",
		"memory://x?prefix=a":       `unknown parameter "prefix"`,
		"memory://x?ttl=15":         "unit",
		"memory://?max-hold=1s&x=1": `unknown parameter "x"`,
	} {
		l, err := locker.Open(t.Context(), raw, nil)
		wrong(t, raw, l, err, says)
	}
}

func TestSameSettingInOptionsAndURL(t *testing.T) {
	for _, c := range []struct {
		query, name string
		same, other locker.Options
	}{
		{"ttl=7s", "TTL", locker.Options{TTL: 7 * time.Second}, locker.Options{TTL: 8 * time.Second}},
		{"max-hold=1m", "MaxHold", locker.Options{MaxHold: time.Minute}, locker.Options{MaxHold: time.Hour}},
		{"require=efficiency", "Require", locker.Options{Require: locker.Efficiency}, locker.Options{Require: locker.Correctness}},
		{"owner=me", "Owner", locker.Options{Owner: "me"}, locker.Options{Owner: "you"}},
	} {
		b := use(t, &backend{info: driver.Info{Backend: "test", Correctness: true}})
		raw := "test://h?" + c.query
		key, _, _ := strings.Cut(c.query, "=")
		l, err := locker.Open(t.Context(), raw, &c.other)
		wrong(t, raw, l, err, fmt.Sprintf("parameter %q and Options.%s have different values", key, c.name))

		b.connect = func(context.Context, driver.Config) (driver.Conn, error) { return silent{t: t}, nil }
		for _, opts := range []*locker.Options{nil, {}, &c.same} {
			l, err := locker.Open(t.Context(), raw, opts)
			if err != nil {
				t.Errorf("%s with %+v: %v", raw, opts, err)
				continue
			}
			l.Close()
		}
	}
}

// What the driver is given: the defaults, the settings wherever they stand, TTLs rounded up.
func TestSettingsReachTheDriver(t *testing.T) {
	seconds := driver.Info{Granularity: time.Second, MinTTL: 2 * time.Second, MaxTTL: 40 * time.Second}
	for _, c := range []struct {
		info  driver.Info
		query string
		opts  *locker.Options
		ttl   time.Duration
		owner string
	}{
		{ttl: 15 * time.Second},
		{opts: &locker.Options{}, ttl: 15 * time.Second},
		{opts: &locker.Options{TTL: 100 * time.Millisecond}, ttl: 100 * time.Millisecond},
		{opts: &locker.Options{TTL: 24 * time.Hour}, ttl: 24 * time.Hour},
		{query: "ttl=1m30s&owner=a+b%20c", ttl: 90 * time.Second, owner: "a+b c"},
		{query: "ttl=2s", opts: &locker.Options{Owner: "me"}, ttl: 2 * time.Second, owner: "me"},
		{query: "owner=" + strings.Repeat("o", 128), ttl: 15 * time.Second, owner: strings.Repeat("o", 128)},
		{info: seconds, opts: &locker.Options{TTL: 1500 * time.Millisecond}, ttl: 2 * time.Second},
		{info: seconds, opts: &locker.Options{TTL: 2*time.Second + 1}, ttl: 3 * time.Second},
		{info: seconds, query: "ttl=39.001s", ttl: 40 * time.Second},
		{info: seconds, opts: &locker.Options{TTL: 40 * time.Second}, ttl: 40 * time.Second},
		{info: driver.Info{MinTTL: 20 * time.Second}, ttl: 20 * time.Second},
		{info: driver.Info{MaxTTL: 10 * time.Second}, ttl: 10 * time.Second},
		{info: driver.Info{Granularity: 7 * time.Second}, ttl: 21 * time.Second},
	} {
		var got driver.Config
		c.info.Backend = "test"
		use(t, &backend{info: c.info, connect: func(_ context.Context, cfg driver.Config) (driver.Conn, error) {
			got = cfg
			return silent{t: t}, nil
		}})
		raw := "test://h"
		if c.query != "" {
			raw += "?" + c.query
		}
		what := fmt.Sprintf("%s %+v %+v", raw, c.opts, c.info)
		l, err := locker.Open(t.Context(), raw, c.opts)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got.TTL != c.ttl {
			t.Errorf("%s: the driver is asked for %v, want %v", what, got.TTL, c.ttl)
		}
		if c.owner != "" && got.Owner != c.owner || c.owner == "" && !strings.Contains(got.Owner, ":") {
			t.Errorf("%s: owner %q", what, got.Owner)
		}
		if got.Logger == nil || got.Now == nil || got.Now().IsZero() {
			t.Errorf("%s: logger %v, or no clock", what, got.Logger)
		}
		if l.Kind() != locker.Efficiency {
			t.Errorf("%s: a driver that says nothing is of kind %v", what, l.Kind())
		}
		l.Close()
	}
}

func TestRequire(t *testing.T) {
	for _, c := range []struct {
		correctness bool
		require     locker.Kind
		ok          bool
	}{
		{false, 0, true}, {true, 0, true},
		{false, locker.Efficiency, true}, {true, locker.Efficiency, true},
		{false, locker.Correctness, false}, {true, locker.Correctness, true},
	} {
		b := use(t, &backend{info: driver.Info{Backend: "test", Correctness: c.correctness}})
		if c.ok {
			b.connect = func(context.Context, driver.Config) (driver.Conn, error) { return silent{t: t}, nil }
		}
		l, err := locker.New(t.Context(), b, &locker.Options{Require: c.require})
		if !c.ok {
			wrong(t, "weaker kind", l, err, "correctness is required")
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		want := locker.Efficiency
		if c.correctness {
			want = locker.Correctness
		}
		if l.Kind() != want {
			t.Errorf("%+v: kind %v", c, l.Kind())
		}
		l.Close()
	}
}

// Connect's answers are answers, and anything else is an unknown.
func TestConnectFails(t *testing.T) {
	library := errors.New("the client library's error")
	for _, c := range []struct {
		err   error
		match []error
		not   []error
	}{
		{fmt.Errorf("%w: user x", driver.ErrDenied), []error{locker.ErrDenied}, []error{locker.ErrConfig, locker.ErrUnavailable}},
		{fmt.Errorf("%w: version 1", driver.ErrConfig), []error{locker.ErrConfig}, []error{locker.ErrUnavailable}},
		{library, []error{locker.ErrUnavailable, library}, []error{locker.ErrConfig, locker.ErrDenied}},
		{context.DeadlineExceeded, []error{locker.ErrUnavailable}, []error{locker.ErrConfig, context.DeadlineExceeded}},
	} {
		b := use(t, &backend{info: driver.Info{Backend: "test"}, connect: func(context.Context, driver.Config) (driver.Conn, error) {
			return nil, c.err
		}})
		l, err := locker.New(t.Context(), b, nil)
		if l != nil || err == nil {
			t.Errorf("%v: Locker %v, error %v", c.err, l, err)
			continue
		}
		for _, m := range c.match {
			if !errors.Is(err, m) {
				t.Errorf("%v doesn't match %v", err, m)
			}
		}
		for _, m := range c.not {
			if errors.Is(err, m) {
				t.Errorf("%v matches %v", err, m)
			}
		}
	}
}

func TestNamesRefusedBeforeTraffic(t *testing.T) {
	b := use(t, &backend{info: driver.Info{Backend: "test"}, connect: func(context.Context, driver.Config) (driver.Conn, error) {
		return silent{t: t}, nil
	}})
	l, err := locker.New(t.Context(), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, says := range map[string]string{
		"":                       "empty",
		strings.Repeat("n", 513): "513 bytes, and 512 are allowed",
		"a\xff":                  "UTF-8",
	} {
		_, acquired := l.Acquire(t.Context(), name)
		_, tried := l.TryAcquire(t.Context(), name)
		done := locker.Do(t.Context(), l, name, func(context.Context, locker.Lease) error {
			t.Error("the function ran")
			return nil
		})
		for _, err := range []error{acquired, tried, done} {
			if !errors.Is(err, locker.ErrInvalidName) || !errors.Is(err, locker.ErrConfig) || !strings.Contains(err.Error(), says) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}

func TestErrorText(t *testing.T) {
	cause := errors.New("connection refused")
	for want, err := range map[string]error{
		`locker: acquire "nightly" (redis): held by another`:                     &locker.Error{Op: "acquire", Backend: "redis", Name: "nightly", Err: locker.ErrHeld},
		`locker: try "a\"b\n" (etcd): connection refused`:                        &locker.Error{Op: "try", Backend: "etcd", Name: "a\"b\n", Err: cause},
		`locker: open: invalid configuration: x`:                                 &locker.Error{Op: "open", Err: fmt.Errorf("%w: x", locker.ErrConfig)},
		`locker: open (consul): not authorised`:                                  &locker.Error{Op: "open", Backend: "consul", Err: locker.ErrDenied},
		`locker: release "n" (zookeeper): lease lost: held for the maximum time`: &locker.Error{Op: "release", Backend: "zookeeper", Name: "n", Err: locker.ErrMaxHold},
	} {
		if err.Error() != want {
			t.Errorf("%s, want %s", err, want)
		}
	}

	store := memory.New()
	a, err := locker.New(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	lease, err := a.Acquire(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.TryAcquire(t.Context(), "nightly")
	if want := `locker: try "nightly" (memory): held by another`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	store.Expire("nightly")
	if want := `locker: hold "nightly" (memory): lease lost: the backend says so: not held`; context.Cause(lease.Context()).Error() != want {
		t.Errorf("%v, want %s", context.Cause(lease.Context()), want)
	}
	if want := `locker: release "nightly" (memory): lease lost: the backend says so: not held`; lease.Release(t.Context()).Error() != want {
		t.Errorf("%v, want %s", lease.Release(t.Context()), want)
	}
	a.Close()
	_, err = a.Acquire(t.Context(), "nightly")
	if want := `locker: acquire "nightly" (memory): locker closed`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	_, err = locker.Open(t.Context(), "memory://?ttl=15", nil)
	if want := `locker: open: invalid configuration: memory URL: parameter "ttl": "15" isn't a duration with a unit, such as 15s or 500ms`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestErrorMatches(t *testing.T) {
	for err, want := range map[error][]error{
		locker.ErrMaxHold:     {locker.ErrMaxHold, locker.ErrLost},
		locker.ErrInvalidName: {locker.ErrInvalidName, locker.ErrConfig},
		locker.ErrReleased:    {locker.ErrReleased},
	} {
		for _, s := range []error{
			locker.ErrHeld, locker.ErrLost, locker.ErrMaxHold, locker.ErrReleased, locker.ErrClosed, locker.ErrConfig,
			locker.ErrInvalidName, locker.ErrConflict, locker.ErrDenied, locker.ErrUnavailable,
		} {
			expected := false
			for _, w := range want {
				expected = expected || w == s
			}
			if errors.Is(&locker.Error{Op: "x", Err: err}, s) != expected {
				t.Errorf("%v matches %v: %v", err, s, !expected)
			}
		}
	}
}

func TestKindText(t *testing.T) {
	for k, want := range map[locker.Kind]string{locker.Efficiency: "efficiency", locker.Correctness: "correctness"} {
		text, err := k.MarshalText()
		if err != nil || string(text) != want || k.String() != want {
			t.Errorf("%v: %q, %v", k, text, err)
		}
		var back locker.Kind
		if err := back.UnmarshalText(text); err != nil || back != k {
			t.Errorf("%q comes back as %v, %v", text, back, err)
		}
	}
	for _, k := range []locker.Kind{0, 3, 255} {
		if text, err := k.MarshalText(); !errors.Is(err, locker.ErrConfig) {
			t.Errorf("%v is marshalled as %q, %v", k, text, err)
		}
	}
	if s := locker.Kind(3).String(); s != "Kind(3)" {
		t.Error(s)
	}
	for _, text := range []string{"", "Efficiency", "strong", "Kind(1)", "correctness "} {
		k := locker.Efficiency
		if err := k.UnmarshalText([]byte(text)); !errors.Is(err, locker.ErrConfig) || k != locker.Efficiency {
			t.Errorf("%q is read as %v, %v", text, k, err)
		}
	}
}

// No log record holds a secret either, whatever goes wrong.
func TestLogHoldsNoSecret(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	use(t, &backend{info: driver.Info{Backend: "test"}, connect: func(_ context.Context, cfg driver.Config) (driver.Conn, error) {
		cfg.Logger.Info("connected")
		return silent{t: t}, nil
	}})
	l, err := locker.Open(t.Context(), "test://user:s3cr3t@h?owner=me", &locker.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if !strings.Contains(log.String(), "backend=test") || strings.Contains(log.String(), "s3cr3t") {
		t.Errorf("log:\n%s", log.String())
	}
}
