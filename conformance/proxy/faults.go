package proxy

import (
	"bufio"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Cut resets all connections. New ones are served.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
}

func (p *Proxy) cutAll() {
	for k := range p.links {
		k.cut()
	}
}

// Refuse refuses new connections, as a host on which no server runs. Existing ones stay; call [Proxy.Cut] afterwards to
// end them.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// BlackHole forwards nothing in the given directions, both if there are none, and still accepts connections, as a
// network does that drops all packets. What was sent meanwhile arrives after [Proxy.Heal], as with TCP; call [Proxy.Cut]
// before Heal to lose it.
func (p *Proxy) BlackHole(directions ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(directions) == 0 {
		directions = []Direction{ToServer, ToClient}
	}
	for _, d := range directions {
		p.hole[d] = true
	}
	p.notify()
}

// Delay delays what is read from now on in the given directions, both if there are none, by what d returns, which is
// asked for each read and may be called from several goroutines. It is latency: what follows isn't delayed the more, and
// the order of a connection's bytes is kept. nil ends it for what is read later.
func (p *Proxy) Delay(d func() time.Duration, directions ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(directions) == 0 {
		directions = []Direction{ToServer, ToClient}
	}
	for _, dir := range directions {
		p.delay[dir] = d
	}
}

// Jitter returns a function for [Proxy.Delay] whose results lie between lo and hi, the same ones for the same seed.
func Jitter(seed uint64, lo, hi time.Duration) func() time.Duration {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, seed))
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return lo + time.Duration(r.Int64N(int64(hi-lo)+1))
	}
}

// Rewrite passes what is read in direction d through f and forwards what it returns. f may be called from several
// goroutines, must not keep its argument, and may return it. nil ends rewriting.
func (p *Proxy) Rewrite(d Direction, f func([]byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrite[d] = f
}

// Split makes f decide where requests end, so that predicates see each one whole and alone: what a call of f advances
// over is a request. Bytes are forwarded when their request is complete. It holds for connections that are accepted
// later; nil goes back to what was read at once.
func (p *Proxy) Split(f bufio.SplitFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.split = f
}

// Heal ends all faults: it listens again, forwards what a black hole has kept, forgets delays, rewriting and rules that
// haven't come to pass, and lets held requests go. Connections and counters stay.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole, p.delay, p.rewrite = [2]bool{}, [2]func() time.Duration{}, [2]func([]byte) []byte{}
	for _, r := range slices.Concat(p.rules, p.held) {
		r.letGo()
	}
	p.rules, p.held = nil, nil
	p.notify()
	if p.listener == nil && !p.closed {
		return p.listen()
	}
	return nil
}

// Then says what becomes of a connection on which a reply was dropped.
type Then int

const (
	ThenCut     Then = iota // it is reset after the server's answer has come in
	ThenSilence             // the client gets nothing from it any more, and it stays open
)

// settle is how long the server has to be quiet after it has sent something before a dropped reply counts as complete:
// the first bytes that come back may belong to an earlier request, or acknowledge one that isn't executed yet.
const settle = 50 * time.Millisecond

// DropReply forwards the n-th request from now on that matches, counting from 1, and swallows what the server sends on
// that connection from then on: the request is executed and its client doesn't learn it. nil matches every request. The
// channel is closed when the answer has come in and was swallowed.
func (p *Proxy) DropReply(n int, match func(request []byte) bool, then Then) (dropped <-chan struct{}) {
	r := &rule{drop: true, then: then}
	p.add(r, n, match)
	return r.done
}

// Hold keeps the n-th request from now on that matches, counting from 1, and all that follows on its connection, until
// release is called or the connection is cut. The channel is closed when the request has come in. release may be called
// more than once.
func (p *Proxy) Hold(n int, match func(request []byte) bool) (held <-chan struct{}, release func()) {
	r := &rule{hold: make(chan struct{})}
	p.add(r, n, match)
	return r.done, r.letGo
}

// A rule waits for the n-th request that matches.
type rule struct {
	match func([]byte) bool
	left  int // how many more have to match
	done  chan struct{}
	drop  bool
	then  Then

	hold    chan struct{} // nil unless the request is to be kept
	release sync.Once
}

func (p *Proxy) add(r *rule, n int, match func([]byte) bool) {
	if n < 1 {
		panic("proxy: requests are counted from 1")
	}
	r.match, r.left, r.done = match, n, make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

func (r *rule) letGo() {
	if r.hold != nil {
		r.release.Do(func() { close(r.hold) })
	}
}

// Counter counts requests.
type Counter struct {
	match func([]byte) bool
	n     atomic.Int64
}

// N returns the number of matching requests since the counter was made.
func (c *Counter) N() int { return int(c.n.Load()) }

// Count counts the requests from now on that match, those that are held back by a fault not before they are let go. nil
// matches every request.
func (p *Proxy) Count(match func(request []byte) bool) *Counter {
	c := &Counter{match: match}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters = append(p.counters, c)
	return c
}
