// Package zookeeper holds locks in Apache ZooKeeper: leases that are backed by consensus, with tokens that only rise.
//
//	zk://HOST:2181,HOST:2181/PREFIX      zks:// with TLS; zookeeper:// and zookeepers:// are the same
//
// Importing the package makes the schemes known; [New] is for a program that has no URL, or a dialer, TLS settings or
// credentials of its own. Servers from 3.5 on will do; with 3.4, folders that locks have left stay.
//
// # Entry
//
// A lock is the ephemeral sequential node
//
//	PREFIX/NAME/_c_ID-lock-SEQUENCE
//
// whose ID is 32 hexadecimal digits of this acquisition alone, and whose data is "ID MILLISECONDS OWNER", for people:
// milliseconds of the Unix epoch at which it was asked for. It belongs to the session that all locks of a Locker share. The
// node with the smallest sequence number holds the lock, the others wait. In NAME, slashes, percent signs, a leading dot, and
// the characters that ZooKeeper refuses are percent-encoded (control characters, U+D800 to U+F8FF, and from U+FFF0 on), so
// that no name lies below another; the name zookeeper is %7Aookeeper.
//
// PREFIX is the path of the URL, "/locks" if there is none. The parameter prefix= sets it instead, and may be empty: then
// names lie in the root. What is missing of it is created. Folders are container nodes, which the server removes when they
// have been empty for a while. Beside them there is one more node, PREFIX/%token-offset, which a migration between backends
// changes. Of two prefixes none should contain the other.
//
// # Native peers
//
// The form and the order are those of Apache Curator and go-zookeeper, so they and this package exclude each other and
// stand in one queue:
//
//	zk.NewLock(conn, "/app/nightly", acl)                    zk://HOST/app and the name nightly
//	new InterProcessMutex(client, "/app/nightly")            zk://HOST/app and the name nightly
//
// kazoo's Lock, whose nodes end in __lock__ and the number, is kept out too; for it to keep this package out, give it
// extra_lock_patterns=["-lock-"]. Tried with kazoo 2.8: without that it takes a lock that is held here. Other children of a
// folder are ignored. Of a folder that holds data, the data stays as it is, at the cost of a request or two per cycle.
//
// # Rights
//
// Nodes are created with all rights for the user of the URL, or for everybody if there is none. Where others have created the
// prefix or a folder, the driver needs there
//
//	on PREFIX           CREATE (folders, the offset)
//	on %token-offset    READ, and WRITE for a migration
//	on PREFIX/NAME      CREATE, DELETE, READ; with WRITE, a free lock costs one request less
//
// Whether one is missing shows with the first lock, as an error that names it.
//
// # URL parameters
//
//	prefix=        where locks lie, instead of the path
//	ca= cert= key= server-name=      for zks: paths of PEM files, and the name in the server's certificate
//
// The user and password of the URL log in with the scheme digest. Files are read anew for each connection, and host names
// are resolved anew.
//
// # Times
//
// The servers bring the TTL between their minSessionTimeout and maxSessionTimeout, by default 2 and 20 ticks and thus 4 s
// and 40 s; the lease reports what was granted. They should not be set below 2 ticks: how far a server's knowledge of its
// clients may lie back is computed from that.
//
// A lock whose holder died is free after its TTL and at most a tick more. A new leader starts the TTL of all sessions
// anew, so it can take one TTL and the election longer then.
//
// A lease can be told only what the servers have certainly noted, so it has at least half of its TTL left while the
// servers answer, and not all of it. That is how long a loss of contact may last.
//
// That a node was deleted behind its holder's back is noticed at once after the first renewal, and before that by it, after
// an eighth of the TTL.
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
		RenewDivisor:  10, // the newest proof lies three renewals back: see contact
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
