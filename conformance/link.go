package conformance

import (
	"bytes"
	"errors"
	"time"

	"github.com/leasekit/locker/conformance/proxy"
)

// link is the way from one Locker to the backend, with the faults of package proxy. Rules about a request count those
// that mention a name of the case.
type link interface {
	Cut()
	Refuse()
	BlackHole(...proxy.Direction)
	Delay(func() time.Duration, ...proxy.Direction)
	// DropReply lets the n-th request through, counting from 1, and its reply get lost.
	DropReply(n int) (dropped func() bool)
	// Hold keeps the n-th request until release is called, and lets it arrive then.
	Hold(n int) (held func() bool, release func())
	Heal() error
	Conns() int    // open connections
	Requests() int // sent so far
	Close()
}

// proxies is the link to a backend with servers: a proxy in front of each. A fault is the same at all of them.
type proxies struct {
	all      []*proxy.Proxy
	counters []*proxy.Counter
	tag      string
}

func newProxies(addrs []string, tag string) (*proxies, error) {
	l := &proxies{tag: tag}
	for _, addr := range addrs {
		p, err := proxy.New(addr)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.all = append(l.all, p)
		l.counters = append(l.counters, p.Count(nil))
	}
	return l, nil
}

func (l *proxies) addrs() []string {
	var addrs []string
	for _, p := range l.all {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

func (l *proxies) mentions(b []byte) bool { return bytes.Contains(b, []byte(l.tag)) }

func (l *proxies) Cut() {
	for _, p := range l.all {
		p.Cut()
	}
}

func (l *proxies) Refuse() {
	for _, p := range l.all {
		p.Refuse()
	}
}

func (l *proxies) BlackHole(ds ...proxy.Direction) {
	for _, p := range l.all {
		p.BlackHole(ds...)
	}
}

func (l *proxies) Delay(f func() time.Duration, ds ...proxy.Direction) {
	for _, p := range l.all {
		p.Delay(f, ds...)
	}
}

func (l *proxies) DropReply(n int) func() bool {
	var all []<-chan struct{}
	for _, p := range l.all {
		all = append(all, p.DropReply(n, l.mentions, proxy.ThenCut))
	}
	return anyClosed(all...)
}

func (l *proxies) Hold(n int) (func() bool, func()) {
	var all []<-chan struct{}
	var releases []func()
	for _, p := range l.all {
		held, release := p.Hold(n, l.mentions)
		all, releases = append(all, held), append(releases, release)
	}
	return anyClosed(all...), func() {
		for _, release := range releases {
			release()
		}
	}
}

// anyClosed returns a function that reports whether one of the channels is closed.
func anyClosed(all ...<-chan struct{}) func() bool {
	return func() bool {
		for _, c := range all {
			select {
			case <-c:
				return true
			default:
			}
		}
		return false
	}
}

func (l *proxies) Heal() error {
	var errs []error
	for _, p := range l.all {
		errs = append(errs, p.Heal())
	}
	return errors.Join(errs...)
}

func (l *proxies) Conns() (n int) {
	for _, p := range l.all {
		n += p.Conns()
	}
	return n
}

func (l *proxies) Requests() (n int) {
	for _, c := range l.counters {
		n += c.N()
	}
	return n
}

func (l *proxies) Close() {
	for _, p := range l.all {
		p.Close()
	}
}

var _ link = (*proxies)(nil)
