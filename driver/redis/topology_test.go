package redis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// Servers of a group tell clients each other's addresses. So that a test's proxies are used nevertheless, the schemes
// test+sentinel and test+cluster take a parameter via=ADDRESS=PROXY;ADDRESS=PROXY…
func init() {
	for _, scheme := range []string{"test+sentinel", "test+cluster"} {
		driver.Register(scheme, func(u *driver.URL) (driver.Connector, error) {
			via := make(map[string]string)
			pairs, _ := u.Param("via")
			for pair := range strings.SplitSeq(pairs, ";") {
				from, to, _ := strings.Cut(pair, "=")
				via[from] = to
			}
			c := parse(u)
			c.target.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if to := via[addr]; to != "" {
					addr = to
				}
				return dialer.DialContext(ctx, network, addr)
			}
			return c, nil
		})
	}
}

// viaParam returns the parameter that leads from the servers to the addresses.
func viaParam(members []*testserver.Server, addrs []string) string {
	var pairs []string
	for i, m := range members {
		pairs = append(pairs, m.Addr+"="+addrs[i])
	}
	return "via=" + strings.Join(pairs, ";")
}

func sentinelURL(members []*testserver.Server) string {
	return "redis+sentinel://" + members[2].Addr + "," + members[3].Addr + "," + members[4].Addr + "/main/0"
}

func clusterURL(members []*testserver.Server) string {
	return "redis+cluster://" + members[0].Addr + "," + members[1].Addr + "," + members[2].Addr
}

