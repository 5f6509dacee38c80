// Package consul keeps locks in the KV store of HashiCorp Consul. Import it for its effect: it registers the schemes
// consul and consuls (with TLS).
//
//	consul://token@host1:8500,host2:8500/prefix?lockdelay=15s
//
// Its locks are of the kind correctness: an entry is granted by a transaction in Consul's log, and the token is the
// index of that log entry, so it only ever rises (restoring a snapshot into a new cluster may set it back).
//
// # Entry
//
// The lock NAME is the key PREFIX/NAME, or NAME where the prefix is empty. It is locked by the session that all locks of
// one Locker share, has the flags of api.Lock (3304740253564472344), and its value is "ID MILLISECONDS OWNER": the
// holder's identity, the holder's wall clock at the attempt, and its label. Releasing deletes the key. In NAME, letters,
// digits, marks, punctuation, symbols and the space stand for themselves; "%", everything that can't be printed, "/" at
// the beginning or after another "/", and path elements that are "." or ".." are percent-encoded. Beside the locks, the
// key PREFIX/%offset holds what is added to tokens, and exists only after a migration from another backend.
//
// A key without a session that has other flags is foreign: ErrConflict, and it stays as it is. A key that a session
// has locked is held, whatever its flags are.
//
// # Native peers
//
// These locks and ours exclude each other:
//
//   - api.Lock with Key "a/b": path /a and name "b", or prefix= (empty) and name "a/b".
//   - consul lock a/b COMMAND locks a/b/.lock: path /a/b and name ".lock". (With -n above 1 it is a semaphore, which has
//     other flags: ErrConflict.)
//   - PUT /v1/kv/KEY?acquire=SESSION by hand, with flags=3304740253564472344, or deleting the key at release.
//
// # Time
//
// The TTL is that of the session, from the server's session_ttl_min (10 s unless it was changed) to 24 h. A lease ends
// after the TTL; Consul ends the session of a holder that crashed up to 2 × TTL after its last renewal, later when the
// leader changes, which starts the time anew, and then refuses the lock for the lock-delay. So the next holder comes at
// most 2 × TTL + lock-delay after a crash. An orderly release has no delay.
//
// The lock-delay protects from what a session's early end leaves open: when an operator destroys the session, or its
// node is deregistered, the holder hears of it by its next renewal, a third of the TTL later. lockdelay=0 gives this up.
//
// # Rights
//
// With ACLs, the token needs session:write on the node of the agent that is asked, key:write on the names' keys, and
// key:read on PREFIX/%offset:
//
//	session_prefix "" { policy = "write" }
//	key_prefix "PREFIX/" { policy = "write" }
//
// # URL
//
// The user is the ACL token. Hosts are agents of one datacenter, client agents or servers; one that fails is left for
// the next. The default port is 8500, with TLS 8501. The path is the prefix.
//
//	prefix=      instead of the path; prefix= (empty) is no prefix; default "locks"
//	lockdelay=   0s to 60s; default 15s, as Consul's own
//	dc=          the datacenter whose KV store is used; default the agent's
//	namespace=   of Consul Enterprise (not tried by the tests)
//	partition=   of Consul Enterprise (not tried by the tests)
//	ca= cert= key= server-name=   with consuls
//
// No environment variable is read.
package consul

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// Options are for New.
type Options struct {
	// Prefix comes before each name, with a "/" in between: "a/b". nil means "locks", and a pointer to "" no prefix.
	Prefix *string
	// LockDelay is how long Consul refuses a lock after its session has ended without a release, up to 60 s. nil means
	// 15 s.
	LockDelay *time.Duration
	// Token returns the ACL token to send with a request. It is called for each request and may return another one each
	// time; it must not block. nil means the client's own.
	Token func() string
	// Datacenter, Namespace and Partition say where sessions and keys are. "" means the agent's. A client that has a
	// namespace or partition of its own must have the same one here.
	Datacenter, Namespace, Partition string
}

const (
	defaultPrefix    = "locks"
	defaultLockDelay = 15 * time.Second // Consul's own
	maxLockDelay     = 60 * time.Second // Consul cuts longer ones, silently
	maxTTL           = 24 * time.Hour
)

// New returns a Connector that uses a client that the program has, and leaves open. Errors in opts are reported by its
// Connect.
//
// Up to 56 requests are under way at a time. A transport that keeps that many idle connections to a host makes the fewest
// new ones.
func New(client *api.Client, opts *Options) driver.Connector {
	o := cmp.Or(opts, &Options{})
	c := &connector{client: client, token: o.Token}
	c.prefix, c.lockDelay = defaultPrefix, defaultLockDelay
	if o.Prefix != nil {
		c.prefix = *o.Prefix
	}
	if o.LockDelay != nil {
		c.lockDelay = *o.LockDelay
	}
	c.dc, c.namespace, c.partition = o.Datacenter, o.Namespace, o.Partition
	return c
}

// settings say where entries are and what they are like.
type settings struct {
	prefix                   string
	lockDelay                time.Duration
	dc, namespace, partition string
}

func (s *settings) check() error {
	if err := checkPrefix(s.prefix); err != nil {
		return fmt.Errorf("%w: consul: %w", driver.ErrConfig, err)
	}
	if s.lockDelay < 0 || s.lockDelay > maxLockDelay {
		return fmt.Errorf("%w: consul: the lock-delay %v isn't between 0 and %v", driver.ErrConfig, s.lockDelay, maxLockDelay)
	}
	return nil
}

// checkPrefix refuses what an HTTP server cleans out of a path, and what has a meaning in entries.
func checkPrefix(p string) error {
	if p == "" {
		return nil
	}
	for _, element := range strings.Split(p, "/") {
		if element == "" || element == "." || element == ".." {
			return fmt.Errorf("the prefix %q has an element that is empty, %q or %q", p, ".", "..")
		}
	}
	if strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("the prefix %q has a character that can't be printed", p)
	}
	return nil
}

// connector makes a client of its own from addrs, or uses the one that it was given.
type connector struct {
	settings
	client *api.Client // nil: to be made
	token  func() string

	addrs  []string
	secure bool
	tls    *tlsfiles.Files
}

func (c *connector) Info() driver.Info {
	return driver.Info{
		Backend:       "consul",
		Correctness:   true,
		MaxTTL:        maxTTL,
		Granularity:   time.Millisecond,
		Poll:          5 * time.Second, // what becomes free is seen by a blocking query; a lock-delay brings its own time
		SharedSession: true,
	}
}

// probe bounds what Connect asks.
const probe = 3 * time.Second

// Connect makes the session, so that a TTL below the server's minimum, missing rights and a wrong scheme are known at
// once if the server answers.
func (c *connector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	conn, err := newConn(c, cfg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, probe)
	defer stop()
	s, err := conn.join(ctx, nil)
	switch {
	case err == nil:
		conn.leave(s)
	case driver.IsPermanent(err):
		conn.Close()
		return nil, err
	default:
		cfg.Logger.DebugContext(ctx, "consul doesn't answer yet", "err", err)
	}
	return conn, nil
}

func init() {
	driver.Register("consul", parse)
	driver.Register("consuls", parse)
}
