package etcd

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
	"github.com/leasekit/locker/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// testTTL is the TTL of tests that wait for its end. The test servers grant one second and more.
const testTTL = 2 * time.Second

// patience is the upper bound of what happens soon: the machine may be busy.
const patience = 20 * time.Second

// connect opens a URL at the driver's own level. Keys get a prefix of their own.
func connect(t testing.TB, rawURL string, ttl time.Duration) *conn {
	t.Helper()
	c, err := tryConnect(t, rawURL, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryConnect(t testing.TB, rawURL string, ttl time.Duration) (*conn, error) {
	t.Helper()
	cn, err := driver.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	opened, err := cn.Connect(t.Context(), driver.Config{TTL: ttl, Owner: "test", Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	if err != nil {
		return nil, err
	}
	c := opened.(*conn)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, nil
}

// unique returns a prefix that no other test uses.
func unique() string { return "/test-" + newID()[:12] }

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func request(name string) driver.Request {
	return driver.Request{Name: name, ID: newID(), Owner: "test"}
}

// admin is a client of its own, independent of the driver.
func admin(t testing.TB, s *testserver.Server) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop(), DialTimeout: patience}
	if s.TLS != nil {
		config, err := s.TLS.Config()
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLS = config
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// within is a context for what has to be done soon.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), d)
	t.Cleanup(stop)
	return ctx
}

func tryLock(t testing.TB, c *conn, req driver.Request) *hold {
	t.Helper()
	h, err := c.TryLock(within(t, patience), req)
	if err != nil {
		t.Fatalf("TryLock(%q): %v", req.Name, err)
	}
	return h.(*hold)
}

func wantHeld(t testing.TB, c *conn, req driver.Request) {
	t.Helper()
	if h, err := c.TryLock(within(t, patience), req); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("TryLock(%q) = %v, %v; want ErrHeld", req.Name, h, err)
	}
}

func release(t testing.TB, h driver.Hold) {
	t.Helper()
	if err := h.Release(within(t, patience)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// renewOnce renews one hold.
func renewOnce(t testing.TB, c *conn, h driver.Hold) driver.Renewal {
	t.Helper()
	var got driver.Renewal
	n := 0
	c.Renew(within(t, patience), []driver.Hold{h}, func(_ int, r driver.Renewal) { got = r; n++ })
	if n != 1 {
		t.Fatalf("Renew reported %d times", n)
	}
	return got
}

// keys lists what begins with prefix.
func keys(t testing.TB, a *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := a.Get(within(t, patience), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, kv := range resp.Kvs {
		list = append(list, string(kv.Key))
	}
	return list
}

// eventually polls until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// proxy is a TCP proxy in front of one server. It counts gRPC calls and can hold back what flows in either direction.
type proxy struct {
	Addr   string
	calls  atomic.Int64 // HEADERS frames of clients: one for each call
	up     valve        // towards the server
	down   valve        // towards the client
	target string

	mu    sync.Mutex
	conns []net.Conn
}

// valve holds bytes back while it is closed.
type valve struct {
	mu   sync.Mutex
	gate chan struct{} // nil while open
}

func (v *valve) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gate == nil {
		v.gate = make(chan struct{})
	}
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gate != nil {
		close(v.gate)
		v.gate = nil
	}
}

func (v *valve) wait() {
	v.mu.Lock()
	gate := v.gate
	v.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newProxyOn(t, l, target)
}

func newProxyOn(t testing.TB, l net.Listener, target string) *proxy {
	p := &proxy{Addr: l.Addr().String(), target: target}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", p.target)
			if err != nil {
				client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			all.Go(func() { p.requests(client, server) })
			all.Go(func() { p.replies(server, client) })
		}
	})
	t.Cleanup(func() { l.Close(); p.up.open(); p.down.open(); p.cut(); all.Wait() })
	return p
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// requests forwards HTTP/2 frames one by one.
func (p *proxy) requests(from, to net.Conn) {
	defer to.Close()
	r := bufio.NewReader(from)
	preface := make([]byte, 24)
	if _, err := io.ReadFull(r, preface); err != nil {
		return
	}
	to.Write(preface)
	for {
		var head [9]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		frame := make([]byte, 9+int(binary.BigEndian.Uint32(append([]byte{0}, head[:3]...))))
		copy(frame, head[:])
		if _, err := io.ReadFull(r, frame[9:]); err != nil {
			return
		}
		if head[3] == 1 {
			p.calls.Add(1)
		}
		p.up.wait()
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

func (p *proxy) replies(from, to net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p.down.wait()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func url(s *testserver.Server, prefix string) string {
	return s.URL("etcd") + prefix
}
