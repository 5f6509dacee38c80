// Package redis keeps locks in a Redis or Valkey server, in the primary that Sentinel names, or in a Redis Cluster. It registers
// these schemes, and rediss, rediss+sentinel and rediss+cluster for the same with TLS:
//
//	redis://user:password@host:6379/0?prefix=lock:&retention=1h
//	rediss://host:6379/0?ca=ca.pem&cert=client.pem&key=client.key&server-name=redis.example.com
//	redis+unix://user:password@/run/redis/redis.sock?prefix=lock:
//	redis+sentinel://user:password@sentinel1,sentinel2,sentinel3/master/0?sentinel-user=u&sentinel-password=p
//	redis+cluster://user:password@node1,node2
//
// The path is the number of the database, 0 if it is missing; over a socket and in a cluster it is always 0. Before it stands,
// for Sentinel, the name of the master. A host without a port has 6379, a sentinel 26379. Servers from 6.2 on are
// supported: 7.0 and 8.0 of Redis and 8.1 of Valkey are tested.
//
// Some of the hosts of a list may be away or not resolve. User and password are for the servers that hold locks, and for all
// nodes of a cluster the same; the sentinels have their own, or none. TLS is used to the sentinels as well; where they tell
// addresses whose certificates have names, set server-name.
//
// Parameters:
//
//	prefix       what the locks' keys begin with; default "lock:", and it may be empty
//	sentinel-user, sentinel-password   what to log in to the sentinels with; the user may be missing
//	retention    how long the counter of a name's tokens is kept before it begins anew; default 1h, at least 1s
//	ca, cert, key, server-name   files and name for TLS; the files are read again for each connection
//
// # What these locks are for
//
// The kind is efficiency: two holders are possible when a replica without the key becomes the primary, when the server's
// clock jumps, when keys are evicted, and when the server restarts without its data. The first holder learns of it at its
// next renewal, a third of the TTL later at the latest, and the second one has the higher token.
//
// Behind Sentinel the primary is asked for when a connection is made, after a failure, and every second while there are
// calls; connections to any other server are closed. So a holder that is connected to a primary which was replaced but is still
// there follows within some seconds. In a cluster a name's keys are all in one slot, and names of different nodes don't
// wait for each other. While an operator moves a slot, its names that are held go on to be, and those that are free can't be
// locked until the slot has arrived: Redis answers nobody about two keys that aren't there yet (TRYAGAIN, ErrUnavailable).
//
// After a crash of the holder others take over one TTL after its last renewal. They are told of a release at once, and
// look every few seconds besides, since a client that isn't locker tells nobody.
//
// # Entries
//
// The lock of a name is the string key <prefix><name>; a name's braces, percent signs and control characters are
// percent-encoded. Its value is <32 hexadecimal digits> <milliseconds since 1970> <owner's label>, its TTL the lock's.
// Beside it stands {<lock's key>}:t with the last token, for the time of retention from the first grant on; hints are published to the channel
// {<lock's key>}:free. If the prefix itself has a hash tag, they are called <lock's key>{t} and <lock's key>{free}
// instead, so that the keys of a name are always in one slot. A string under the lock's key that was written by somebody
// else is a holder, with a TTL or without; anything but a string is ErrConflict. Neither is ever changed.
//
// So these exclude each other with a lock of name N:
//
//	by hand      SET <prefix>N <random value> NX PX <ms>, and a script that compares the value and deletes
//	redsync      one pool, NewMutex("<prefix>N")
//	redislock    Obtain(ctx, "<prefix>N", ...)
//
// A token is the name's last token plus one or, if that isn't known any more, the server's time in microseconds. So it
// rises even when the last one is lost by eviction or a restart, unless the server's clock was set back as well, to before
// the counter's beginning.
//
// # Rights
//
// A user needs, with the default prefix:
//
//	ACL SETUSER app on >password ~lock:* ~{lock:* &{lock:* +eval +evalsha +get +set +del +incr +pexpire +pttl
//	    +time +publish +subscribe +unsubscribe +select
//
// All but the last three are tried before anything is locked; if one is missing, connecting or the first attempt fails
// with ErrDenied. Without the right to subscribe waiters look every few seconds only; select is needed for
// databases other than 0. Behind Sentinel +role is needed too, and +sentinel|master by the user that logs in to the
// sentinels; in a cluster +cluster|slots, and +asking for locks whose slot is being moved. Looking at locks needs scan, and the check of a server needs info.
package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// DefaultPrefix is what the locks' keys begin with unless something else is set.
const DefaultPrefix = "lock:"