// failoverClient is the client library's own for Sentinel.
func failoverClient(t testing.TB, members []*testserver.Server) *goredis.Client {
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{
		MasterName: "main", SentinelAddrs: []string{members[2].Addr, members[3].Addr, members[4].Addr}, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func clusterClient(t testing.TB, members []*testserver.Server) *goredis.ClusterClient {
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: []string{members[0].Addr, members[1].Addr, members[2].Addr}, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// A URL for another kind of servers is refused by Connect, and the message says what fits.
func TestCFG02WrongTopology(t *testing.T) {
	refused := func(t *testing.T, url, says string) {
		t.Helper()
		c, err := driver.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		cn, err := c.Connect(within(t, patient), config(10*time.Second))
		if err == nil {
			cn.Close()
			t.Fatalf("%s: connected", url)
		}
		wantAnswer(t, err, driver.ErrConfig)
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", url, err)
		}
	}
	t.Run("cluster", func(t *testing.T) {
		m := testserver.Group(t, testserver.RedisCluster)
		for _, s := range m {
			refused(t, s.URL("redis"), "redis+cluster://")
		}
		// One whose prefix puts all names into one slot finds it out by the first name.
		n := 0
		for _, s := range m {
			c, err := driver.Parse(s.URL("redis") + "?prefix={a}:")
			if err != nil {
				t.Fatal(err)
			}
			if cn, err := c.Connect(within(t, patient), config(10*time.Second)); err == nil {
				n++
				cn.Close()
			} else if !strings.Contains(err.Error(), "redis+cluster://") {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Errorf("%d nodes have the slot", n)
		}
		refused(t, strings.Replace(m[0].URL("redis+sentinel"), "/main", "", 1)+"/main", "is no sentinel")
	})
	t.Run("standalone", func(t *testing.T) {
		s := testserver.Need(t, testserver.Redis)
		refused(t, s.URL("redis+cluster"), "belongs to no cluster")
		refused(t, s.URL("redis+sentinel")+"/main", "is no sentinel")
	})
	t.Run("sentinel", func(t *testing.T) {
		m := testserver.Group(t, testserver.Sentinel)
		refused(t, strings.Replace(sentinelURL(m), "/main", "/mian", 1), `no master called "mian"`)
		refused(t, m[2].URL("redis"), "unknown command")
		refused(t, m[2].URL("redis+cluster"), "unknown command")
	})
}

// A sentinel's password is its own, and a wrong one is named as such.
func TestCFG01SentinelPassword(t *testing.T) {
	m := testserver.Group(t, testserver.Sentinel)
	for _, s := range m[2:] {
		c := admin(t, s)
		if err := c.Do(t.Context(), "ACL", "SETUSER", "asker", "reset", "on", ">s3cret", "+sentinel|master").Err(); err != nil {
			t.Fatal(err)
		}
		if err := c.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">adm1n").Err(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Do(context.Background(), "ACL", "SETUSER", "default", "nopass").Err(); err != nil {
				t.Error(err)
			}
		})
	}
	url := sentinelURL(m)
	for _, right := range []string{"?sentinel-user=asker&sentinel-password=s3cret", "?sentinel-password=adm1n"} {
		c := connectURL(t, url+right, 10*time.Second)
		mustRelease(t, mustLock(t, c, newRequest(newName(t))))
	}
	for _, wrong := range []string{"?sentinel-user=asker&sentinel-password=wr0ng", "", "?sentinel-password=s3cret"} {
		d, _ := driver.Parse(url + wrong)
		_, err := d.Connect(within(t, patient), config(10*time.Second))
		wantAnswer(t, err, driver.ErrDenied)
		if !strings.Contains(err.Error(), "sentinel 127.0.0.1:164") || strings.Contains(err.Error(), "wr0ng") {
			t.Error(err)
		}
	}
	c, err := Dial(url, &Options{SentinelCredentials: func(context.Context) (string, string, error) { return "asker", "s3cret", nil }})
	if err != nil {
		t.Fatal(err)
	}
	mustRelease(t, mustLock(t, connect(t, c, 10*time.Second), newRequest(newName(t))))
}

// Sentinels that are dead or don't resolve don't matter while one answers; with none left, the outcome is unknown.
func TestRECON03DeadSentinels(t *testing.T) {
	m := testserver.Group(t, testserver.Sentinel)
	for _, hosts := range []string{
		"127.0.0.1:1,nowhere.invalid," + m[2].Addr,
		m[2].Addr + ",127.0.0.1:1",
	} {
		c := connectURL(t, "redis+sentinel://"+hosts+"/main", 10*time.Second)
		n := newName(t)
		h := mustLock(t, c, newRequest(n))
		_, err := c.TryLock(within(t, patient), newRequest(n))
		wantAnswer(t, err, driver.ErrHeld)
		mustRelease(t, h)
	}
	c := connectURL(t, "redis+sentinel://127.0.0.1:1,nowhere.invalid/main", 10*time.Second)
	_, err := c.TryLock(within(t, patient), newRequest(newName(t)))
	wantUnknown(t, err, "no sentinel names the primary")
	// One that names no such master is a minority here, and others may know better.
	c = connectURL(t, "redis+sentinel://127.0.0.1:1,127.0.0.1:2,"+m[2].Addr+"/other", 10*time.Second)
	_, err = c.TryLock(within(t, patient), newRequest(newName(t)))
	wantUnknown(t, err, "other")

	// A silent one.
	m[3].Pause(t)
	c = connectURL(t, sentinelURL(m), 10*time.Second)
	mustRelease(t, mustLock(t, c, newRequest(newName(t))))
}

// NAME-06: all keys of a name are in one slot, whatever braces it has.
func TestNAME06Slots(t *testing.T) {
	m := testserver.Group(t, testserver.RedisCluster)
	client := clusterClient(t, m)
	for what, c := range map[string]driver.Connector{"URL": must(driver.Parse(clusterURL(m))), "client": New(client, nil)} {
		t.Run(what, func(t *testing.T) {
			c := connect(t, c, 10*time.Second)
			other := connect(t, New(client, nil), 10*time.Second)
			seen := make(map[*node]bool)
			for _, n := range []string{"a", "{a}", "a{b}c", "{}x", "}{", "{", "}", "{}", "{{a}}", "b", "c", "d", "e"} {
				n = n + "/" + what
				h := mustLock(t, c, newRequest(n))
				if c.client.cluster != nil {
					owner, err := c.client.cluster.owner(t.Context(), slotOf(h.key))
					if err != nil {
						t.Fatal(err)
					}
					seen[owner] = true
				}
				if k := client.ClusterKeySlot(t.Context(), h.key).Val(); int(k) != slotOf(h.key) {
					t.Errorf("%q is in slot %d, not %d", h.key, k, slotOf(h.key))
				}
				_, err := other.TryLock(within(t, patient), newRequest(n))
				if driver.HeldFor(err) == 0 {
					t.Fatalf("%q: %v", n, err)
				}
				e, err := other.Inspect(within(t, patient), n)
				if err != nil || e.Token != h.Grant().Token || !e.Held {
					t.Errorf("%q: %+v, %v", n, e, err)
				}
				if r := renew(t, c, h); r.Err != nil {
					t.Error(r.Err)
				}
				watchAndRelease(t, c, n, h)
				again := mustLock(t, other, newRequest(n))
				if again.Grant().Token <= h.Grant().Token {
					t.Errorf("%q: token %d after %d", n, again.Grant().Token, h.Grant().Token)
				}
				mustRelease(t, again)
			}
			if what == "URL" && len(seen) != 3 {
				t.Errorf("%d nodes were used", len(seen))
			}
		})
	}
}

// A list of a cluster's locks has those of all nodes, and a check looks at each of them.
func TestListAndCheckCluster(t *testing.T) {
	m := testserver.Group(t, testserver.RedisCluster)
	prefix := "list:" + newID() + ":"
	for what, connector := range map[string]driver.Connector{
		"URL": must(driver.Parse(clusterURL(m) + "?prefix=" + prefix)), "client": New(clusterClient(t, m), &Options{Prefix: &prefix}),
	} {
		t.Run(what, func(t *testing.T) {
			c := connect(t, connector, 30*time.Second)
			want := make(map[string]bool)
			for i := range 50 {
				n := fmt.Sprint(what, i)
				want[n] = true
				h := mustLock(t, c, newRequest(n))
				defer mustRelease(t, h)
			}
			if err := c.List(within(t, patient), func(e driver.Entry) bool { delete(want, e.Name); return true }); err != nil || len(want) > 0 {
				t.Errorf("%v, missing: %v", err, want)
			}
			n := 0
			if err := c.List(within(t, patient), func(driver.Entry) bool { n++; return n < 3 }); err != nil || n != 3 {
				t.Errorf("%d, %v", n, err)
			}
			findings, err := c.Check(within(t, patient))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range m {
				found := 0
				for _, f := range findings {
					if strings.HasPrefix(f.Detail, s.Addr+": ") {
						found++
					}
				}
				if found < 5 {
					t.Errorf("%d findings about %s: %+v", found, s.Addr, findings)
				}
			}
		})
	}
}

// slotOwner returns the indexes of the node that has a key's slot and of another one.
func slotOwner(t testing.TB, c *goredis.ClusterClient, members []*testserver.Server, key string) (owner, other int) {
	t.Helper()
	node, err := c.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range members {
		if m.Addr == node.Options().Addr {
			return i, (i + 1) % len(members)
		}
	}
	t.Fatalf("%s is no member", node.Options().Addr)
	return 0, 0
}

// A slot is moved while one of its locks is held: each step of the way, the lock is renewed, seen by others and released.
func TestSlotMigration(t *testing.T) {
	m := testserver.Group(t, testserver.RedisCluster)
	client := clusterClient(t, m)
	for what, connector := range map[string]driver.Connector{"URL": must(driver.Parse(clusterURL(m))), "client": New(client, nil)} {
		t.Run(what, func(t *testing.T) {
			c, other := connect(t, connector, 30*time.Second), connect(t, must(driver.Parse(clusterURL(m))), 30*time.Second)
			ctx := t.Context()
			n := newName(t)
			h := mustLock(t, c, newRequest(n))
			slot := slotOf(h.key)
			from, to := slotOwner(t, client, m, h.key)
			source, dest := admin(t, m[from]), admin(t, m[to])
			id := func(c *goredis.Client) string { return must(c.Do(ctx, "CLUSTER", "MYID").Text()) }
			do := func(c *goredis.Client, args ...any) {
				t.Helper()
				if err := c.Do(ctx, args...).Err(); err != nil {
					t.Fatal(args, err)
				}
			}
			held := func(step string) {
				t.Helper()
				for _, c := range []*conn{c, other} {
					if _, err := c.TryLock(within(t, patient), newRequest(n)); driver.HeldFor(err) == 0 {
						t.Fatalf("%s: %v", step, err)
					}
				}
				if r := renew(t, c, h); r.Err != nil {
					t.Fatalf("%s: %v", step, r.Err)
				}
			}
			keys := []any{h.key, c.layout.companion(h.key, "t")}
			host, port, _ := net.SplitHostPort(m[to].Addr)
			held("before")
			do(dest, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(source))
			do(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(dest))
			held("migrating")
			// Redis answers neither of the two keys until both have gone; a renewal, of one key, goes on.
			do(source, "MIGRATE", host, port, keys[0], 0, 5000)
			if r := renew(t, c, h); r.Err != nil {
				t.Fatalf("between: %v", r.Err)
			}
			_, err := other.TryLock(within(t, patient), newRequest(n))
			if what == "URL" {
				wantUnknown(t, err, "TRYAGAIN")
			}
			do(source, "MIGRATE", host, port, keys[1], 0, 5000)
			held("asked") // ASK
			for _, node := range []*goredis.Client{dest, source, admin(t, m[3-from-to])} {
				do(node, "CLUSTER", "SETSLOT", slot, "NODE", id(dest))
			}
			held("moved") // MOVED
			if at, _ := slotOwner(t, clusterClient(t, m), m, h.key); at != to {
				t.Errorf("the slot is at %d", at)
			}
			mustRelease(t, h)
			next := mustLock(t, other, newRequest(n))
			if next.Grant().Token <= h.Grant().Token {
				t.Errorf("token %d after %d", next.Grant().Token, h.Grant().Token)
			}
			mustRelease(t, next)
			// And back, for the tests to come.
			do(source, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(dest))
			do(dest, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(source))
			do(dest, "MIGRATE", host, portOf(m[from]), keys[1], 0, 5000)
			for _, node := range []*goredis.Client{source, dest, admin(t, m[3-from-to])} {
				do(node, "CLUSTER", "SETSLOT", slot, "NODE", id(source))
			}
		})
	}
}

func portOf(s *testserver.Server) string { _, port, _ := net.SplitHostPort(s.Addr); return port }

// nameAt returns a name that a node has.
func nameAt(t testing.TB, c *goredis.ClusterClient, m []*testserver.Server, at int) string {
	for {
		n := newName(t)
		if owner, _ := slotOwner(t, c, m, (layout{DefaultPrefix}).key(n)); owner == at {
			return n
		}
	}
}

// A node of the cluster that is silent delays no renewal, attempt or release at another one.
func TestBlackHoledShard(t *testing.T) {
	m := testserver.Group(t, testserver.RedisCluster)
	client := clusterClient(t, m)
	for what, connector := range map[string]driver.Connector{"URL": must(driver.Parse(clusterURL(m))), "client": New(client, nil)} {
		t.Run(what, func(t *testing.T) {
			c := connect(t, connector, time.Minute)
			var holds []driver.Hold
			var silent []bool
			for i := range 3 * chunk {
				at := i % 3
				if i >= 12 {
					at = 0 // more chunks than a node has turns
				}
				holds = append(holds, mustLock(t, c, newRequest(nameAt(t, client, m, at))))
				silent = append(silent, at == 0)
			}
			m[0].Pause(t)
			const budget = 1500 * time.Millisecond // less than the nodes need to notice
			begin := time.Now()
			live := make(chan time.Duration, len(holds))
			done := make(chan struct{})
			go func() {
				defer close(done)
				ctx, cancel := context.WithTimeout(t.Context(), budget)
				defer cancel()
				c.Renew(ctx, holds, func(i int, r driver.Renewal) {
					switch {
					case silent[i] && (r.Err == nil || driver.IsAnswer(r.Err)):
						t.Errorf("a hold at the silent node: %v", r.Err)
					case !silent[i] && r.Err != nil:
						t.Errorf("a hold at another one: %v", r.Err)
					case !silent[i]:
						live <- time.Since(begin)
					}
				})
			}()
			for range 8 {
				select {
				case <-live:
				case <-done:
					t.Fatal("holds of other nodes weren't reported before the end")
				}
			}
			n := nameAt(t, client, m, 1)
			mustRelease(t, mustLock(t, c, newRequest(n)))
			select {
			case <-done:
				if took := time.Since(begin); took < budget {
					t.Errorf("the silent node answered within %v", took)
				}
			default:
			}
			<-done
			m[0].Resume(t)
			eventually(t, patient, "the node is used again", func() bool { return renew(t, c, holds[0]).Err == nil })
		})
	}
}

// Without one of its masters the cluster serves nothing; that is an unknown, and passes.
func TestRECON11ClusterDown(t *testing.T) {
	m := testserver.Group(t, testserver.RedisCluster)
	client := clusterClient(t, m)
	c := connectURL(t, clusterURL(m), 30*time.Second)
	gone, here := nameAt(t, client, m, 2), nameAt(t, client, m, 0)
	h := mustLock(t, c, newRequest(here))
	m[2].Kill(t)
	_, err := c.TryLock(within(t, patient), newRequest(gone))
	if err == nil || driver.IsAnswer(err) {
		t.Errorf("a name of the dead node: %v", err)
	}
	eventually(t, patient, "CLUSTERDOWN", func() bool {
		_, err = c.TryLock(within(t, 2*time.Second), newRequest(nameAt(t, client, m, 1)))
		return err != nil && strings.Contains(err.Error(), "CLUSTERDOWN")
	})
	wantUnknown(t, err, "CLUSTERDOWN")
	if r := renew(t, c, h); r.Err == nil || driver.IsAnswer(r.Err) {
		t.Errorf("renewed: %v", r.Err)
	}
	m[2].Start(t)
	eventually(t, patient, "the cluster is up again", func() bool { return renew(t, c, h).Err == nil })
	mustRelease(t, mustLock(t, c, newRequest(gone)))
	mustRelease(t, h)
}

// The subscription of waiters goes to another node when its own has gone.
func TestWatchCluster(t *testing.T) {
	m := testserver.Group(t, testserver.RedisCluster)
	c := connectURL(t, clusterURL(m), 30*time.Second)
	mustRelease(t, mustLock(t, c, newRequest(newName(t))))
	hints, stop, err := c.Watch(within(t, patient), newName(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c.client.cluster.mu.Lock()
	at := c.client.cluster.subNode.addr
	c.client.cluster.mu.Unlock()
	for _, s := range m {
		if s.Addr == at {
			s.Kill(t)
		}
	}
	select {
	case <-hints:
	case <-time.After(patient):
		t.Fatal("nobody says that the subscription broke")
	}
	eventually(t, patient, "a subscription at another node", func() bool {
		_, stop, err := c.Watch(within(t, 5*time.Second), newName(t))
		if err == nil {
			stop()
		}
		return err == nil
	})
}

// oneNode makes a private server a cluster of its own.
func oneNode(t testing.TB, name testserver.Name, args ...string) *testserver.Server {
	t.Helper()
	s := testserver.Private(t, name, &testserver.Options{Args: append(args, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")})
	o := &goredis.Options{Addr: s.Addr, Username: s.Username, Password: s.Password, MaxRetries: -1}
	if s.TLS != nil {
		o.TLSConfig = must(s.TLS.Config())
	}
	a := goredis.NewClient(o)
	defer a.Close()
	if err := a.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, slots-1).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, patient, "the cluster is up", func() bool {
		return strings.Contains(a.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	return s
}

// Clusters of other versions, and over TLS with a user's password.
func TestClusterVersions(t *testing.T) {
	for _, name := range []testserver.Name{testserver.Redis8, testserver.Valkey, testserver.RedisTLS} {
		t.Run(string(name), func(t *testing.T) {
			args := []string{"--cluster-announce-port", "{port}"}
			if name == testserver.RedisTLS {
				args = []string{"--cluster-announce-tls-port", "{port}", "--tls-cluster", "yes"}
			}
			s := oneNode(t, name, args...)
			url := s.URL("redis+cluster")
			if s.TLS != nil {
				url = "rediss+cluster://" + s.Username + ":" + s.Password + "@" + s.Addr + "?ca=" + s.TLS.CA
			}
			c := connectURL(t, url, 10*time.Second)
			for _, n := range []string{"a", "{b}", "c"} {
				h := mustLock(t, c, newRequest(n))
				if r := renew(t, c, h); r.Err != nil {
					t.Error(r.Err)
				}
				watchAndRelease(t, c, n, h)
			}
			if name == testserver.RedisTLS {
				return // its clients for one server are tested elsewhere
			}
			d := must(driver.Parse(s.URL("redis")))
			_, err := d.Connect(within(t, patient), config(10*time.Second))
			wantAnswer(t, err, driver.ErrConfig)
			if !strings.Contains(err.Error(), "redis+cluster://") {
				t.Error(err)
			}
		})
	}
}

// Users with exactly the documented rights.
func TestCFG08RightsOfTopologies(t *testing.T) {
	ctx := t.Context()
	set := func(t *testing.T, s *testserver.Server, rules ...string) {
		t.Helper()
		args := []any{"ACL", "SETUSER", "app", "reset", "on", ">s3cret"}
		for _, r := range rules {
			args = append(args, r)
		}
		if err := admin(t, s).Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(t *testing.T, url, says string) {
		t.Helper()
		d := must(driver.Parse(url))
		_, err := d.Connect(within(t, patient), config(10*time.Second))
		wantAnswer(t, err, driver.ErrDenied)
		if !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Error(err)
		}
	}
	use := func(t *testing.T, url string) {
		t.Helper()
		c := connectURL(t, url, 10*time.Second)
		for range 10 {
			n := newName(t)
			h := mustLock(t, c, newRequest(n))
			if r := renew(t, c, h); r.Err != nil {
				t.Error(r.Err)
			}
			watchAndRelease(t, c, n, h)
		}
	}
	t.Run("sentinel", func(t *testing.T) {
		m := testserver.Group(t, testserver.Sentinel)
		url := strings.Replace(sentinelURL(m), "//", "//app:s3cret@", 1)
		for _, s := range m[:2] {
			set(t, s, append([]string{"+role"}, documented...)...)
		}
		use(t, url)
		for _, s := range m[:2] {
			set(t, s, documented...)
		}
		refused(t, url, "role")
	})
	t.Run("cluster", func(t *testing.T) {
		m := testserver.Group(t, testserver.RedisCluster)
		url := strings.Replace(clusterURL(m), "//", "//app:s3cret@", 1)
		for _, s := range m {
			set(t, s, append([]string{"+cluster|slots", "+asking"}, documented...)...)
		}
		use(t, url)
		for _, s := range m {
			set(t, s, documented...)
		}
		refused(t, url, "cluster")
	})
}
