package redlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
	"github.com/leasekit/locker/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// masters returns the first n nodes of the group, for this test alone, and a client for each. They are empty.
func masters(t testing.TB, n int) ([]*testserver.Server, []*goredis.Client) {
	t.Helper()
	servers := testserver.Group(t, testserver.Redlock)[:n]
	clients := make([]*goredis.Client, n)
	for i, s := range servers {
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1})
		t.Cleanup(func() { c.Close() })
		clients[i] = c
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return servers, clients
}

func urlOf(servers []*testserver.Server) string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return "redlock://" + strings.Join(addrs, ",")
}

// proxies returns a proxy for each server and the URL that leads through them.
func proxies(t testing.TB, servers []*testserver.Server) ([]*proxy.Proxy, string) {
	t.Helper()
	list := make([]*proxy.Proxy, len(servers))
	var addrs []string
	for i, s := range servers {
		p, err := proxy.New(s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		list[i] = p
		addrs = append(addrs, p.Addr())
	}
	return list, "redlock://" + strings.Join(addrs, ",")
}

// newName returns a name that no other test uses.
func newName(t testing.TB) string { return "test/" + t.Name() + "/" + newID()[:8] }

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newRequest(name string) driver.Request {
	return driver.Request{Name: name, ID: newID(), Owner: "host:1"}
}

// connectURL returns the Conn of a URL.
func connectURL(t testing.TB, url string, ttl time.Duration) *conn {
	t.Helper()
	c, err := driver.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, c, ttl)
}

func connect(t testing.TB, c driver.Connector, ttl time.Duration) *conn {
	t.Helper()
	cn, err := c.Connect(t.Context(), config(ttl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cn.Close() })
	return cn.(*conn)
}

func config(ttl time.Duration) driver.Config {
	return driver.Config{TTL: ttl, Owner: "host:1", Logger: slog.New(slog.DiscardHandler), Now: clock.System}
}

func open(t testing.TB, url string, ttl time.Duration) locker.Locker {
	t.Helper()
	l, err := locker.Open(t.Context(), url, &locker.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// within returns a context that ends soon.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// patient bounds what should take no time on a machine that may be busy.
const patient = 20 * time.Second

func mustLock(t testing.TB, c driver.Conn, req driver.Request) *hold {
	t.Helper()
	h, err := c.TryLock(within(t, patient), req)
	if err != nil {
		t.Fatalf("TryLock: %v", err)
	}
	return h.(*hold)
}

// lockSoon is mustLock for a name that others may be about to free.
func lockSoon(t testing.TB, c driver.Conn, name string) *hold {
	t.Helper()
	var h *hold
	eventually(t, patient, "a grant of "+name, func() bool {
		got, err := c.TryLock(within(t, patient), newRequest(name))
		if err == nil {
			h = got.(*hold)
		}
		return err == nil
	})
	return h
}

func mustRelease(t testing.TB, h driver.Hold) {
	t.Helper()
	if err := h.Release(within(t, patient)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// wantAnswer checks that err is the answer and no other one.
func wantAnswer(t testing.TB, err, answer error) {
	t.Helper()
	if !errors.Is(err, answer) {
		t.Fatalf("got %v, want one that matches %v", err, answer)
	}
}

// wantUnknown checks that err is no answer, and that it carries a text.
func wantUnknown(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || driver.IsAnswer(err) || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %v, want an unknown that says %q", err, text)
	}
}

// renew renews one hold.
func renew(t testing.TB, c driver.Conn, h driver.Hold) driver.Renewal {
	t.Helper()
	var results []driver.Renewal
	if n := c.Renew(within(t, patient), []driver.Hold{h}, func(_ int, r driver.Renewal) { results = append(results, r) }); n != 0 {
		t.Fatalf("Renew: %d unresolved", n)
	}
	if len(results) != 1 {
		t.Fatalf("Renew reported %d times", len(results))
	}
	return results[0]
}

// eventually polls until a condition holds.
func eventually(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// standsOn returns on which nodes the key of a name is, as "101" for the first and the third.
func standsOn(t testing.TB, clients []*goredis.Client, name string) string {
	t.Helper()
	var b strings.Builder
	for _, c := range clients {
		b.WriteByte('0' + byte(c.Exists(t.Context(), DefaultPrefix+name).Val()))
	}
	return b.String()
}
