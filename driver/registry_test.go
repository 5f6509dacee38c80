package driver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leasekit/locker/driver"
)

// none is a Connector that is never asked.
type none struct{ driver.Connector }

func parseNone(u *driver.URL) (driver.Connector, error) { return none{}, u.Err() }

func TestRegisterPanics(t *testing.T) {
	driver.RegisterForTest(t, "test-twice", parseNone)
	for says, register := range map[string]func(){
		"nil":             func() { driver.Register("test-nil", nil) },
		"test-twice":      func() { driver.Register("test-twice", parseNone) },
		"invalid scheme ": func() { driver.Register("", parseNone) },
		"Upper":           func() { driver.Register("Upper", parseNone) },
		"a:b":             func() { driver.Register("a:b", parseNone) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "driver: Register") || !strings.Contains(got, says) {
					t.Errorf("panicked with %q, which doesn't say %q", got, says)
				}
			}()
			register()
		}()
	}
	if slices.Contains(driver.Schemes(), "test-nil") {
		t.Error("a scheme is registered that Register refused")
	}
}

func TestSchemesAreListedWhenAsked(t *testing.T) {
	unknown := func() string {
		_, err := driver.Parse("nosuch://h")
		if !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%v doesn't match ErrConfig", err)
		}
		return fmt.Sprint(err)
	}
	before := unknown()
	driver.RegisterForTest(t, "test-late", parseNone)
	after := unknown()
	if !strings.Contains(after, `unknown scheme "nosuch"`) || !strings.Contains(after, "imported drivers know") {
		t.Errorf("%q names neither the scheme nor what there is", after)
	}
	if strings.Contains(before, "test-late") || !strings.Contains(after, "test-late") {
		t.Errorf("before registering: %q; after: %q", before, after)
	}
	if s := driver.Schemes(); !slices.Contains(s, "test-late") || !slices.IsSorted(s) {
		t.Errorf("schemes: %v", s)
	}
}

func TestUnknownSchemeNamesTheImport(t *testing.T) {
	for raw, pkg := range map[string]string{
		"memory://":                       "memory",
		"file:///x":                       "file",
		"redis://:s3cr3t@h":               "redis",
		"rediss://:s3cr3t@h":              "redis",
		"redis+unix:///x":                 "redis",
		"rediss+cluster://u:s3cr3t@h1,h2": "redis",
		"redlock:?node=s3cr3t":            "redlock",
		"redlocks://h":                    "redlock",
		"etcds://h":                       "etcd",
		"zk://h":                          "zookeeper",
		"zks://h":                         "zookeeper",
		"zookeeper://h":                   "zookeeper",
		"consuls://s3cr3t@h":              "consul",
		"migrate:?from=s3cr3t":            "migrate",
	} {
		_, err := driver.Parse(raw)
		if err == nil {
			t.Errorf("%s is accepted", raw)
			continue
		}
		refused(t, raw, err, `forgotten import of "github.com/leasekit/locker/driver/`+pkg+`"?`)
	}
}

// A driver that is imported isn't said to be missing for a variant that it hasn't.
func TestUnknownVariantOfAnImportedDriver(t *testing.T) {
	driver.RegisterForTest(t, "consul", parseNone)
	_, err := driver.Parse("consul+udp://h")
	if err == nil {
		t.Fatal("accepted")
	}
	refused(t, "consul+udp://h", err, "imported drivers know")
}

func TestParseReportsWhatIsLeft(t *testing.T) {
	failing := errors.New("the driver's own error")
	driver.RegisterForTest(t, "test-parse", func(u *driver.URL) (driver.Connector, error) {
		u.Int("n", 1, 9)
		if u.Path == "/fail" {
			return nil, failing
		}
		return none{}, nil
	})
	for raw, says := range map[string]string{
		"test-parse://h?n=10":      `"n"`,
		"test-parse://h?m=1":       `unknown parameter "m"`,
		"test-parse://h?n=1&m=1":   `unknown parameter "m"`,
		"test-parse://h/fail?m=1":  `unknown parameter "m"`,
		"test-parse://h?n=1&n=1":   `"n" is given 2 times`,
		"test-parse://h:x":         "port",
		"test-parse://:s3cr3t@h?x": `"x" has no value`,
	} {
		if _, err := driver.Parse(raw); err == nil {
			t.Errorf("%s is accepted", raw)
		} else {
			refused(t, raw, err, says)
		}
	}
	if _, err := driver.Parse("test-parse://h/fail"); !errors.Is(err, failing) {
		t.Error(err)
	}
	if c, err := driver.Parse("test-parse://h?n=1"); err != nil || c != (none{}) {
		t.Error(c, err)
	}
}

func TestAnswers(t *testing.T) {
	for err, want := range map[error]struct{ answer, permanent bool }{
		nil:                          {false, false},
		driver.ErrHeld:               {true, false},
		driver.Held(1e9):             {true, false},
		driver.ErrNotHeld:            {true, false},
		driver.ErrConfig:             {true, true},
		driver.ErrInvalidName:        {true, true},
		driver.ErrConflict:           {true, true},
		driver.ErrDenied:             {true, true},
		context.Canceled:             {false, false},
		context.DeadlineExceeded:     {false, false},
		errors.New("no such answer"): {false, false},
	} {
		wrapped := err
		if err != nil {
			wrapped = fmt.Errorf("wrapped: %w", err)
		}
		if driver.IsAnswer(wrapped) != want.answer || driver.IsPermanent(wrapped) != want.permanent {
			t.Errorf("%v: answer %v, permanent %v", err, driver.IsAnswer(wrapped), driver.IsPermanent(wrapped))
		}
	}
	if d := driver.HeldFor(fmt.Errorf("wrapped: %w", driver.Held(1500e6))); d != 1500e6 {
		t.Error(d)
	}
	if d := driver.HeldFor(driver.Held(-1)); d != 0 || driver.Held(0) != driver.ErrHeld {
		t.Error(d)
	}
	if s := driver.Held(1500e6).Error(); s != "held by another for up to 1.5s" {
		t.Error(s)
	}
}
