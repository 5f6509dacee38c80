package redis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// both runs a test with connections of our own and with a client that the program brings.
func both(t *testing.T, addr string, ttl time.Duration, test func(t *testing.T, c *conn)) {
	t.Helper()
	t.Run("URL", func(t *testing.T) { test(t, connectURL(t, "redis://"+addr, ttl)) })
	t.Run("client", func(t *testing.T) {
		client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		test(t, connect(t, New(client, nil), ttl))
	})
}

// A server that is away is an unknown, for everything and at once.
func TestServerAway(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	p := through(t, s)
	p.Refuse()
	both(t, p.Addr(), 30*time.Second, func(t *testing.T, c *conn) {
		p.Refuse()
		p.Cut()
		name := newName(t)
		req := newRequest(name)
		_, err := c.TryLock(within(t, patient), req)
		wantUnknown(t, err, "")
		wantUnknown(t, c.Undo(within(t, patient), req), "refused")
		p.Heal()
		h := mustLock(t, c, req)
		p.Refuse()
		p.Cut()
		wantUnknown(t, renew(t, c, h).Err, "")
		wantUnknown(t, h.Release(within(t, patient)), "")
		p.Heal()
		eventually(t, patient, "renewal", func() bool { return renew(t, c, h).Err == nil })
		mustRelease(t, h)
	})
}

// Calls return when their context ends, whatever the server does, and Close ends them all within a second.
func TestBlackHole(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	for _, direction := range []proxy.Direction{proxy.ToServer, proxy.ToClient} {
		t.Run(direction.String(), func(t *testing.T) {
			p := through(t, s)
			both(t, p.Addr(), 30*time.Second, func(t *testing.T, c *conn) {
				name := newName(t)
				h := mustLock(t, c, newRequest(name))
				p.BlackHole(direction)
				for what, fn := range map[string]func(ctx context.Context) error{
					"TryLock": func(ctx context.Context) error { _, err := c.TryLock(ctx, newRequest(name)); return err },
					"Undo":    func(ctx context.Context) error { return c.Undo(ctx, newRequest(name)) },
					"Release": h.Release,
					"Renew": func(ctx context.Context) (err error) {
						c.Renew(ctx, []driver.Hold{h}, func(_ int, r driver.Renewal) { err = r.Err })
						return err
					},
					"Watch": func(ctx context.Context) error { _, _, err := c.Watch(ctx, name); return err },
				} {
					for _, end := range []string{"cancel", "deadline"} {
						start := time.Now() // before the timers, so that the lower bound is exact
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						want := context.Canceled
						if end == "deadline" {
							ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
							want = context.DeadlineExceeded
						} else {
							time.AfterFunc(50*time.Millisecond, cancel)
						}
						err := fn(ctx)
						if d := time.Since(start); d < 50*time.Millisecond || d > 5*time.Second {
							t.Errorf("%s, %s: returned after %v with %v", what, end, d, err)
						}
						if err == nil || driver.IsAnswer(err) {
							t.Errorf("%s, %s: %v", what, end, err)
						} else if end == "cancel" && !errors.Is(err, want) {
							t.Errorf("%s, %s: %v", what, end, err)
						}
						cancel()
					}
				}
				failed := make(chan error)
				go func() {
					_, err := c.TryLock(within(t, time.Minute), newRequest(name))
					failed <- err
				}()
				time.Sleep(50 * time.Millisecond)
				start := time.Now()
				c.Close()
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("Close took %v", d)
				}
				if err := <-failed; err == nil || driver.IsAnswer(err) {
					t.Error(err)
				}
				if d := time.Since(start); d > 10*time.Second {
					t.Errorf("the call ended %v after Close", d)
				}
				p.Cut()
				p.Heal()
			})
		})
	}
}

