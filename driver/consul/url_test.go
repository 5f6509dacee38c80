package consul

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestURL(t *testing.T) {
	for _, c := range []struct {
		url    string
		addrs  string
		token  string
		prefix string
		delay  time.Duration
		secure bool
	}{
		{"consul://h", "h:8500", "", "locks", 15 * time.Second, false},
		{"consul://h/", "h:8500", "", "locks", 15 * time.Second, false},
		{"consuls://h", "h:8501", "", "locks", 15 * time.Second, true},
		{"consul://tok@h:1,[::1]:2,[fe80::1]/a/b?lockdelay=0s", "h:1 [::1]:2 [fe80::1]:8500", "tok", "a/b", 0, false},
		{"consul://h?prefix=", "h:8500", "", "", 15 * time.Second, false},
		{"consul://h?prefix=a/b&lockdelay=1m", "h:8500", "", "a/b", time.Minute, false},
		{"consul://a+b%3Dc%40%2F@h/x%20y", "h:8500", "a+b=c@/", "x y", 15 * time.Second, false},
	} {
		t.Run("CFG-01 "+c.url, func(t *testing.T) {
			got, err := driver.Parse(c.url)
			require.NoError(t, err)
			k := got.(*connector)
			require.Equal(t, c.addrs, strings.Join(k.addrs, " "))
			require.Equal(t, c.token, k.token())
			require.Equal(t, c.prefix, k.prefix)
			require.Equal(t, c.delay, k.lockDelay)
			require.Equal(t, c.secure, k.secure)
		})
	}
	for _, c := range []struct{ url, names string }{
		{"consul://", "host"},
		{"consul:", "host"},
		{"consul://h:99999", "port"},
		{"consul://h?lockdelay=5", "lockdelay"},
		{"consul://h?lockdelay=61s", "lockdelay"},
		{"consul://h?lockdelay=-1s", "lockdelay"},
		{"consul://h?lockdelay=1s&lockdelay=2s", "lockdelay"},
		{"consul://h?lockdelays=1s", "lockdelays"},
		{"consul://h/a?prefix=b", "prefix"},
		{"consul://h/a//b", "prefix"},
		{"consul://h/a/../b", "prefix"},
		{"consul://h?prefix=/a", "prefix"},
		{"consul://h?prefix=a%0Ab", "prefix"},
		{"consul://h?dc=", "dc"},
		{"consul://user:secret@h", "token"},
		{"consul://@h", "token"},
		{"consul://s%0Aecret@h", "token"},
		{"consul://h?ca=/x", "ca"},
		{"consuls://h?cert=/x", "cert"},
		{"consul://h?db=x", "db"},
	} {
		t.Run("CFG-02 "+c.url, func(t *testing.T) {
			_, err := driver.Parse(c.url)
			require.ErrorIs(t, err, driver.ErrConfig)
			require.Contains(t, err.Error(), c.names)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

// What the client library would take from the environment stays there.
func TestEnvironmentIsNotRead(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	for k, v := range map[string]string{
		"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_HTTP_TOKEN": "from-the-environment", "CONSUL_HTTP_TOKEN_FILE": "/nowhere",
		"CONSUL_HTTP_AUTH": "user:password", "CONSUL_HTTP_SSL": "true", "CONSUL_NAMESPACE": "env", "CONSUL_PARTITION": "env",
		"CONSUL_CACERT": "/nowhere", "CONSUL_HTTP_SSL_VERIFY": "false", "HTTP_PROXY": "http://127.0.0.1:1", "CONSUL_TLS_SERVER_NAME": "env",
	} {
		t.Setenv(k, v)
	}
	p := newProxy(t, s.Addr)
	for _, token := range []string{"", "00000000-0000-4000-8000-000000000001", "from-the-environment"} {
		at := "consul://" + p.addr() + "/" + prefix(t)
		if token != "" {
			at = strings.Replace(at, "//", "//"+token+"@", 1)
		}
		c, err := tryConnect(t, at, 15*time.Second)
		require.NoError(t, err)
		h := lock(t, c, "a")
		renew(t, c, h)
		_, _, err = c.block(t.Context(), h.key, 0)
		require.NoError(t, err)
		release(t, h)
		log := p.requests()
		require.NotEmpty(t, log)
		for _, r := range log {
			require.Equal(t, token, r.token)
			require.NotContains(t, r.query, "ns=")
			require.NotContains(t, r.query, "partition=")
			require.Empty(t, r.auth)
		}
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	c := connect(t, "consul://"+p.addr()+"/"+prefix(t)+"?dc=dc1", 15*time.Second)
	release(t, lock(t, c, "a"))
	for _, r := range p.requests() {
		require.Contains(t, r.query, "dc=dc1")
	}
	// A server without namespaces says so.
	for _, q := range []string{"namespace=x", "partition=x"} {
		_, err := tryConnect(t, "consul://"+p.addr()+"/"+prefix(t)+"?"+q, 15*time.Second)
		require.ErrorIs(t, err, driver.ErrConfig)
		require.Contains(t, err.Error(), "Enterprise")
	}
	// A datacenter that can't be reached may be reached later.
	c = connect(t, "consul://"+p.addr()+"/"+prefix(t)+"?dc=nowhere", 15*time.Second)
	_, err := c.TryLock(t.Context(), request("a"))
	require.Error(t, err)
	require.False(t, driver.IsAnswer(err))
	require.Contains(t, err.Error(), "No path to datacenter")
}
