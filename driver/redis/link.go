package redis

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// link is one connection, behind a client of the client library, which does the handshake and the encoding. It is thrown
// away when anything goes wrong.
type link struct {
	client *redis.Client
	target *target
	once   bool // it connects once only
	used   int  // when it was given back, in ticks; guarded by the mutex of links

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
	o.Dialer = l.handOver
	// With room for one connection alone, the library would go on dialling in the background after a failure.
	o.PoolSize, o.PipelinePoolSize, o.DialerRetries = 2, -1, 1
	l.client = redis.NewClient(o)
	return l
}

// options returns what all connections of our own have in common.
func (t *target) options() *redis.Options {
	o := &redis.Options{
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
	if t.primary != nil {
		o.Addr = "primary" // which dial finds
		o.OnConnect = t.primary.verify
	}
	return o
}

// connect connects a new link. The library would do it as well, and write to the program's standard error if it fails.
func (l *link) connect(ctx context.Context) error {
	l.mu.Lock()
	connected := l.conn != nil
	l.mu.Unlock()
	if connected {
		return nil
	}
	conn, err := l.dial(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.next = quiet{conn}
	l.mu.Unlock()
	return nil
}

// quiet ignores deadlines, which the library sets several times for each command: the end of a call's context cuts the
// link. It also hides what the library needs to look for a hang-up before each command.
type quiet struct{ net.Conn }

func (quiet) SetDeadline(time.Time) error      { return nil }
func (quiet) SetReadDeadline(time.Time) error  { return nil }
func (quiet) SetWriteDeadline(time.Time) error { return nil }

// handOver gives the library the connection that is made already. It asks for another one when it has closed the first:
// it does so after READONLY, which may come from a server that isn't the primary any more.
func (l *link) handOver(ctx context.Context, _, _ string) (net.Conn, error) {
	l.mu.Lock()
	conn, connected := l.next, l.conn != nil
	l.next = nil
	l.mu.Unlock()
	switch {
	case conn != nil:
		return conn, nil
	case l.once && connected:
		return nil, errBroken
	}
	conn, err := l.dial(ctx)
	if err != nil || l.once {
		return conn, err
	}
	return quiet{conn}, nil
}

// dial connects, until the link is cut. An address that Sentinel gave some time ago may lead nowhere by now; then it is
// asked again.
func (l *link) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.dead, cancel)()
	p := l.target.primary
	if p == nil {
		conn, err := l.dialAddr(ctx, l.target.addr)
		if err != nil && l.target.failed != nil {
			l.target.failed()
		}
		return conn, err
	}
	addr := ""
	for {
		found, err := p.find(ctx)
		switch {
		case driver.IsAnswer(err):
			return nil, err
		case err != nil:
			return nil, &net.OpError{Op: "dial", Net: l.target.network, Err: err}
		}
		conn, err := l.dialAddr(ctx, found)
		if err == nil {
			p.joined(l, found)
			if l.dead.Err() != nil {
				p.left(l)
			}
			return conn, nil
		}
		p.suspect()
		if found == addr || ctx.Err() != nil {
			return nil, err
		}
		addr = found
	}
}

// dialAddr connects to an address.
func (l *link) dialAddr(ctx context.Context, addr string) (net.Conn, error) {
	dial := l.target.dial
	if dial == nil {
		dial = dialer.DialContext
	}
	conn, err := dial(ctx, l.target.network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.conn = conn
	l.mu.Unlock()
	if l.dead.Err() != nil {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: l.target.network, Err: l.dead.Err()}
	}
	if l.target.tls == nil {
		return conn, nil
	}
	host, _, _ := net.SplitHostPort(addr)
	secured := tls.Client(conn, tlsfiles.ForHost(l.target.tls, host))
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: l.target.network, Addr: conn.RemoteAddr(), Err: err}
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
	if p := l.target.primary; p != nil {
		p.left(l)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
	}
}

// discard closes a link that nobody uses.
func (l *link) discard() {
	l.cut()
	l.client.Close()
}

// alive reports whether the server has not hung up.
func (l *link) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && connected(l.conn)
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