// A reply that is lost after the command was carried out: the same ID asks again, or undoes.
func TestLostReplies(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	p := through(t, s)
	both(t, p.Addr(), 30*time.Second, func(t *testing.T, c *conn) {
		for _, then := range []proxy.Then{proxy.ThenCut, proxy.ThenSilence} {
			name := newName(t)
			req := newRequest(name)
			mustRelease(t, mustLock(t, c, newRequest(name))) // the server knows the scripts
			dropped := p.DropReply(1, hasScript(lockScript), then)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			_, err := c.TryLock(ctx, req)
			cancel()
			wantUnknown(t, err, "")
			<-dropped
			stored := a.Get(t.Context(), "{lock:"+name+"}:t").Val()
			if a.Exists(t.Context(), "lock:"+name).Val() != 1 {
				t.Fatal("the command wasn't carried out")
			}
			if _, err := c.TryLock(within(t, patient), newRequest(name)); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("another ID: %v", err)
			}
			h := mustLock(t, c, req)
			if a.Get(t.Context(), "{lock:"+name+"}:t").Val() != stored {
				t.Error("asking again minted")
			}

			// Trap 7: a release whose reply was lost and that finds nothing when it is sent again isn't a loss.
			dropped = p.DropReply(1, hasScript(releaseScript), then)
			ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
			err = h.Release(ctx)
			cancel()
			wantUnknown(t, err, "")
			<-dropped
			if got := a.Exists(t.Context(), h.key).Val(); got != 0 {
				t.Fatal("the key is still there")
			}
			mustRelease(t, h)

			dropped = p.DropReply(1, hasScript(lockScript), then)
			ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
			_, err = c.TryLock(ctx, req)
			cancel()
			wantUnknown(t, err, "")
			<-dropped
			if err := c.Undo(within(t, patient), req); err != nil {
				t.Fatal(err)
			}
			if got := a.Exists(t.Context(), h.key).Val(); got != 0 {
				t.Fatal("the key is still there")
			}
		}
	})
}

// The client's own retries don't turn a lost reply to a release into a loss.
func TestNoHiddenRetry(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	p := through(t, s)
	client := goredis.NewClient(&goredis.Options{Addr: p.Addr(), MaxRetries: 5})
	t.Cleanup(func() { client.Close() })
	c := connect(t, New(client, nil), 30*time.Second)
	name := newName(t)
	mustRelease(t, mustLock(t, c, newRequest(name)))
	h := mustLock(t, c, newRequest(name))
	counter := p.Count(hasScript(releaseScript))
	p.DropReply(1, hasScript(releaseScript), proxy.ThenCut)
	wantUnknown(t, h.Release(within(t, patient)), "")
	if counter.N() != 1 {
		t.Errorf("%d requests", counter.N())
	}
	mustRelease(t, h)
}

// Undo waits for a request of its ID that the program's client has still under way.
func TestUndoAwaitsRequest(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	p := through(t, s)
	client := goredis.NewClient(&goredis.Options{Addr: p.Addr()})
	t.Cleanup(func() { client.Close() })
	c := connect(t, New(client, nil), 30*time.Second)
	name := newName(t)
	req := newRequest(name)
	mustRelease(t, mustLock(t, c, newRequest(name)))
	held, letGo := p.Hold(1, hasScript(lockScript))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := c.TryLock(ctx, req)
	wantUnknown(t, err, "canceled")
	<-held
	if err := c.Undo(within(t, 50*time.Millisecond), req); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Undo didn't wait: %v", err)
	}
	letGo()
	if err := c.Undo(within(t, patient), req); err != nil {
		t.Fatal(err)
	}
	if a.Exists(t.Context(), "lock:"+name).Val() != 0 {
		t.Error("the key is there")
	}
}