// defaultRetention is short enough that a thousand new names a second leave four million keys at most.
const defaultRetention = time.Hour

// Options are what isn't in the URL.
type Options struct {
	// Prefix is what the locks' keys begin with; nil means DefaultPrefix. It may be empty.
	Prefix *string
	// Retention is how long the counter of a name's tokens is kept before it begins anew with the server's time; 0 means an
	// hour, and it is at least a second.
	Retention time.Duration
	// Credentials returns the user and password to log in with, for each new connection. It is for programs whose
	// password changes, and only for [Dial]: a client that the program brings logs in by itself. The user may be "", the
	// password may not.
	Credentials func(ctx context.Context) (user, password string, err error)
	// SentinelCredentials are the same for the sentinels, which have their own.
	SentinelCredentials func(ctx context.Context) (user, password string, err error)
}

// New returns a Connector that sends all commands through the program's client and never closes it. It may be any
// client of the library, for a single server, Sentinel or a cluster. nil Options are the defaults.
//
// At most seven eighths of its pool of connections are used at a time, and waiting takes none; a subscription is a
// connection of its own. Its own retries are switched off for each command. A call whose context ends returns at once,
// while the client may go on with it until its timeouts: set ContextTimeoutEnabled in its options. A URL is faster, since
// only over connections of our own such a call needs no second goroutine.
func New(client redis.UniversalClient, opts *Options) driver.Connector {
	if opts == nil {
		opts = &Options{}
	}
	c := &connector{layout: layout{prefix: DefaultPrefix}, retention: defaultRetention, client: client}
	c.set(opts)
	switch {
	case client == nil:
		c.err = fmt.Errorf("%w: redis: no client", driver.ErrConfig)
	case opts.Credentials != nil || opts.SentinelCredentials != nil:
		c.err = fmt.Errorf("%w: redis: Credentials are the client's own", driver.ErrConfig)
	}
	return c
}

// connector implements driver.Connector.
type connector struct {
	layout                  layout
	retention               time.Duration
	prefixSet, retentionSet bool // by the URL

	client redis.UniversalClient // the program's; nil: target says where to connect
	target *target
	tls    *tlsfiles.Files // nil: no TLS
	err    error           // what is wrong with the options of New
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
	err := errors.Join(c.layout.check(), checkRetention(c.retention))
	if err != nil {
		c.err = fmt.Errorf("%w: redis: %w", driver.ErrConfig, err)
	}
}

func checkRetention(d time.Duration) error {
	if d < time.Second {
		return fmt.Errorf("counters are kept for at least 1s, not %v", d)
	}
	return nil
}

// Info describes the backend.
func (c *connector) Info() driver.Info {
	return driver.Info{Backend: "redis", MinTTL: time.Millisecond, Granularity: time.Millisecond}
}

// layout says what the keys and channels of a name are called.
type layout struct{ prefix string }

// check refuses a prefix with which a name's keys could be in different slots of a cluster, or meet another name's.
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

// companion returns a key in the slot of the lock's key, which stands beside it.
func (l layout) companion(key, suffix string) string {
	if strings.Contains(l.prefix, "{") {
		return key + "{" + suffix + "}"
	}
	return "{" + key + "}:" + suffix
}

// channel returns the channel that hints at releases of the lock's key.
func (l layout) channel(key string) string { return l.companion(key, "free") }
