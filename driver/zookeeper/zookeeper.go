// Package zookeeper is the driver for Apache ZooKeeper.
package zookeeper

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

func init() {
	driver.Register("zk", parse)
	driver.Register("zookeeper", parse)
	driver.Register("zks", parse)
	driver.Register("zookeepers", parse)
}

// Options are what a program decides beside the servers. nil stands for the zero value.
type Options struct {
	// Prefix is the path under which locks live, "/" for the root. Default "/locks".
	Prefix string

	// User and Password log in with ZooKeeper's digest scheme.
	User, Password string
	// Credentials replaces User and Password by what it returns each time a session is made.
	Credentials func(ctx context.Context) (user, password string, err error)
	// ACL is that of all nodes that are created. Default: everything for the user who logs in and nothing for others, or
	// everything for everybody where nobody logs in.
	ACL []zk.ACL

	// TLS makes connections use TLS. The server's name is the host's unless it is set.
	TLS *tls.Config
	// Dial replaces net.Dialer's DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (o *Options) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if o.Dial != nil {
		return o.Dial(ctx, network, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

func (o *Options) credentials(ctx context.Context) (user, password string, err error) {
	if o.Credentials != nil {
		return o.Credentials(ctx)
	}
	return o.User, o.Password, nil
}

// connector is a list of servers and how to use them.
type connector struct {
	servers []string
	prefix  string
	o       Options
	files   *tlsfiles.Files // nil without TLS, or with Options.TLS
	err     error
}

var _ driver.Connector = (*connector)(nil)

// New returns a connector for servers, each "host" or "host:port".
//
// It takes no *zk.Conn: a handle of the library tells neither the timeout that the servers granted nor when its session
// was made, from which every lease's end is computed, reports events only to whoever made it, and stands for one session,
// which the driver has to be able to replace.
func New(servers []string, o *Options) driver.Connector {
	c := &connector{servers: zk.FormatServers(servers)}
	if o != nil {
		c.o = *o
	}
	switch prefix := c.o.Prefix; {
	case len(servers) == 0:
		c.err = fmt.Errorf("%w: zookeeper: no servers", driver.ErrConfig)
	case prefix == "":
		c.prefix = defaultPrefix
	default:
		if c.prefix, c.err = checkPrefix(prefix); c.err != nil {
			c.err = fmt.Errorf("%w: zookeeper: prefix: %w", driver.ErrConfig, c.err)
		}
	}
	return c
}

const defaultPrefix = "/locks"

// checkPrefix returns a prefix without a slash at its end, and so "" for the root.
func checkPrefix(prefix string) (string, error) {
	if prefix == "/" {
		return "", nil
	}
	if !strings.HasPrefix(prefix, "/") {
		return "", fmt.Errorf("%q doesn't begin with a slash", prefix)
	}
	prefix = strings.TrimSuffix(prefix, "/")
	for i, element := range strings.Split(prefix[1:], "/") {
		switch {
		case element == "":
			return "", fmt.Errorf("%q has an empty element", prefix)
		case element == "." || element == "..":
			return "", fmt.Errorf("%q has the element %q", prefix, element)
		case i == 0 && element == reserved:
			return "", fmt.Errorf("%q belongs to the server", "/"+reserved)
		case strings.ContainsFunc(element, func(r rune) bool { return !safe(1, r) }):
			return "", fmt.Errorf("%q has a character that paths can't have", prefix)
		}
	}
	return prefix, nil
}

// Info describes the driver.
func (c *connector) Info() driver.Info {
	return driver.Info{
		Backend:       "zookeeper",
		Correctness:   true,
		MaxTTL:        math.MaxInt32 * time.Millisecond,
		Granularity:   time.Millisecond,
		RenewDivisor:  4,
		SharedSession: true,
	}
}

// Connect returns a Conn, which makes its session when one is first needed.
func (c *connector) Connect(_ context.Context, cfg driver.Config) (driver.Conn, error) {
	if c.err != nil {
		return nil, c.err
	}
	conn, err := c.connect(cfg)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