// RECON-11: a server that refuses to write is an unknown that carries its text, and holders go on as far as it lets them.
func TestRECON11Refusals(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--enable-debug-command", "yes"}})
	a := admin(t, s)
	ctx := t.Context()
	c := connectURL(t, s.URL("redis"), time.Minute)
	h := mustLock(t, c, newRequest("held"))
	if err := a.Set(ctx, "filler", strings.Repeat("x", 1<<20), 0).Err(); err != nil {
		t.Fatal(err)
	}

	t.Run("OOM", func(t *testing.T) {
		a.ConfigSet(ctx, "maxmemory", "1")
		_, err := c.TryLock(ctx, newRequest("new"))
		wantUnknown(t, err, "OOM")
		if r := renew(t, c, h); r.Err != nil {
			t.Errorf("renewal needs no memory: %v", r.Err)
		}
		_, err = c.TryLock(ctx, newRequest("held"))
		wantAnswer(t, err, driver.ErrHeld)
		a.ConfigSet(ctx, "maxmemory", "0")
		mustRelease(t, mustLock(t, c, newRequest("new")))
	})
	t.Run("OOM, release", func(t *testing.T) {
		h := mustLock(t, c, newRequest("new"))
		a.ConfigSet(ctx, "maxmemory", "1")
		mustRelease(t, h)
		a.ConfigSet(ctx, "maxmemory", "0")
	})
	t.Run("MISCONF", func(t *testing.T) {
		dir := a.ConfigGet(ctx, "dir").Val()["dir"]
		file := dir + "/" + a.ConfigGet(ctx, "dbfilename").Val()["dbfilename"]
		if out, err := s.Exec(ctx, "sh", "-c", "rm -f "+file+"; mkdir -p "+file+"/x"); err != nil {
			t.Fatal(out, err)
		}
		a.ConfigSet(ctx, "save", "3600 1")
		a.BgSave(ctx)
		eventually(t, patient, "a failed save", func() bool {
			return strings.Contains(a.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:err")
		})
		_, err := c.TryLock(ctx, newRequest("new"))
		wantUnknown(t, err, "MISCONF")
		wantUnknown(t, renew(t, c, h).Err, "MISCONF")
		wantUnknown(t, h.Release(ctx), "MISCONF")
		a.ConfigSet(ctx, "save", "")
		if r := renew(t, c, h); r.Err != nil {
			t.Error(r.Err)
		}
		s.Exec(ctx, "rm", "-rf", file)
	})
	t.Run("READONLY", func(t *testing.T) {
		a.ReplicaOf(ctx, "127.0.0.1", "1")
		_, err := c.TryLock(ctx, newRequest("new"))
		wantUnknown(t, err, "READONLY")
		wantUnknown(t, renew(t, c, h).Err, "READONLY")
		wantUnknown(t, h.Release(ctx), "READONLY")
		a.ReplicaOf(ctx, "NO", "ONE")
		if r := renew(t, c, h); r.Err != nil {
			t.Error(r.Err)
		}
	})
	t.Run("LOADING", func(t *testing.T) {
		pipe := a.Pipeline()
		for i := range 2000 {
			pipe.Set(ctx, "filler"+newID(), i, 0)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		for key, value := range map[string]string{"key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"} {
			if err := a.ConfigSet(ctx, key, value).Err(); err != nil {
				t.Fatal(key, err)
			}
		}
		reloaded := make(chan error, 1)
		go func() { reloaded <- a.Do(within(t, time.Minute), "DEBUG", "RELOAD").Err() }()
		eventually(t, patient, "a refusal", func() bool {
			r := renew(t, c, h)
			if errors.Is(r.Err, driver.ErrNotHeld) {
				t.Fatal(r.Err)
			}
			return r.Err != nil && strings.Contains(r.Err.Error(), "LOADING")
		})
		_, err := c.TryLock(ctx, newRequest("new"))
		wantUnknown(t, err, "LOADING")
		d, _ := driver.Parse(s.URL("redis"))
		loading, err := d.Connect(ctx, config(time.Second))
		if err != nil {
			t.Fatalf("Connect: %v", err)
		}
		loading.Close()
		if err := <-reloaded; err != nil && !strings.Contains(err.Error(), "timeout") {
			t.Fatal(err)
		}
		eventually(t, patient, "the hold has survived", func() bool { return renew(t, c, h).Err == nil })
	})
	t.Run("BUSY", func(t *testing.T) {
		a.ConfigSet(ctx, "lua-time-limit", "1")
		spinner := admin(t, s)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			spinner.Eval(context.WithoutCancel(ctx), "while true do end", nil)
		}()
		eventually(t, patient, "a refusal", func() bool {
			_, err := c.TryLock(within(t, patient), newRequest("new"))
			return err != nil && strings.Contains(err.Error(), "BUSY") && !driver.IsAnswer(err) ||
				err == nil && c.Undo(ctx, newRequest("new")) != nil
		})
		a.ScriptKill(ctx)
		<-stopped
	})
	mustRelease(t, h)
	for _, key := range a.Keys(ctx, "lock:*").Val() {
		if key != "lock:new" {
			t.Errorf("left behind: %s", key)
		}
	}
}

// A server that was restarted: with its data, holds go on; without, they are lost and the names are free.
func TestRestart(t *testing.T) {
	for what, args := range map[string][]string{
		"with data":    {"--appendonly", "yes", "--appendfsync", "always"},
		"without data": nil,
	} {
		t.Run(what, func(t *testing.T) {
			s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: args})
			c := connectURL(t, s.URL("redis"), time.Minute)
			h := mustLock(t, c, newRequest("x"))
			token := h.Grant().Token
			s.Kill(t)
			_, err := c.TryLock(within(t, patient), newRequest("x"))
			wantUnknown(t, err, "")
			wantUnknown(t, renew(t, c, h).Err, "")
			s.Start(t)
			var r driver.Renewal
			eventually(t, patient, "an answer", func() bool {
				r = renew(t, c, h)
				return r.Err == nil || driver.IsAnswer(r.Err)
			})
			if args != nil {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				mustRelease(t, h)
			} else {
				wantAnswer(t, r.Err, driver.ErrNotHeld)
				wantAnswer(t, h.Release(within(t, patient)), driver.ErrNotHeld)
			}
			if h := mustLock(t, c, newRequest("x")); h.Grant().Token <= token {
				t.Errorf("token %d after %d", h.Grant().Token, token)
			}
		})
	}
}

