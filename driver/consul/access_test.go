package consul

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// token makes an ACL token with rules.
func token(t testing.TB, a *api.Client, rules string) string {
	t.Helper()
	policy, _, err := a.ACL().PolicyCreate(&api.ACLPolicy{Name: "test-" + randomHex(8), Rules: rules}, nil)
	require.NoError(t, err)
	tok, _, err := a.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		a.ACL().TokenDelete(tok.AccessorID, nil)
		a.ACL().PolicyDelete(policy.ID, nil)
	})
	return tok.SecretID
}

func TestCFG08MissingRights(t *testing.T) {
	s := testserver.Need(t, testserver.ConsulACL)
	a := admin(t, s)
	p := prefix(t)
	for _, c := range []struct {
		name, rules string
		names       string // what the error must name; "" if all is well
	}{
		{"all", `session_prefix "" { policy = "write" } key_prefix "PREFIX/" { policy = "write" }`, ""},
		{"exactly what is documented for one name", `session_prefix "" { policy = "write" } key "PREFIX/a" { policy = "write" } key "PREFIX/%offset" { policy = "read" }`, ""},
		{"no session:write", `key_prefix "PREFIX/" { policy = "write" }`, "session:write"},
		{"session:read only", `session_prefix "" { policy = "read" } key_prefix "PREFIX/" { policy = "write" }`, "session:write"},
		{"no key:write", `session_prefix "" { policy = "write" } key_prefix "PREFIX/" { policy = "read" }`, "key:write on " + p + "/a"},
		{"nothing on the offset", `session_prefix "" { policy = "write" } key "PREFIX/a" { policy = "write" }`, "key:read on " + p + "/%offset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			secret := token(t, a, strings.ReplaceAll(c.rules, "PREFIX", p))
			began := time.Now()
			conn, err := tryConnect(t, "consul://"+secret+"@"+s.Addr+"/"+p, 15*time.Second)
			if err == nil {
				var h driver.Hold
				h, err = conn.TryLock(t.Context(), request("a"))
				if err == nil {
					r, _ := renew(t, conn, h)
					require.NoError(t, r[0].Err)
					_, _, err = conn.block(t.Context(), conn.key("a"), 0)
					require.NoError(t, err)
					release(t, h)
				}
			}
			if c.names == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, driver.ErrDenied)
			require.Contains(t, err.Error(), c.names)
			require.NotContains(t, err.Error(), secret)
			require.Less(t, time.Since(began), 3*time.Second)
		})
	}
	t.Run("unknown token", func(t *testing.T) {
		secret := "00000000-0000-4000-8000-00000000dead"
		_, err := tryConnect(t, "consul://"+secret+"@"+s.Addr+"/"+p, 15*time.Second)
		require.ErrorIs(t, err, driver.ErrDenied)
		require.NotContains(t, err.Error(), secret)
	})
	t.Run("no token", func(t *testing.T) {
		_, err := tryConnect(t, "consul://"+s.Addr+"/"+p, 15*time.Second)
		require.ErrorIs(t, err, driver.ErrDenied)
	})
	t.Run("a right is taken away while a lock is held", func(t *testing.T) {
		rules := strings.ReplaceAll(`session_prefix "" { policy = "write" } key_prefix "PREFIX/" { policy = "write" }`, "PREFIX", p)
		secret := token(t, a, rules)
		conn := connect(t, "consul://"+secret+"@"+s.Addr+"/"+p, 15*time.Second)
		h := lock(t, conn, "taken")
		self, _, err := a.ACL().TokenReadSelf(&api.QueryOptions{Token: secret})
		require.NoError(t, err)
		policy, _, err := a.ACL().PolicyRead(self.Policies[0].ID, nil)
		require.NoError(t, err)
		policy.Rules = `session_prefix "" { policy = "write" }`
		_, _, err = a.ACL().PolicyUpdate(policy, nil)
		require.NoError(t, err)
		eventually(t, 60*time.Second, "the change to be noticed", func() bool {
			r, _ := renew(t, conn, h)
			return r[0].Err != nil
		})
		r, _ := renew(t, conn, h)
		require.ErrorIs(t, r[0].Err, driver.ErrDenied)
		require.ErrorIs(t, h.Release(t.Context()), driver.ErrDenied)
		policy.Rules = rules
		policy, _, err = a.ACL().PolicyRead(policy.ID, nil)
		require.NoError(t, err)
		policy.Rules = rules
		_, _, err = a.ACL().PolicyUpdate(policy, nil)
		require.NoError(t, err)
		eventually(t, 60*time.Second, "the release", func() bool { return h.Release(t.Context()) == nil })
	})
}

// A token that is replaced while the program runs comes from a function.
func TestTokenRotates(t *testing.T) {
	s := testserver.Need(t, testserver.ConsulACL)
	a := admin(t, s)
	p := prefix(t)
	rules := strings.ReplaceAll(`session_prefix "" { policy = "write" } key_prefix "PREFIX/" { policy = "write" }`, "PREFIX", p)
	first, second := token(t, a, rules), token(t, a, rules)
	client, err := api.NewClient(&api.Config{Address: s.Addr, Scheme: "http"})
	require.NoError(t, err)
	var current atomic.Value
	current.Store(first)
	c, err := New(client, &Options{Prefix: &p, Token: func() string { return current.Load().(string) }}).Connect(t.Context(), config(15*time.Second))
	require.NoError(t, err)
	defer c.Close()
	h := lock(t, c, "a")
	self, _, err := a.ACL().TokenReadSelf(&api.QueryOptions{Token: first})
	require.NoError(t, err)
	_, err = a.ACL().TokenDelete(self.AccessorID, nil)
	require.NoError(t, err)
	r, _ := renew(t, c, h)
	require.ErrorIs(t, r[0].Err, driver.ErrDenied)
	current.Store(second)
	r, _ = renew(t, c, h)
	require.NoError(t, r[0].Err)
	release(t, h)
}

