package redis

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/leasekit/locker/internal/tlsfiles"
)

// links are connections of our own. A link serves one call at a time, on the caller's goroutine: handing calls to
// another goroutine, only to be able to leave them behind when their context ends, costs more than the rest of the
// client. Instead the connection is closed under the call.
type links struct {
	target *target

	mu     sync.Mutex
	closed bool
	free   []*link
	all    map[*link]struct{}
	timer  *time.Timer // runs watch while calls are under way
	armed  bool
}

// patience is how long a call may last before its context is watched. Watching costs a timer and a few allocations, and
// most calls have returned long before.
const patience = 10 * time.Millisecond

func newLinks(t *target) *links {
	ls := &links{target: t, all: make(map[*link]struct{})}
	ls.timer = time.AfterFunc(time.Hour, ls.watch)
	ls.timer.Stop()
	return ls
}

// take returns an unused link, which connects when it is used first.
func (ls *links) take() *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.armed && !ls.closed {
		ls.armed = true
		ls.timer.Reset(patience)
	}
	if n := len(ls.free); n > 0 {
		l := ls.free[n-1]
		ls.free = ls.free[:n-1]
		return l
	}
	l := newLink(ls.target)
	ls.all[l] = struct{}{}
	if ls.closed {
		l.cut()
	}
	return l
}

// put gives a link back. One that isn't good is closed: whether the connection still works is for the next one to find
// out with a new one.
func (ls *links) put(l *link, good bool) {
	ls.mu.Lock()
	good = good && !ls.closed
	if good {
		ls.free = append(ls.free, l)
	} else {
		delete(ls.all, l)
	}
	ls.mu.Unlock()
	if !good {
		l.cut()
		l.client.Close()
	}
}

// watch begins to watch the contexts of calls that last, and comes again as long as there are any calls.
func (ls *links) watch() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	busy := len(ls.all) > len(ls.free)
	if ls.armed = busy && !ls.closed; !ls.armed {
		return
	}
	for l := range ls.all {
		l.watch()
	}
	ls.timer.Reset(patience)
}

func (ls *links) close() {
	ls.mu.Lock()
	ls.closed = true
	ls.timer.Stop()
	free, all := ls.free, ls.all
	ls.free, ls.all = nil, make(map[*link]struct{})
	ls.mu.Unlock()
	for l := range all {
		l.cut() // calls under way return, and put closes what they used
	}
	for _, l := range free {
		l.client.Close()
	}
}

// link is one connection, behind a client of the client library which does the handshake and the encoding. It connects
// again by itself only if the server had closed the connection while it wasn't used.
type link struct {
	client *redis.Client
	target *target
	once   bool // it connects once only

	mu   sync.Mutex
	conn net.Conn // below TLS
	next net.Conn // is connected, and waits for the library to ask for it
	dead context.Context
	kill context.CancelFunc

	call  context.Context // of the call under way; nil if there is none
	turns int             // how often watch has met this call
	stop  func() bool     // ends the watching of the call's context
}

func newLink(t *target) *link {
	l := &link{target: t}
	l.dead, l.kill = context.WithCancel(context.Background())
	o := t.options()
	o.Dialer = l.dialed
	// With room for one connection alone, the library would go on dialling in the background after a failure.
	o.PoolSize, o.PipelinePoolSize, o.DialerRetries = 2, -1, 1
	l.client = redis.NewClient(o)
	return l
}

// options returns what all connections of our own have in common.
func (t *target) options() *redis.Options {
	return &redis.Options{
		Network:                    t.network,
		Addr:                       t.addr,
		DB:                         t.db,
		CredentialsProviderContext: t.credentials,
		Protocol:                   2,
		MaxRetries:                 -1,
		ContextTimeoutEnabled:      true,
		DisableIdentity:            true,
		MaintNotificationsConfig:   &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// connect connects a new link. The library would do it as well, and write to the program's standard error if it fails.
func (l *link) connect(ctx context.Context) error {
	l.mu.Lock()
	fresh := l.conn == nil
	l.mu.Unlock()
	if !fresh {
		return nil
	}
	conn, err := l.dial(ctx, l.target.network, l.target.addr)
	l.mu.Lock()
	l.next = conn
	l.mu.Unlock()
	return err
}

// dialed hands a connection to the library.
func (l *link) dialed(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	conn := l.next
	l.next = nil
	l.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return l.dial(ctx, network, addr)
}

// dial connects, until the link is cut.
func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	again := l.conn != nil
	l.mu.Unlock()
	if l.once && again {
		return nil, errBroken
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.dead, cancel)()
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.conn = conn
	l.mu.Unlock()
	if l.dead.Err() != nil {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: l.dead.Err()}
	}
	if l.target.tls == nil {
		return conn, nil
	}
	host, _, _ := net.SplitHostPort(addr)
	secured := tls.Client(conn, tlsfiles.ForHost(l.target.tls, host))
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: err}
	}
	return secured, nil
}

// dialer notices within a minute that a silent peer has gone.
var dialer = net.Dialer{
	Timeout:         5 * time.Second,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4},
}

// cut closes the connection under whoever uses it. The link is of no use afterwards.
func (l *link) cut() {
	l.kill()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
	}
}

// begin notes that a call is under way.
func (l *link) begin(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.call, l.turns = ctx, 0
}

// end notes that the call has returned, and reports whether the link was cut.
func (l *link) end() (cut bool) {
	l.mu.Lock()
	stop := l.stop
	l.call, l.stop = nil, nil
	l.mu.Unlock()
	return stop != nil && !stop() || l.dead.Err() != nil
}

// watch cuts the link when the context of the call under way ends, if the call isn't new.
func (l *link) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.call == nil || l.stop != nil {
		return
	}
	if l.turns++; l.turns > 1 {
		l.stop = context.AfterFunc(l.call, l.cut)
	}
}

// limit is a context that ends never and only has a deadline, for the timeouts of the client library. Asking a context
// of the engine for its channel would make it start a timer.
type limit struct{ ctx context.Context }

func (l limit) Deadline() (time.Time, bool) { return l.ctx.Deadline() }
func (limit) Done() <-chan struct{}         { return nil }
func (limit) Err() error                    { return nil }
func (limit) Value(any) any                 { return nil }
