// Package etcd holds locks in etcd: leases that are backed by consensus, with tokens that only rise.
//
//	etcd://HOST:2379,HOST:2379/PREFIX      etcds:// with TLS
//
// Importing the package makes both schemes known; [New] is for a program that has a client already. Any server of
// etcd's version 3 API will do. Before 3.5.13 a leader that was deposed while its disk stood still went on confirming
// leases, so that a holder could believe in its lease for too long.
//
// # Entry
//
// A lock is the key
//
//	PREFIX/NAME/ID
//
// whose ID is 32 hexadecimal digits of this acquisition alone, and whose value is "ID MILLISECONDS OWNER", for people:
// milliseconds of the Unix epoch at which it was asked for. The key belongs to the etcd lease that all locks of a Locker
// share. Keys are ordered by the revision that created them: the first one under PREFIX/NAME/ holds the lock, the others
// wait. In NAME every slash, percent sign and control character is percent-encoded, so that no name lies below another.
//
// PREFIX is the path of the URL, "/locks" if there is none. The parameter prefix= sets it without a leading slash, and
// may be empty: then the key is NAME/ID. Two prefixes of which one contains the other must not be used together.
// Beside the locks there is at most one more key, PREFIX/%token-offset, which a migration between backends leaves there.
//
// # Native peers
//
// The order by creation is that of concurrency.Mutex and of etcdctl, so they and this package exclude each other and
// stand in one queue:
//
//	concurrency.NewMutex(session, "/app/nightly")     etcd://HOST/app and the name nightly
//	etcdctl lock nightly                              etcd://HOST?prefix= and the name nightly
//
// A key under PREFIX/NAME/ that belongs to no lease is nobody's lock: it is left alone, and acquiring NAME fails with
// ErrConflict.
//
// A key of its own for each acquisition leaves its history in etcd until the next compaction, as every key does. A cluster
// needs --auto-compaction-retention; without it a name that is taken again and again slowly gets slower.
//
// # Rights
//
// Where etcd has users, the user needs "readwrite" on everything that begins with PREFIX/:
//
//	etcdctl role grant-permission ROLE readwrite /locks/ --prefix
//
// # URL parameters
//
//	prefix=        what keys begin with, instead of the path
//	ca= cert= key= server-name=      for etcds: paths of PEM files, and the name in the server's certificate
//
// The user and password of the URL log in to etcd. Files are read anew for each connection, and expired tokens are
// replaced.
//
// # Times
//
// etcd counts whole seconds, so a TTL is rounded up; servers raise it to their minimum of 1.5 election timeouts, 2 s by
// default. The lease reports what was granted.
//
// A lock whose holder died is free after its TTL and at most one second more. An election starts the TTL of all leases
// anew, so it can take one TTL and the election longer then.
//
// That a key was deleted or replaced behind its holder's back is noticed by the next renewal, after a third of the TTL;
// that the lease was revoked is noticed then or by the next acquire.
package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// DefaultPrefix is what keys begin with unless a URL or Options say otherwise.
const DefaultPrefix = "/locks/"

// Options are the settings beside the client.
type Options struct {
	// Prefix is what every key begins with; nil means DefaultPrefix. A slash is appended if it isn't empty and doesn't
	// end with one.
	Prefix *string
	// Credentials returns the user and password to log in with, each time that a token is needed. It is for programs
	// whose password changes, and only for [Dial]: a client that the program brings logs in by itself.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// New returns a Connector that uses the program's client, which has to come from clientv3.New and is never closed here.
// nil Options are the defaults.
func New(client *clientv3.Client, opts *Options) driver.Connector {
	return &connector{prefix: prefixOf(opts), client: client}
}

// Dial returns a Connector for a URL of this package, for what a URL can't say. It fails with ErrConfig. nil Options are
// the defaults; what the Options set must not be in the URL too.
func Dial(rawURL string, opts *Options) (driver.Connector, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	c := parse(u)
	if opts != nil && opts.Prefix != nil {
		if c.prefixSet {
			u.Errorf("the prefix is given both in the URL and in the options")
		}
		c.prefix = prefixOf(opts)
	}
	if opts != nil && opts.Credentials != nil {
		if c.credentials != nil {
			u.Errorf("a user is given both in the URL and in the options")
		}
		c.credentials = opts.Credentials
	}
	if err := u.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func init() {
	for _, scheme := range []string{"etcd", "etcds"} {
		driver.Register(scheme, func(u *driver.URL) (driver.Connector, error) { return parse(u), nil })
	}
}

// connector is the configuration of a cluster.
type connector struct {
	prefix    string // with its trailing slash; "" for none
	prefixSet bool

	client *clientv3.Client // the program's; nil: one is made from what follows

	endpoints   []string
	tls         *tlsfiles.Files // nil: no TLS
	credentials func(ctx context.Context) (user, password string, err error)
}

func prefixOf(opts *Options) string {
	if opts == nil || opts.Prefix == nil {
		return DefaultPrefix
	}
	return withSlash(*opts.Prefix)
}

func withSlash(prefix string) string {
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		return prefix
	}
	return prefix + "/"
}

// Info implements driver.Connector.
func (*connector) Info() driver.Info {
	return driver.Info{
		Backend:       "etcd",
		Correctness:   true,
		Granularity:   time.Second,
		SharedSession: true,
	}
}

// Connect implements driver.Connector.
func (cn *connector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	c, err := open(cn, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrConfig, err)
	}
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	if err := c.ask(ctx); driver.IsPermanent(err) {
		c.Close()
		return nil, err
	}
	return c, nil
}
