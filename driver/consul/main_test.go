package consul

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
	"github.com/leasekit/locker/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// admin returns a client of the server that has nothing to do with the driver. There is one for each server, since each
// has its own pool of connections.
func admin(t testing.TB, s *testserver.Server) *api.Client {
	admins.Lock()
	defer admins.Unlock()
	if c := admins.clients[s.Addr]; c != nil {
		return c
	}
	config := &api.Config{Address: s.Addr, Scheme: "http", Token: s.Password}
	if s.TLS != nil {
		config.Scheme = "https"
		config.TLSConfig = api.TLSConfig{CAFile: s.TLS.CA, CertFile: s.TLS.Cert, KeyFile: s.TLS.Key}
	}
	c, err := api.NewClient(config)
	require.NoError(t, err)
	admins.clients[s.Addr] = c
	return c
}

var admins = struct {
	sync.Mutex
	clients map[string]*api.Client
}{clients: make(map[string]*api.Client)}

// connect opens a driver's connection. The URL is consul://ADDR/PREFIX?PARAMETERS.
func connect(t testing.TB, url string, ttl time.Duration) *conn {
	t.Helper()
	c, err := tryConnect(t, url, ttl)
	require.NoError(t, err)
	return c
}

func tryConnect(t testing.TB, url string, ttl time.Duration) (*conn, error) {
	t.Helper()
	connector, err := driver.Parse(url)
	require.NoError(t, err)
	c, err := connector.Connect(t.Context(), config(ttl))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return c.(*conn), nil
}

func config(ttl time.Duration) driver.Config {
	level := slog.LevelWarn
	if testing.Verbose() && os.Getenv("LOCKER_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return driver.Config{
		TTL:    ttl,
		Owner:  "test",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
		Now:    clock.System,
	}
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// prefix returns a prefix of the test's own.
func prefix(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r < '0' || r > 'z' || r == '?' || r == '=' {
			return '-'
		}
		return r
	}, t.Name())
	return "test/" + name + "-" + randomHex(4)
}

func request(name string) driver.Request {
	return driver.Request{Name: name, ID: randomHex(16), Owner: "test"}
}

// lock takes a name or fails the test.
func lock(t testing.TB, c driver.Conn, name string) *hold {
	t.Helper()
	h, err := c.TryLock(within(t, 10*time.Second), request(name))
	require.NoError(t, err)
	return h.(*hold)
}

func release(t testing.TB, h driver.Hold) {
	t.Helper()
	require.NoError(t, h.Release(within(t, 10*time.Second)))
}

// renew renews holds once and returns what was reported.
func renew(t testing.TB, c driver.Conn, holds ...driver.Hold) ([]driver.Renewal, int) {
	t.Helper()
	all := make([]driver.Renewal, len(holds))
	reported := make(chan int, len(holds)+1)
	got := make(chan driver.Renewal, len(holds)+1)
	unresolved := c.Renew(within(t, 10*time.Second), holds, func(i int, r driver.Renewal) {
		reported <- i
		got <- r
	})
	require.Len(t, reported, len(holds), "reports")
	for range holds {
		all[<-reported] = <-got
	}
	return all, unresolved
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), d)
	t.Cleanup(stop)
	return ctx
}

// eventually polls for a condition.
func eventually(t testing.TB, d time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > d {
			t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}

// entry reads a key with a client of its own; nil if there is none.
func entry(t testing.TB, a *api.Client, key string) *api.KVPair {
	t.Helper()
	e, _, err := a.KV().Get(key, &api.QueryOptions{RequireConsistent: true})
	require.NoError(t, err)
	return e
}
