package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
	"github.com/leasekit/locker/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// newName returns a name that no other test uses.
func newName(t testing.TB) string { return "test/" + t.Name() + "/" + newID() }

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newRequest(name string) driver.Request {
	return driver.Request{Name: name, ID: newID(), Owner: "host:1"}
}

// admin returns a client of the test's own.
func admin(t testing.TB, s *testserver.Server) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: s.Username, Password: s.Password, MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	return c
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

// through returns a proxy to the server.
func through(t testing.TB, s *testserver.Server) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// hasScript matches requests that run the script, by its hash or with its source.
func hasScript(s script) func([]byte) bool {
	return func(b []byte) bool {
		return strings.Contains(string(b), s.hash) || strings.Contains(string(b), s.source)
	}
}

// keysOf returns what stands under the name's keys.
func keysOf(t testing.TB, c *goredis.Client, name string) string {
	t.Helper()
	l := layout{DefaultPrefix}
	key := l.key(name)
	var found []string
	for _, k := range []string{key, l.companion(key, "t"), l.companion(key, "p")} {
		if c.Exists(t.Context(), k).Val() > 0 {
			found = append(found, fmt.Sprintf("%s=%s", k, c.Get(t.Context(), k).Val()))
		}
	}
	return strings.Join(found, " ")
}

type xadd = goredis.XAddArgs

// memory returns how many bytes the server uses.
func memory(t testing.TB, c *goredis.Client) int64 {
	t.Helper()
	var n int64
	for line := range strings.Lines(c.Info(t.Context(), "memory").Val()) {
		if value, ok := strings.CutPrefix(line, "used_memory:"); ok {
			fmt.Sscan(value, &n)
		}
	}
	if n == 0 {
		t.Fatal("no used_memory")
	}
	return n
}

// clients returns how many connections of a type the server has: "normal" or "pubsub".
func clients(t testing.TB, c *goredis.Client, kind string) int {
	t.Helper()
	list, err := c.Do(t.Context(), "CLIENT", "LIST", "TYPE", kind).Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}
