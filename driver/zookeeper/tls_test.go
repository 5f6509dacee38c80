package zookeeper

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

func TestTLS(t *testing.T) {
	s := testserver.Private(t, testserver.ZooKeeperTLS, nil)
	ctx := within(t, time.Minute)
	empty := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, url := range map[string]string{
		"authority": "zks://" + s.Addr + "/locks?ca=" + s.TLS.CA,
		"server-name is an IP address": "zks://" + strings.Replace(s.Addr, "127.0.0.1", "localhost", 1) +
			"/locks?server-name=127.0.0.1&ca=" + s.TLS.CA,
		"client certificate": "zookeepers://" + s.Addr + "/locks?ca=" + s.TLS.CA + "&cert=" + s.TLS.Cert + "&key=" + s.TLS.Key,
	} {
		t.Run(name, func(t *testing.T) {
			l, err := locker.Open(ctx, url, &locker.Options{TTL: 5 * time.Second})
			require.NoError(t, err)
			defer l.Close()
			lease, err := l.Acquire(ctx, "x")
			require.NoError(t, err)
			require.NoError(t, lease.Release(ctx))
		})
	}
	t.Run("options", func(t *testing.T) {
		cfg, err := s.TLS.Config()
		require.NoError(t, err)
		h, err := dial(t, s.Addr, "/locks", &Options{TLS: cfg}).TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		require.NoError(t, h.Release(ctx))
	})
	for name, url := range map[string]string{
		"unknown authority": "zks://" + s.Addr,
		"wrong name":        "zks://" + s.Addr + "?server-name=elsewhere&ca=" + s.TLS.CA,
		"scheme without":    "zk://" + s.Addr,
	} {
		t.Run(name, func(t *testing.T) { configError(t, url) })
	}
	for name, url := range map[string]string{
		"no such file":   "zks://" + s.Addr + "?ca=/does/not/exist",
		"no certificate": "zks://" + s.Addr + "?ca=" + empty,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := locker.Open(ctx, url, nil)
			require.ErrorIs(t, err, locker.ErrConfig)
		})
	}
}

func TestTLSToAServerWithout(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	configError(t, "zks://"+s.Addr)
}

// configError checks that an acquire says what is wrong with the URL soon, though it would wait for long.
func configError(t *testing.T, url string) {
	t.Helper()
	l, err := locker.Open(within(t, time.Minute), url, &locker.Options{TTL: 5 * time.Second})
	require.NoError(t, err)
	defer l.Close()
	start := time.Now()
	_, err = l.Acquire(within(t, 30*time.Second), "x")
	require.ErrorIs(t, err, locker.ErrConfig)
	require.ErrorContains(t, err, "TLS")
	require.Less(t, time.Since(start), 3*time.Second)
}
