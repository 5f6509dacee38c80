package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/leasekit/locker/internal/tlsfiles"
)

// lane is a kind of call. Each has a share of the connections of its own, so that no kind waits until another one is
// served: whatever the number of waiters, holders are renewed and released.
type lane int

const (
	attempts lane = iota // TryLock and all that only looks
	releases             // Release and Undo
	renewals             // Renew
	lanes
)

// ownLanes is how many calls of each lane are under way at most to one node, over connections of our own.
var ownLanes = [lanes]int{attempts: 24, releases: 16, renewals: 8}

// spare is how many connections the pool has beyond the lanes, for those that are being closed.
const spare = 8

// node is one of the servers.
type node struct {
	index  int
	name   string // its address, for messages
	client *redis.Client
	pool   *pool                // of our own connections; nil if the client is the program's
	turns  [lanes]chan struct{} // a slot is taken by each call under way

	pending atomic.Int64 // calls under way
	spoke   atomic.Int64 // when it answered last, in ns since the program began

	mu       sync.Mutex
	identity string // the server's run_id; "" until it is known to be fit
}

// newNode makes a node. patience bounds connecting, and age is for how long connections are kept that nobody uses.
func newNode(index int, t *target, patience, age time.Duration) (*node, error) {
	n := &node{index: index, name: t.addr, client: t.client}
	sizes := ownLanes
	if t.client != nil {
		size := t.client.Options().PoolSize
		sizes = [lanes]int{attempts: max(size/2, 1), releases: max(size/4, 1), renewals: max(size/8, 1)}
	}
	for l := range lanes {
		n.turns[l] = make(chan struct{}, sizes[l])
	}
	if t.client == nil {
		var secure *tls.Config
		if t.tls != nil {
			var err error
			if secure, err = t.tls.Config(); err != nil {
				return nil, err
			}
		}
		n.pool = &pool{dialer: dialer{secure, patience}, age: age, conns: make(map[*pooled]struct{})}
		n.client = redis.NewClient(t.options(n.pool))
	}
	return n, nil
}

// options returns the options of a client of our own.
func (t *target) options(p *pool) *redis.Options {
	return &redis.Options{
		Network:                    t.network,
		Addr:                       t.addr,
		DB:                         t.db,
		CredentialsProviderContext: t.credentials,
		Protocol:                   2,
		Dialer:                     p.dial,
		DialTimeout:                p.dialer.patience,
		DialerRetries:              1,
		MaxRetries:                 -1,
		PoolSize:                   ownLanes[attempts] + ownLanes[releases] + ownLanes[renewals] + spare,
		PoolTimeout:                p.dialer.patience,
		PipelinePoolSize:           -1,
		ConnMaxIdleTime:            p.age * 3 / 4,
		ContextTimeoutEnabled:      true,
		DisableIdentity:            true,
		MaintNotificationsConfig:   &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// dialer connects our own clients.
type dialer struct {
	secure   *tls.Config // nil: no TLS
	patience time.Duration
}

// dial connects. It never fails: when it can't connect, the first use of the connection does. The client library would
// write a failure of dialling to the program's standard error, and dial no more for a second after some of them.
func (d dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	// It is noticed within a minute that a silent peer has gone.
	plain := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}}
	conn, err := plain.DialContext(ctx, network, addr)
	if err != nil {
		return failed{err: err}, nil
	}
	if d.secure == nil {
		return conn, nil
	}
	host, _, _ := net.SplitHostPort(addr)
	secured := tls.Client(conn, tlsfiles.ForHost(d.secure, host))
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return failed{err: &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: err}}, nil
	}
	return secured, nil
}

// failed is a connection that could not be made.
type failed struct {
	net.Conn
	err error // a *net.OpError
}

func (f failed) Read([]byte) (int, error)       { return 0, f.err }
func (f failed) Write([]byte) (int, error)      { return 0, f.err }
func (failed) Close() error                     { return nil }
func (failed) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (failed) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (failed) SetDeadline(time.Time) error      { return nil }
func (failed) SetReadDeadline(time.Time) error  { return nil }
func (failed) SetWriteDeadline(time.Time) error { return nil }

// turn waits for a free slot in a lane, and returns a function that gives it back. It doesn't wait when all slots are
// taken by calls to a node that is silent: such calls must not pile up.
func (n *node) turn(ctx context.Context, l lane) (func(), error) {
	free := func() {
		n.pending.Add(-1)
		<-n.turns[l]
	}
	taken := func() (func(), error) {
		if n.pending.Add(1) == 1 {
			n.answered() // silence begins with the first request at the earliest
		}
		return free, nil
	}
	select {
	case n.turns[l] <- struct{}{}:
		return taken()
	default:
	}
	if time.Duration(time.Since(began).Nanoseconds()-n.spoke.Load()) > silence {
		return nil, notSent{errSilent}
	}
	select {
	case n.turns[l] <- struct{}{}:
		return taken()
	case <-ctx.Done():
		return nil, notSent{ctx.Err()}
	}
}

// answered notes that the node has said something.
func (n *node) answered() { n.spoke.Store(time.Since(began).Nanoseconds()) }

// silence is how long a node says nothing, with all that it is asked, until it counts as silent.
const silence = time.Second / 2

var (
	began     = time.Now() // so that times are monotonic
	errSilent = errors.New("it is silent, and enough requests wait for it")
)

// notSent is the error of a request that never left.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// subscription returns an unconnected subscription, and a function that ends it. One over a connection of our own connects
// once only: the library would connect anew by itself, and hold a lock meanwhile.
func (n *node) subscription(ctx context.Context) (*redis.PubSub, func()) {
	if n.pool == nil {
		p := n.client.Subscribe(ctx)
		return p, func() { go p.Close() }
	}
	o := *n.client.Options()
	var conn atomic.Pointer[net.Conn]
	var dials atomic.Int32
	var over atomic.Bool
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return failed{err: errBroken}, nil
		}
		c, err := n.pool.dialer.dial(ctx, network, addr)
		conn.Store(&c)
		if over.Load() {
			c.Close()
		}
		return c, err
	}
	client := redis.NewClient(&o)
	return client.Subscribe(ctx), func() {
		over.Store(true)
		if c := conn.Load(); c != nil {
			(*c).Close() // whatever the library is about to do on it fails at once
		}
		go client.Close()
	}
}

var errBroken = errors.New("the subscription broke")

// cut ends the calls under way over connections of our own.
func (n *node) cut() {
	if n.pool != nil {
		n.pool.cut()
	}
}

func (n *node) close() {
	if n.pool != nil {
		n.client.Close()
	}
}
