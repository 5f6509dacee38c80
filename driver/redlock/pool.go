package redlock

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// pool knows the connections of a node that the client library keeps in its own pool. That one never closes those that
// were needed once by many calls at a time; this one does, when they haven't been used for a while.
type pool struct {
	dialer dialer
	age    time.Duration // without use, until a connection is closed

	mu     sync.Mutex
	closed bool
	conns  map[*pooled]struct{}
	timer  *time.Timer // runs while there is more than one
}

// pooled is a connection in the pool.
type pooled struct {
	net.Conn
	pool *pool
	used atomic.Int64 // in ns since the program began
}

// dial makes a connection for the client library.
func (p *pool) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := p.dialer.dial(ctx, network, addr)
	if _, ok := conn.(failed); ok || err != nil {
		return conn, err
	}
	c := &pooled{Conn: conn, pool: p}
	c.use()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
	}
	p.conns[c] = struct{}{}
	if p.timer == nil && len(p.conns) > 1 && !p.closed {
		p.timer = time.AfterFunc(p.age, p.trim)
	}
	if raw, ok := conn.(syscall.Conn); ok {
		return checked{c, raw}, nil
	}
	return c, nil
}

func (c *pooled) use() { c.used.Store(time.Since(began).Nanoseconds()) }

func (c *pooled) Write(b []byte) (int, error) {
	c.use()
	return c.Conn.Write(b)
}

func (c *pooled) Close() error {
	c.pool.mu.Lock()
	delete(c.pool.conns, c)
	c.pool.mu.Unlock()
	return c.Conn.Close()
}

// checked lets the client library see whether the server has hung up, before it uses a connection again.
type checked struct {
	*pooled
	raw syscall.Conn
}

func (c checked) SyscallConn() (syscall.RawConn, error) { return c.raw.SyscallConn() }

// trim closes connections that nobody has used for a while, but for one. The library finds them closed.
func (p *pool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if len(p.conns) > 1 && time.Since(began)-time.Duration(c.used.Load()) >= p.age {
			delete(p.conns, c)
			c.Conn.Close()
		}
	}
	p.timer = nil
	if len(p.conns) > 1 && !p.closed {
		p.timer = time.AfterFunc(p.age, p.trim)
	}
}

// cut closes all connections, so that calls under way return.
func (p *pool) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	for c := range p.conns {
		c.Conn.Close()
	}
}
