package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
	"github.com/leasekit/locker/internal/testserver"
)

// soon is the bound of an answer about what somebody has to change.
const soon = 3 * time.Second

// wantAnswer opens a URL and takes a lock, and wants one of the two to fail soon.
func wantAnswer(t *testing.T, rawURL string, want error, names string) {
	t.Helper()
	start := time.Now()
	c, err := tryConnect(t, rawURL, 10*time.Second)
	if err == nil {
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		_, err = c.TryLock(ctx, request("x"))
	}
	if !errors.Is(err, want) || !strings.Contains(err.Error(), names) {
		t.Errorf("%v; want %v that says %q", err, want, names)
	}
	if d := time.Since(start); d > soon {
		t.Errorf("it took %v", d)
	}
	if err != nil && strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error holds the password: %v", err)
	}
}

// auth turns authentication on: root, and a user named locker with the right readwrite on /allowed/.
func auth(t *testing.T, s *testserver.Server) {
	t.Helper()
	a := admin(t, s)
	for _, do := range []func(ctx context.Context) error{
		func(ctx context.Context) error { _, err := a.RoleAdd(ctx, "root"); return err },
		func(ctx context.Context) error { _, err := a.UserAdd(ctx, "root", "r00t"); return err },
		func(ctx context.Context) error { _, err := a.UserGrantRole(ctx, "root", "root"); return err },
		func(ctx context.Context) error { _, err := a.RoleAdd(ctx, "locks"); return err },
		func(ctx context.Context) error {
			_, err := a.RoleGrantPermission(ctx, "locks", "/allowed/", clientv3.GetPrefixRangeEnd("/allowed/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func(ctx context.Context) error {
			_, err := a.RoleGrantPermission(ctx, "locks", "/readonly/", clientv3.GetPrefixRangeEnd("/readonly/"), clientv3.PermissionType(clientv3.PermRead))
			return err
		},
		func(ctx context.Context) error { _, err := a.UserAdd(ctx, "locker", "s3cret"); return err },
		func(ctx context.Context) error { _, err := a.UserGrantRole(ctx, "locker", "locks"); return err },
		func(ctx context.Context) error { _, err := a.AuthEnable(ctx); return err },
	} {
		if err := do(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCFG08Rights(t *testing.T) {
	s := testserver.Private(t, testserver.EtcdAuth, nil)
	early := connect(t, "etcd://locker:s3cret@"+s.Addr+"/allowed", 10*time.Second) // while there are no users
	release(t, tryLock(t, early, request("x")))
	auth(t, s)
	release(t, tryLock(t, early, request("x")))
	release(t, tryLock(t, connect(t, "etcd://locker:s3cret@"+s.Addr+"/allowed", 10*time.Second), request("x")))

	t.Run("no right", func(t *testing.T) {
		wantAnswer(t, "etcd://locker:s3cret@"+s.Addr+"/forbidden", driver.ErrDenied, `"readwrite" on the keys that begin with "/forbidden/"`)
	})
	t.Run("only the right to read", func(t *testing.T) {
		wantAnswer(t, "etcd://locker:s3cret@"+s.Addr+"/readonly", driver.ErrDenied, `"readwrite" on the keys that begin with "/readonly/"`)
	})
	t.Run("wrong password", func(t *testing.T) {
		wantAnswer(t, "etcd://locker:s3cretandmore@"+s.Addr+"/allowed", driver.ErrDenied, "wrong user or password")
	})
	t.Run("no user", func(t *testing.T) {
		wantAnswer(t, "etcd://"+s.Addr+"/allowed", driver.ErrDenied, "user and a password")
	})
	t.Run("in the queue", func(t *testing.T) {
		c := connect(t, "etcd://locker:s3cret@"+s.Addr+"/readonly", 10*time.Second)
		if _, err := c.Lock(within(t, patience), request("x")); !errors.Is(err, driver.ErrDenied) {
			t.Errorf("Lock: %v", err)
		}
		if n := len(c.claims); n != 0 {
			t.Errorf("%d claims are left", n)
		}
	})
}

// Tokens live 3 s when they are not used.
func TestRECON10TokensExpire(t *testing.T) {
	s := testserver.Private(t, testserver.EtcdAuth, nil)
	auth(t, s)
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "root", Password: "r00t", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c := connect(t, "etcd://locker:s3cret@"+s.Addr+"/allowed", 12*time.Second)
	h := tryLock(t, c, request("held"))
	long, stop := context.WithCancel(c.watching()) // a stream that others keep open
	defer stop()
	c.client.Watch(long, c.key(request("long")))
	time.Sleep(5 * time.Second) // longer than a token lives
	c.mu.Lock()
	c.current.sent = c.current.sent.Add(-5 * time.Second)
	c.mu.Unlock()
	if r := renewOnce(t, c, h); r.Err != nil {
		t.Fatalf("Renew with an expired token: %v", r.Err)
	}
	for range 2 {
		time.Sleep(4 * time.Second)
		q := enqueue(t, root, c, request("held")) // watches with a new token
		eventually(t, "both watches", func() bool { return watchers(t, s) == 3 })
		if !c.await(t.Context(), h.session, h.key, h.key, h.rev) { // the key's own creation
			t.Error("nothing can be watched with a new token")
		}
		release(t, h)
		next, err := q.result(t)
		if err != nil {
			t.Fatal(err)
		}
		h = next.(*hold)
		release(t, tryLock(t, c, request("another")))
	}
	release(t, h)
}

func TestCredentialsCallback(t *testing.T) {
	s := testserver.Private(t, testserver.EtcdAuth, nil)
	auth(t, s)
	password := "s3cret"
	cn, err := Dial("etcd://"+s.Addr+"/allowed", &Options{Credentials: func(context.Context) (string, string, error) { return "locker", password, nil }})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := cn.Connect(t.Context(), driver.Config{TTL: 10 * time.Second, Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*conn)
	defer c.Close()
	release(t, tryLock(t, c, request("x")))
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "root", Password: "r00t", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.UserChangePassword(t.Context(), "locker", "changed"); err != nil {
		t.Fatal(err)
	}
	password = "changed"
	release(t, tryLock(t, c, request("x")))
}

func TestTLS(t *testing.T) {
	s := testserver.Private(t, testserver.EtcdTLS, nil)
	plain := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	release(t, tryLock(t, connect(t, s.URL("etcds")+prefix+"?ca="+s.TLS.CA, 10*time.Second), request("x")))
	release(t, tryLock(t, connect(t, strings.Replace(s.URL("etcds"), "127.0.0.1", "localhost", 1)+prefix+"?ca="+s.TLS.CA, 10*time.Second), request("x")))
	t.Run("server-name is an IP address", func(t *testing.T) {
		url := strings.Replace(s.URL("etcds"), "127.0.0.1", "localhost", 1) + prefix + "?server-name=127.0.0.1&ca=" + s.TLS.CA
		release(t, tryLock(t, connect(t, url, 10*time.Second), request("x")))
	})
	t.Run("wrong name", func(t *testing.T) {
		wantAnswer(t, s.URL("etcds")+"?server-name=example.org&ca="+s.TLS.CA, driver.ErrConfig, "server-name=")
	})
	t.Run("unknown authority", func(t *testing.T) { wantAnswer(t, s.URL("etcds"), driver.ErrConfig, "ca=") })
	t.Run("etcd:// to a server with TLS", func(t *testing.T) { wantAnswer(t, s.URL("etcd"), driver.ErrConfig, "etcds") })
	t.Run("etcds:// to a server without", func(t *testing.T) {
		wantAnswer(t, plain.URL("etcds")+"?ca="+s.TLS.CA, driver.ErrConfig, "doesn't speak TLS")
	})
}

func TestTLSClientCertificate(t *testing.T) {
	s := testserver.Private(t, testserver.EtcdMTLS, nil)
	release(t, tryLock(t, connect(t, s.URL("etcds")+"?ca="+s.TLS.CA+"&cert="+s.TLS.Cert+"&key="+s.TLS.Key, 10*time.Second), request("x")))
	t.Run("none", func(t *testing.T) {
		wantAnswer(t, s.URL("etcds")+"?ca="+s.TLS.CA, driver.ErrConfig, "cert=")
	})
	t.Run("etcd://", func(t *testing.T) { wantAnswer(t, s.URL("etcd"), driver.ErrConfig, "etcds") })
}

// deadPort returns an address on which nobody listens.
func deadPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestRECON06DeadAndUnresolvableHosts(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	start := time.Now()
	c := connect(t, "etcd://does-not-exist.invalid,"+deadPort(t)+","+s.Addr+unique(), 10*time.Second)
	release(t, tryLock(t, c, request("x")))
	if d := time.Since(start); d > soon {
		t.Errorf("it took %v", d)
	}
}

// Nothing listens, then a server does.
func TestServerThatComesLater(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	addr := deadPort(t)
	c := connect(t, "etcd://"+addr+unique(), 10*time.Second)
	for range 10 {
		start := time.Now()
		req := request("x")
		_, err := c.TryLock(within(t, patience), req)
		if err == nil || driver.IsAnswer(err) || !strings.Contains(err.Error(), "refused") {
			t.Fatalf("TryLock with no server: %v", err)
		}
		if d := time.Since(start); d > soon {
			t.Errorf("it took %v", d)
		}
		if err := c.Undo(t.Context(), req); err != nil { // nothing was sent
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxyOn(t, l, s.Addr)
	start := time.Now()
	eventually(t, "the server is found", func() bool {
		h, err := c.TryLock(within(t, patience), request("x"))
		return err == nil && h.Release(t.Context()) == nil
	})
	if d := time.Since(start); d > soon {
		t.Errorf("it took %v", d)
	}
	if p.calls.Load() == 0 {
		t.Error("not through the proxy")
	}
}

func TestSilentServer(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	p := newProxy(t, s.Addr)
	p.down.close()
	start := time.Now()
	c := connect(t, "etcd://"+p.Addr+unique(), 10*time.Second)
	if d := time.Since(start); d > soon {
		t.Errorf("connecting took %v", d)
	}
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	start = time.Now()
	if _, err := c.TryLock(ctx, request("x")); err == nil || driver.IsAnswer(err) {
		t.Errorf("TryLock: %v", err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("TryLock outlived its context by %v", d-300*time.Millisecond)
	}
	p.down.open()
	eventually(t, "it answers again", func() bool {
		h, err := c.TryLock(within(t, patience), request("x"))
		return err == nil && h.Release(t.Context()) == nil
	})
}

func TestProgramsClient(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	a := admin(t, s)
	opened, err := New(a, &Options{Prefix: new(unique())}).Connect(t.Context(), driver.Config{TTL: 10 * time.Second, Logger: slog.New(slog.DiscardHandler), Now: clock.System})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*conn)
	h := tryLock(t, c, request("x"))
	if r := renewOnce(t, c, h); r.Err != nil {
		t.Error(r.Err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if resp, err := a.TimeToLive(within(t, patience), h.session.id); err != nil || resp.TTL != -1 {
		t.Errorf("after Close the client or the lease: %v, %v", resp, err)
	}
	if _, err := c.TryLock(t.Context(), request("x")); err == nil || driver.IsAnswer(err) {
		t.Errorf("TryLock after Close: %v", err)
	}
}

func TestCloseGivesUpTheSession(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a := admin(t, s)
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			p := newProxy(t, s.Addr)
			cn, err := driver.Parse("etcd://" + p.Addr + prefix)
			if err != nil {
				t.Fatal(err)
			}
			opened, err := cn.Connect(t.Context(), driver.Config{TTL: testTTL, Logger: slog.New(slog.DiscardHandler), Now: clock.System})
			if err != nil {
				t.Fatal(err)
			}
			c := opened.(*conn)
			tryLock(t, c, request("x"))
			if silent {
				p.down.close()
			}
			start := time.Now()
			c.Close()
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("Close took %v", d)
			}
			eventually(t, "the entry goes", func() bool { return len(keys(t, a, prefix)) == 0 })
		})
	}
}
