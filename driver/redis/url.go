package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// target is the server that connections of our own go to.
type target struct {
	network, addr string
	db            int
	credentials   func(context.Context) (user, password string, err error) // nil: none
	tls           *tls.Config                                              // nil: none
}

func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+unix"} {
		driver.Register(scheme, func(u *driver.URL) (driver.Connector, error) { return parse(u), nil })
	}
}

// parse takes what it knows out of a URL; what is wrong is noted there.
func parse(u *driver.URL) *connector {
	c := &connector{layout: layout{prefix: DefaultPrefix}, retention: defaultRetention, target: &target{network: "tcp"}}
	t := c.target
	switch {
	case u.Opaque:
		u.Errorf(`"//" has to follow the scheme`)
	case u.Scheme == "redis+unix":
		t.network, t.addr = "unix", u.Path
		if len(u.Hosts) > 0 || len(u.Path) < 2 {
			u.Errorf("the path of a socket has to follow, as in redis+unix:///run/redis.sock")
		}
	default:
		if addrs := u.Addrs("6379"); len(addrs) > 1 {
			u.Errorf("%d hosts are given, and one server holds the locks", len(addrs))
		} else if len(addrs) == 1 {
			t.addr = addrs[0]
		}
		t.db = database(u)
	}
	switch {
	case u.User != "" && u.Password == "":
		u.Errorf("a user is given without a password, and Redis can't log in a user without one")
	case u.HasUser && u.Password == "":
		u.Errorf(`there is no user and no password before the "@"`)
	case u.HasUser:
		user, password := u.User, u.Password
		t.credentials = func(context.Context) (string, string, error) { return user, password, nil }
	}
	if prefix, ok := u.Param("prefix"); ok {
		c.layout.prefix, c.prefixSet = prefix, true
		if err := c.layout.check(); err != nil {
			u.Errorf("parameter %q: %w", "prefix", err)
		}
	}
	if d, ok := u.Duration("retention"); ok {
		c.retention, c.retentionSet = d, true
		if err := checkRetention(d); err != nil {
			u.Errorf("parameter %q: %w", "retention", err)
		}
	}
	c.tls = tlsfiles.FromURL(u, u.Scheme == "rediss")
	return c
}

// database reads the number of the database, which is the whole path.
func database(u *driver.URL) int {
	path := strings.TrimPrefix(u.Path, "/")
	if path == "" {
		return 0
	}
	n, err := strconv.ParseUint(path, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != path {
		u.Errorf("the path %q isn't the number of a database, as in %s://HOST/0", u.Path, u.Scheme)
		return 0
	}
	return int(n)
}

// Dial returns a Connector for a URL of this package, for what a URL can't say. It causes no traffic and fails with
// ErrConfig. nil Options are the defaults; what the Options set must not be in the URL too.
func Dial(rawURL string, opts *Options) (driver.Connector, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "redis", "rediss", "redis+unix":
	default:
		return nil, fmt.Errorf("%w: the scheme %q isn't one of package redis", driver.ErrConfig, u.Scheme)
	}
	c := parse(u)
	if opts == nil {
		opts = &Options{}
	}
	if opts.Prefix != nil && c.prefixSet {
		u.Errorf("the prefix is given both in the URL and in the options")
	}
	if opts.Retention != 0 && c.retentionSet {
		u.Errorf("the retention is given both in the URL and in the options")
	}
	if opts.Credentials != nil && c.target.credentials != nil {
		u.Errorf("credentials are given both in the URL and in the options")
	}
	if err := u.Err(); err != nil {
		return nil, err
	}
	if c.set(opts); c.err != nil {
		return nil, c.err
	}
	if opts.Credentials != nil {
		c.target.credentials = opts.Credentials
	}
	return c, nil
}
