package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A link is one client's connection and the one to the server that belongs to it.
type link struct {
	proxy  *Proxy
	client *net.TCPConn

	mu     sync.Mutex
	server *net.TCPConn // nil until dialled
	isCut  bool
	muted  *rule // not nil: replies are swallowed
	settle *time.Timer

	dead chan struct{} // closed by cut
}

// cut resets both sides. It may be called again and while p.mu is held.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isCut {
		return
	}
	k.isCut = true
	close(k.dead)
	reset(k.client)
	if k.server != nil {
		reset(k.server)
	}
	if k.settle != nil {
		k.settle.Stop()
	}
}

// run connects to the server and forwards until both directions have ended.
func (k *link) run() {
	p := k.proxy
	defer func() {
		k.cut()
		p.mu.Lock()
		delete(p.links, k)
		p.mu.Unlock()
	}()
	if !k.wait(ToServer) || !k.dial() {
		return
	}
	p.mu.Lock()
	split := p.split
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, way := range []struct {
		d        Direction
		from, to *net.TCPConn
		split    bufio.SplitFunc
	}{{ToServer, k.client, k.server, split}, {ToClient, k.server, k.client, nil}} {
		chunks := make(chan chunk, 64)
		all.Go(func() { k.read(way.d, way.from, chunks) })
		all.Go(func() { k.pump(way.d, way.to, chunks, way.split) })
	}
	all.Wait()
}

// chunk is what one read has returned.
type chunk struct {
	b   []byte
	due time.Time // when it may be forwarded; zero: now
	err error     // of the read, after b
}

// read reads one direction. It goes on while what was read before is delayed: a delay is latency, and doesn't add up.
func (k *link) read(d Direction, from *net.TCPConn, chunks chan<- chunk) {
	defer close(chunks)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		c := chunk{b: bytes.Clone(buf[:n]), err: err}
		k.proxy.mu.Lock()
		delay := k.proxy.delay[d]
		k.proxy.mu.Unlock()
		if delay != nil {
			c.due = time.Now().Add(delay())
		}
		select {
		case chunks <- c:
		case <-k.dead:
			return
		}
		if err != nil {
			return
		}
	}
}

func (k *link) dial() bool {
	k.proxy.mu.Lock()
	target := k.proxy.target
	k.proxy.mu.Unlock()
	c, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isCut {
		reset(c)
		return false
	}
	k.server = c.(*net.TCPConn)
	return true
}

// wait returns true once no black hole is in the way, and false if the link was cut.
func (k *link) wait(d Direction) bool {
	for {
		k.proxy.mu.Lock()
		hole, changed := k.proxy.hole[d], k.proxy.changed
		k.proxy.mu.Unlock()
		if !hole {
			select {
			case <-k.dead:
				return false
			default:
				return true
			}
		}
		select {
		case <-changed:
		case <-k.dead:
			return false
		}
	}
}

// pump forwards one direction. An orderly end is passed on as such; every other one cuts the link.
func (k *link) pump(d Direction, to *net.TCPConn, chunks <-chan chunk, split bufio.SplitFunc) {
	var pending []byte // of a request that isn't complete
	for c := range chunks {
		if !c.due.IsZero() && !k.sleep(time.Until(c.due)) {
			return
		}
		chunk, err := c.b, c.err
		if split != nil {
			pending = append(pending, chunk...)
			for len(pending) > 0 {
				advance, _, splitErr := split(pending, err != nil)
				if splitErr != nil || advance < 0 || advance > len(pending) {
					k.cut()
					return
				}
				if advance == 0 {
					break
				}
				if !k.forward(d, to, pending[:advance]) {
					k.cut()
					return
				}
				pending = pending[advance:]
			}
			chunk = nil
			if err != nil {
				chunk = pending // half a request, and the client has gone
			}
		}
		if len(chunk) > 0 && !k.forward(d, to, chunk) {
			k.cut()
			return
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if !k.wait(d) || to.CloseWrite() != nil {
				k.cut()
			}
			return
		default:
			k.cut()
			return
		}
	}
}

// forward passes bytes on, through whatever faults are set. It returns false if the link is to be cut.
func (k *link) forward(d Direction, to *net.TCPConn, b []byte) bool {
	if !k.wait(d) {
		return false
	}
	p := k.proxy
	p.mu.Lock()
	rewrite := p.rewrite[d]
	p.mu.Unlock()
	if d == ToServer {
		if !k.request(b) {
			return false
		}
	} else if k.swallow() {
		return true
	}
	if rewrite != nil {
		b = rewrite(b)
	}
	// A hole may have opened while the bytes were delayed or held.
	if !k.wait(d) {
		return false
	}
	_, err := to.Write(b)
	return err == nil
}

func (k *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-k.dead:
		return false
	}
}

// request applies rules and counters to a request that is about to be forwarded.
func (k *link) request(b []byte) bool {
	p := k.proxy
	p.mu.Lock()
	var fired []*rule
	rest := p.rules[:0:0]
	for _, r := range p.rules {
		if r.match == nil || r.match(b) {
			r.left--
		}
		switch {
		case r.left > 0:
			rest = append(rest, r)
		default:
			fired = append(fired, r)
			if r.hold != nil {
				p.held = append(p.held, r)
			}
		}
	}
	p.rules = rest
	p.mu.Unlock()

	for _, r := range fired {
		if r.drop {
			k.mu.Lock()
			k.muted = r
			k.mu.Unlock()
			continue
		}
		close(r.done)
		select {
		case <-r.hold:
		case <-k.dead:
			return false
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.counters {
		if c.match == nil || c.match(b) {
			c.n.Add(1)
		}
	}
	return true
}

// swallow reports whether a reply is to be dropped, and sees to what follows.
func (k *link) swallow() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.muted
	if r == nil {
		return false
	}
	if k.settle != nil {
		k.settle.Reset(settle)
		return true
	}
	k.settle = time.AfterFunc(settle, func() {
		select {
		case <-r.done:
			return // silence goes on
		default:
		}
		if r.then == ThenCut {
			k.cut()
		}
		close(r.done)
	})
	return true
}
