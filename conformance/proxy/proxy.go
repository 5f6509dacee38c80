// Package proxy is a TCP proxy that breaks a connection in the ways in which networks and servers break it.
//
// A [Proxy] stands in front of one server. As long as nothing else was asked of it, it forwards. Its faults are exact
// and repeat: no packet is dropped by chance, and what depends on a request is chosen by a predicate on its bytes and by
// its number. All methods may be called at any time from any goroutine; a fault that was set holds for connections that
// exist and for those to come, until [Proxy.Heal].
//
// The proxy knows no protocol. A request is what one read from the client's connection has returned, which is one
// request for clients that write a request at once and wait for its answer; [Proxy.Split] gives exact limits where a
// client pipelines.
package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is the direction in which bytes flow.
type Direction int

const (
	ToServer Direction = iota // requests
	ToClient                  // replies
)

// String returns "to server" or "to client".
func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// dialTimeout bounds the proxy's own dial to the server. A server that takes no connections for so long is treated like
// one that refuses them.
const dialTimeout = 10 * time.Second

// Proxy forwards TCP connections to one server.
type Proxy struct {
	addr    string
	release func() // gives up the port

	mu       sync.Mutex
	target   string
	listener net.Listener // nil while refusing
	closed   bool
	changed  chan struct{} // closed and replaced when a fault is set or healed
	hole     [2]bool       // by Direction
	delay    [2]func() time.Duration
	rewrite  [2]func([]byte) []byte
	split    bufio.SplitFunc
	rules    []*rule
	held     []*rule // that keep a request now
	counters []*Counter
	links    map[*link]struct{}
	accepted int

	wg sync.WaitGroup // the accept loop and the links' goroutines
}

// New starts a proxy to the server at target ("host:port") on a free port of 127.0.0.1. It doesn't dial the target
// before a client connects.
func New(target string) (*Proxy, error) {
	addr, release, err := reserve()
	if err != nil {
		return nil, fmt.Errorf("proxy: no port: %w", err)
	}
	p := &Proxy{
		addr:    addr,
		release: release,
		target:  target,
		changed: make(chan struct{}),
		links:   make(map[*link]struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.listen(); err != nil {
		release()
		return nil, err
	}
	return p, nil
}

// Addr returns the address to connect to, "127.0.0.1:port". It stays the same for the proxy's life.
func (p *Proxy) Addr() string { return p.addr }

// SetTarget changes the server to which new connections go, as a failover behind one address does. Existing connections
// stay; call [Proxy.Cut] to move them.
func (p *Proxy) SetTarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Conns returns the number of connections that are open now. One that the client has closed counts until the server
// has closed its side too, and until a black hole lets the end through.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Accepted returns the number of connections accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Close cuts all connections, gives up the port and returns once all goroutines of the proxy have ended.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	p.cutAll()
	p.notify()
	p.mu.Unlock()
	p.wg.Wait()
	p.release()
	return nil
}

// notify wakes the links that wait for a fault to be healed. p.mu is held.
func (p *Proxy) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// listen starts to accept connections. p.mu is held.
func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	p.listener = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return // by Refuse or Close
		}
		if err != nil { // such as too many open files: what the client sees is a server that is slow to accept
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.mu.Lock()
		if p.closed || p.listener != l {
			p.mu.Unlock()
			reset(c)
			continue
		}
		p.accepted++
		k := &link{proxy: p, client: c.(*net.TCPConn), dead: make(chan struct{})}
		p.links[k] = struct{}{}
		p.wg.Go(k.run)
		p.mu.Unlock()
	}
}

// reset closes a connection so that the other side sees a reset and no orderly end.
func reset(c net.Conn) {
	if c, ok := c.(*net.TCPConn); ok {
		c.SetLinger(0)
	}
	c.Close()
}
