package redlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// target is one server: where our own connections go, or the client that the program brought.
type target struct {
	network, addr string
	db            int
	credentials   func(context.Context) (user, password string, err error) // nil: none
	tls           *tlsfiles.Files                                          // nil: no TLS
	client        *redis.Client                                            // the program's; nil: none
}

func init() {
	for _, scheme := range []string{"redlock", "redlocks"} {
		driver.Register(scheme, func(u *driver.URL) (driver.Connector, error) { return parse(u), nil })
	}
}

// parse takes what it knows out of a URL; what is wrong is noted there.
func parse(u *driver.URL) *connector {
	c := &connector{layout: layout{DefaultPrefix}, retention: defaultRetention}
	nodes := u.Params("node")
	switch {
	case u.Opaque:
		c.targets = parseNodes(u, nodes)
	case len(nodes) > 0:
		u.Errorf("parameter %q and hosts exclude each other", "node")
	default:
		db, credentials := database(u), credentials(u)
		files := tlsfiles.FromURL(u, u.Scheme == "redlocks")
		for _, addr := range u.Addrs("6379") {
			c.targets = append(c.targets, &target{network: "tcp", addr: addr, db: db, credentials: credentials, tls: files})
		}
	}
	if u.Opaque || len(u.Hosts) > 0 {
		if err := checkCount(len(c.targets)); err != nil {
			u.Errorf("%w", err)
		}
	}
	seen := make(map[string]bool)
	for _, t := range c.targets {
		if seen[t.addr] {
			u.Errorf("%s is given twice", t.addr)
		}
		seen[t.addr] = true
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
	return c
}

// parseNodes reads the URL of each node.
func parseNodes(u *driver.URL, nodes []string) []*target {
	if u.Scheme != "redlock" {
		u.Errorf(`"//" has to follow the scheme; nodes with URLs of their own have the scheme redlock, and rediss in their URLs`)
	}
	var targets []*target
	for i, raw := range nodes {
		n, err := driver.ParseURL(raw)
		if err != nil {
			u.Errorf("parameter %q, %d of %d: %w", "node", i+1, len(nodes), err)
			continue
		}
		t := &target{network: "tcp"}
		switch n.Scheme {
		case "redis", "rediss":
			if addrs := n.Addrs("6379"); len(addrs) == 1 {
				t.addr = addrs[0]
			} else if len(addrs) > 1 {
				n.Errorf("%d hosts are given, and each node is one server", len(addrs))
			}
			t.db = database(n)
		case "redis+unix":
			t.network, t.addr = "unix", n.Path
			if len(n.Hosts) > 0 || len(n.Path) < 2 {
				n.Errorf("the path of a socket has to follow, as in redis+unix:///run/redis.sock")
			}
		default:
			n.Errorf("the scheme of a node is redis, rediss or redis+unix")
		}
		t.credentials = credentials(n)
		t.tls = tlsfiles.FromURL(n, n.Scheme == "rediss")
		if err := n.Err(); err != nil {
			u.Errorf("parameter %q, %d of %d: %w", "node", i+1, len(nodes), err)
		}
		targets = append(targets, t)
	}
	return targets
}

// credentials reads the user and the password.
func credentials(u *driver.URL) func(context.Context) (user, password string, err error) {
	switch {
	case u.User != "" && u.Password == "":
		u.Errorf("a user is given without a password, and Redis can't log in a user without one")
	case u.HasUser && u.Password == "":
		u.Errorf(`there is no user and no password before the "@"`)
	case u.HasUser:
		user, password := u.User, u.Password
		return func(context.Context) (string, string, error) { return user, password, nil }
	}
	return nil
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
	if u.Scheme != "redlock" && u.Scheme != "redlocks" {
		return nil, fmt.Errorf("%w: the scheme %q isn't one of package redlock", driver.ErrConfig, u.Scheme)
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
	for _, t := range c.targets {
		switch {
		case opts.Credentials == nil:
		case t.credentials != nil:
			u.Errorf("credentials for %s are given both in the URL and in the options", t.addr)
		default:
			t.credentials = func(ctx context.Context) (string, string, error) { return opts.Credentials(ctx, t.addr) }
		}
	}
	if err := u.Err(); err != nil {
		return nil, err
	}
	if c.set(opts); c.err != nil {
		return nil, c.err
	}
	return c, nil
}