// Connections that the server has closed while they were idle are replaced without a failed call.
func TestIdleConnections(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	c := connectURL(t, s.URL("redis"), time.Minute)
	for range 5 {
		h := mustLock(t, c, newRequest("x"))
		a.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		eventually(t, patient, "the connections are closed", func() bool { return clients(t, a, "normal") == 1 })
		time.Sleep(5 * patience) // otherwise they aren't idle
		if r := renew(t, c, h); r.Err != nil {
			t.Error(r.Err)
		}
		mustRelease(t, h)
	}
}

// Connections are kept over every kind of answer, and closed when they aren't used any more, but for one.
func TestConnectionsAreKept(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	p := through(t, s)
	c := connectURL(t, "redis://"+p.Addr(), time.Minute)
	name, list := newName(t), newName(t)
	a.RPush(t.Context(), "lock:"+list, "x")
	defer a.Del(t.Context(), "lock:"+list)
	h := mustLock(t, c, newRequest(name))
	before := p.Accepted()
	for range 20 {
		_, err := c.TryLock(t.Context(), newRequest(name))
		wantAnswer(t, err, driver.ErrHeld)
		_, err = c.TryLock(t.Context(), newRequest(list))
		wantAnswer(t, err, driver.ErrConflict)
		wantAnswer(t, (&hold{conn: c, key: "lock:" + list}).Release(t.Context()), driver.ErrNotHeld)
	}
	if n := p.Accepted(); n != before {
		t.Errorf("%d new connections", n-before)
	}
	mustRelease(t, h)

	var all sync.WaitGroup
	for range ownLanes[attempts] {
		all.Go(func() {
			for range 50 {
				c.TryLock(t.Context(), newRequest(list))
			}
		})
	}
	all.Wait()
	if n := p.Accepted() - before; n < 2 || n > ownLanes[attempts] {
		t.Errorf("%d new connections", n)
	}
	eventually(t, patient, "one connection is left", func() bool { return p.Conns() == 1 })
}
