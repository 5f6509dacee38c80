package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// target is what connections of our own go to: a server, the primary that Sentinel names, or a cluster.
type target struct {
	network, addr string
	db            int
	credentials   credentials
	tls           *tls.Config // nil: none

	addrs               []string // sentinels if master is set, else nodes of a cluster
	master              string   // what Sentinel calls it
	sentinelCredentials credentials
	primary             *primary // instead of addr

	dial   func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the usual one
	failed func()                                                            // called when addr can't be reached; may be nil
}

// credentials returns what to log in with; nil: nothing.
type credentials func(context.Context) (user, password string, err error)

// schemes are those of this package.
var schemes = []string{"redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}

func init() {
	for _, scheme := range schemes {
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
	case strings.HasSuffix(u.Scheme, "+sentinel"):
		t.addrs = distinct(u, u.Addrs("26379"))
		t.sentinel(u)
	case strings.HasSuffix(u.Scheme, "+cluster"):
		t.addrs = distinct(u, u.Addrs("6379"))
		if database(u, u.Path) != 0 {
			u.Errorf("a cluster has no database but 0")
		}
	default:
		if addrs := u.Addrs("6379"); len(addrs) > 1 {
			u.Errorf("%d hosts are given, and one server holds the locks (redis+sentinel:// and redis+cluster:// take several)", len(addrs))
		} else if len(addrs) == 1 {
			t.addr = addrs[0]
		}
		t.db = database(u, u.Path)
	}
	switch {
	case u.User != "" && u.Password == "":
		u.Errorf("a user is given without a password, and Redis can't log in a user without one")
	case u.HasUser && u.Password == "":
		u.Errorf(`there is no user and no password before the "@"`)
	case u.HasUser:
		t.credentials = fixed(u.User, u.Password)
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
	c.tls = tlsfiles.FromURL(u, strings.HasPrefix(u.Scheme, "rediss"))
	return c
}

// fixed returns credentials that never change.
func fixed(user, password string) credentials {
	return func(context.Context) (string, string, error) { return user, password, nil }
}

// distinct refuses an address that is there twice.
func distinct(u *driver.URL, addrs []string) []string {
	for i, addr := range addrs {
		if slices.Contains(addrs[:i], addr) {
			u.Errorf("the host %s is given twice", addr)
		}
	}
	return addrs
}

// sentinel reads what is special to Sentinel: the path is the master's name and the number of the database.
func (t *target) sentinel(u *driver.URL) {
	master, db, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if t.master = master; master == "" {
		u.Errorf("the name of the master is missing, as in %s://HOST,HOST/NAME/0", u.Scheme)
	}
	t.db = database(u, db)
	user, hasUser := u.Param("sentinel-user")
	password, hasPassword := u.Param("sentinel-password")
	switch {
	case hasPassword && password == "":
		u.Errorf("parameter %q is empty", "sentinel-password")
	case hasUser && !hasPassword:
		u.Errorf("parameter %q needs %q beside it", "sentinel-user", "sentinel-password")
	case hasPassword:
		t.sentinelCredentials = fixed(user, password)
	}
}

// database reads the number of the database, which is the rest of the path.
func database(u *driver.URL, path string) int {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return 0
	}
	n, err := strconv.ParseUint(path, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != path {
		u.Errorf("the path %q doesn't end with the number of a database, as in %s://HOST/0", u.Path, u.Scheme)
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
	if !slices.Contains(schemes, u.Scheme) {
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
	if opts.SentinelCredentials != nil && c.target.sentinelCredentials != nil {
		u.Errorf("the sentinels' credentials are given both in the URL and in the options")
	}
	if opts.SentinelCredentials != nil && c.target.master == "" {
		u.Errorf("the options have credentials for sentinels, and there are none")
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
	if opts.SentinelCredentials != nil {
		c.target.sentinelCredentials = opts.SentinelCredentials
	}
	return c, nil
}