func TestNewWithAClientOfTheProgram(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	client := admin(t, s)
	none, delay := "", time.Duration(0)
	bad := "/x"
	_, err := New(client, &Options{Prefix: &bad}).Connect(t.Context(), config(time.Second))
	require.ErrorIs(t, err, driver.ErrConfig)
	tooLong := 2 * time.Minute
	_, err = New(client, &Options{LockDelay: &tooLong}).Connect(t.Context(), config(time.Second))
	require.ErrorIs(t, err, driver.ErrConfig)

	c, err := New(client, nil).Connect(t.Context(), config(15*time.Second))
	require.NoError(t, err)
	h := lock(t, c, prefix(t))
	require.True(t, strings.HasPrefix(h.key, "locks/test/"))
	release(t, h)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())

	c, err = New(client, &Options{Prefix: &none, LockDelay: &delay}).Connect(t.Context(), config(15*time.Second))
	require.NoError(t, err)
	name := prefix(t)
	lock(t, c, name)
	require.NotNil(t, entry(t, client, name))
	require.NoError(t, c.Close())
	require.Nil(t, entry(t, client, name), "the client is open still, and the session has ended")
	_, err = c.TryLock(t.Context(), request(name))
	require.Error(t, err)
}

func TestTLS(t *testing.T) {
	s, m := testserver.Need(t, testserver.ConsulTLS), testserver.Need(t, testserver.ConsulMTLS)
	plain := testserver.Need(t, testserver.Consul)
	p := prefix(t)
	works := func(t *testing.T, url string) {
		c := connect(t, url, 15*time.Second)
		h := lock(t, c, "a")
		r, _ := renew(t, c, h)
		require.NoError(t, r[0].Err)
		release(t, h)
	}
	fails := func(t *testing.T, url string, sentinel error, says string) {
		began := time.Now()
		c, err := tryConnect(t, url, 15*time.Second)
		if err == nil {
			_, err = c.TryLock(t.Context(), request("a"))
		}
		require.ErrorIs(t, err, sentinel)
		require.Contains(t, err.Error(), says)
		require.Less(t, time.Since(began), 3*time.Second)
	}
	ca := "?ca=" + s.TLS.CA
	pair := "&cert=" + s.TLS.Cert + "&key=" + s.TLS.Key
	t.Run("server", func(t *testing.T) { works(t, s.URL("consuls")+"/"+p+ca) })
	t.Run("server-name is an IP address", func(t *testing.T) {
		works(t, strings.Replace(s.URL("consuls"), "127.0.0.1", "localhost", 1)+"/"+p+ca+"&server-name=127.0.0.1")
	})
	t.Run("mutual", func(t *testing.T) { works(t, m.URL("consuls")+"/"+p+ca+pair) })
	t.Run("no client certificate", func(t *testing.T) {
		fails(t, m.URL("consuls")+"/"+p+ca, driver.ErrDenied, "client certificate")
	})
	t.Run("unknown authority", func(t *testing.T) { fails(t, s.URL("consuls")+"/"+p, driver.ErrConfig, "certificate") })
	t.Run("other name", func(t *testing.T) {
		fails(t, s.URL("consuls")+"/"+p+ca+"&server-name=elsewhere.example", driver.ErrConfig, "elsewhere.example")
	})
	t.Run("consul:// to TLS", func(t *testing.T) { fails(t, s.URL("consul")+"/"+p, driver.ErrConfig, "scheme is consuls") })
	t.Run("consuls:// to plain", func(t *testing.T) {
		fails(t, plain.URL("consuls")+"/"+p+ca, driver.ErrConfig, "scheme is consul")
	})
	t.Run("missing file", func(t *testing.T) {
		fails(t, s.URL("consuls")+"/"+p+"?ca=/nowhere/ca.crt", driver.ErrConfig, "/nowhere/ca.crt")
	})
	t.Run("several hosts, the first is away", func(t *testing.T) {
		works(t, strings.Replace(s.URL("consuls"), "//", "//127.0.0.1:1,", 1)+"/"+p+ca)
	})
}

func TestSeveralHosts(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	require.NoError(t, err)
	defer silent.Close()
	for _, hosts := range []string{
		"127.0.0.1:1," + s.Addr,
		"no-such-host.invalid," + s.Addr,
		silent.Addr().String() + "," + s.Addr,
		s.Addr + ",127.0.0.1:1",
	} {
		t.Run(hosts, func(t *testing.T) {
			c := connect(t, "consul://"+hosts+"/"+prefix(t), 4*time.Second)
			var h driver.Hold
			eventually(t, 20*time.Second, "a grant", func() bool {
				var err error
				h, err = c.TryLock(within(t, 3*time.Second), request("a"))
				return err == nil
			})
			release(t, h)
		})
	}
	t.Run("one that fails is left", func(t *testing.T) {
		p := newProxy(t, s.Addr)
		c := connect(t, "consul://"+p.addr()+","+s.Addr+"/"+prefix(t), 4*time.Second)
		h := lock(t, c, "a")
		p.set(func(seenRequest) action { return action{status: 500} })
		eventually(t, 8*time.Second, "a renewal", func() bool {
			r, _ := renew(t, c, h)
			return r[0].Err == nil
		})
		release(t, h)
	})
}
