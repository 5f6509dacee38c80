// Package redlock keeps locks on a majority of independent Redis or Valkey servers. It registers the schemes redlock and
// redlocks (with TLS):
//
//	redlock://user:password@h1:6379,h2:6379,h3:6379/0?prefix=lock:&retention=1h
//	redlocks://h1:6379,h2:6379,h3:6379/0?ca=ca.pem&cert=client.pem&key=client.key&server-name=redis.example.com
//	redlock:?node=redis%3A%2F%2Fuser%3Apassword%40h1%3A6379%2F0&node=…&node=…
//
// The first two forms use one user, database and set of certificates for all servers. In the third one each node has a URL
// of its own, percent-encoded, with the scheme redis, rediss or redis+unix and no parameters but those of TLS.
//
// An odd number of servers is needed, three at least, each a master of its own: the same server twice, replicas and nodes
// of a Redis Cluster are refused with ErrConfig, when connecting if they answer, else by the first attempt that they answer.
//
// Parameters:
//
//	prefix       what the locks' keys begin with; default "lock:", and it may be empty
//	retention    how long the counter of a name's tokens is kept before it begins anew; default 1h, at least 1s
//	ca, cert, key, server-name   files and name for TLS; the files are read again for each connection
//
// # What these locks are for
//
// The kind is efficiency. Any minority of the servers may be down, silent, slow or without its data, and locks go on. Two
// holders are possible when the servers' clocks run at different rates or jump, and when a server that has lost its keys
// comes back before the locks that it held have ended. The first holder learns of it at its next renewal, a third of the
// TTL later at the latest, and the second one has the higher token as long as a majority keeps its data.
//
// After a crash of the holder others take over one TTL after its last renewal. They are told of a release at once, and
// look every few seconds besides, since a client that isn't locker tells nobody.
//
// # Entries
//
// On each server the entry is the one of package redis: the string key <prefix><name>, with the value
// <32 hexadecimal digits> <milliseconds since 1970> <owner's label>; beside it {<lock's key>}:t, the last token, and the
// channel {<lock's key>}:free. So these exclude each other with a lock of name N, if they use the same servers:
//
//	redsync      a pool for each server, NewMutex("<prefix>N")
//	by hand      SET <prefix>N <random value> NX PX <ms> on a majority, and a script that compares the value and deletes
//
// # Rights
//
// A user needs, with the default prefix:
//
//	ACL SETUSER app on >password ~lock:* ~{lock:* &{lock:* +eval +evalsha +get +set +del +incr +pexpire +pttl
//	    +time +info +publish +subscribe +unsubscribe +select
//
// info tells servers apart. Without the right to subscribe waiters look every few seconds only; select is needed for
// databases other than 0. Looking at locks needs scan.
package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// DefaultPrefix is what the locks' keys begin with unless something else is set.
const DefaultPrefix = "lock:"

const defaultRetention = time.Hour

// Options are what isn't in the URL.
type Options struct {
	// Prefix is what the locks' keys begin with; nil means DefaultPrefix. It may be empty.
	Prefix *string
	// Retention is how long the counter of a name's tokens is kept before it begins anew with the server's time; 0 means an
	// hour, and it is at least a second.
	Retention time.Duration
	// Credentials returns the user and password to log in with at a server, for each new connection. It is for programs
	// whose password changes, and only for [Dial]: clients that the program brings log in by themselves. The user may be
	// "", the password may not.
	Credentials func(ctx context.Context, addr string) (user, password string, err error)
}

// New returns a Connector that sends all commands through the program's clients, one for each server, and never closes
// them. Clients for a cluster or a ring are refused. nil Options are the defaults.
//
// At most seven eighths of each client's pool of connections are used at a time; a subscription is a connection of its
// own. Set ContextTimeoutEnabled in the clients' options: else a call to a server that is silent occupies a connection
// until the client's own timeouts, though nobody waits for it.
func New(clients []redis.UniversalClient, opts *Options) driver.Connector {
	if opts == nil {
		opts = &Options{}
	}
	c := &connector{layout: layout{DefaultPrefix}, retention: defaultRetention}
	c.set(opts)
	fail := func(format string, args ...any) {
		c.err = fmt.Errorf("%w: redlock: "+format, append([]any{driver.ErrConfig}, args...)...)
	}
	if err := checkCount(len(clients)); err != nil {
		fail("%w", err)
	}
	if opts.Credentials != nil {
		fail("Credentials are the clients' own")
	}
	for i, client := range clients {
		single, ok := client.(*redis.Client)
		switch {
		case client == nil || ok && single == nil:
			fail("client %d of %d is nil", i+1, len(clients))
		case !ok:
			fail("client %d of %d isn't one for a single server", i+1, len(clients))
		default:
			for j, other := range clients[:i] {
				if other == client {
					fail("clients %d and %d are the same", j+1, i+1)
				}
			}
			c.targets = append(c.targets, &target{client: single, addr: single.Options().Addr})
		}
	}
	return c
}

// connector implements driver.Connector.
type connector struct {
	layout                  layout
	retention               time.Duration
	prefixSet, retentionSet bool // by the URL
	targets                 []*target
	err                     error // what is wrong with the arguments of New
}

var _ driver.Connector = (*connector)(nil)

// set takes the options that both constructors know.
func (c *connector) set(opts *Options) {
	if opts.Prefix != nil {
		c.layout.prefix = *opts.Prefix
	}
	if opts.Retention != 0 {
		c.retention = opts.Retention
	}
	if err := errors.Join(c.layout.check(), checkRetention(c.retention)); err != nil {
		c.err = fmt.Errorf("%w: redlock: %w", driver.ErrConfig, err)
	}
}

func checkRetention(d time.Duration) error {
	if d < time.Second {
		return fmt.Errorf("counters are kept for at least 1s, not %v", d)
	}
	return nil
}

func checkCount(n int) error {
	if n < 3 || n%2 == 0 {
		return fmt.Errorf("%d nodes are given, and an odd number is needed, three at least", n)
	}
	return nil
}

// Info describes the backend. The engine's own margin, 1 % of the TTL and 2 ms, is the allowance for clocks that run at
// different rates.
func (c *connector) Info() driver.Info {
	return driver.Info{Backend: "redlock", MinTTL: time.Millisecond, Granularity: time.Millisecond}
}

// layout says what the keys and channels of a name are called: the same as in package redis.
type layout struct{ prefix string }

// check refuses a prefix with which a name's keys could meet another name's.
func (l layout) check() error {
	_, after, open := strings.Cut(l.prefix, "{")
	switch end := strings.IndexByte(after, '}'); {
	case strings.ContainsFunc(l.prefix, unicode.IsControl):
		return errors.New("the prefix has a control character")
	case !open && strings.Contains(l.prefix, "}") || open && end < 1:
		return errors.New("braces in a prefix have to enclose a hash tag")
	}
	return nil
}

// key returns the lock's key. Names have no braces in it, so that it is never another name's companion.
func (l layout) key(name string) string { return l.prefix + driver.EncodeName(name, safe) }

func safe(_ int, r rune) bool { return r != '{' && r != '}' && !unicode.IsControl(r) }

// companion returns a key that stands beside the lock's key.
func (l layout) companion(key, suffix string) string {
	if strings.Contains(l.prefix, "{") {
		return key + "{" + suffix + "}"
	}
	return "{" + key + "}:" + suffix
}

// counter returns the key of a name's last token.
func (l layout) counter(key string) string { return l.companion(key, "t") }

// channel returns the channel that hints at releases of the lock's key.
func (l layout) channel(key string) string { return l.companion(key, "free") }
