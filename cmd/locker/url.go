package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/leasekit/locker/driver"
)

// urlFlag is where locks are kept: --url, or else LOCKER_URL, or else a directory of the user's state.
type urlFlag struct {
	flag   string
	getenv func(string) string
}

func (u *urlFlag) register(flags *pflag.FlagSet) {
	flags.StringVar(&u.flag, "url", "", "where locks are kept, as a `URL`; default $LOCKER_URL, or else\n"+
		"file:// and a directory of this user: $XDG_STATE_HOME/locker or ~/.local/state/locker")
}

// value returns the URL. It may hold a password and is never printed.
func (u *urlFlag) value() (string, error) {
	if u.flag != "" {
		return u.flag, nil
	}
	if env := u.getenv("LOCKER_URL"); env != "" {
		return env, nil
	}
	return u.stateURL()
}

// stateURL returns the default, the directory "locker" in the user's state directory as of the XDG Base Directory
// Specification, which has relative paths ignored.
func (u *urlFlag) stateURL() (string, error) {
	state := u.getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home := u.getenv("HOME")
		if runtime.GOOS == "windows" || !filepath.IsAbs(home) {
			return "", fmt.Errorf("%w: there is no home directory to keep locks in: give --url or LOCKER_URL", driver.ErrConfig)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return "file://" + escapePath(filepath.Join(state, "locker")), nil
}

// escapePath percent-encodes what can't stand in the path of a URL.
func escapePath(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("%?#", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ttlOf returns the TTL in a URL, or 0 if there is none or the URL is wrong: opening it will say so.
func ttlOf(rawURL string) time.Duration {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return 0
	}
	d, _ := u.Duration("ttl")
	return d
}
