package zookeeper

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/internal/testserver"
)

func TestSHUT01CloseWhileTheServerIsSilent(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	for name, fault := range map[string]func(p *proxy.Proxy){
		"away":   func(p *proxy.Proxy) { p.Refuse(); p.Cut() },
		"silent": func(p *proxy.Proxy) { p.BlackHole() },
	} {
		t.Run(name, func(t *testing.T) {
			p := through(t, s.Addr)
			prefix := uniquePrefix(t)
			c := dial(t, p.Addr(), prefix, nil)
			ctx := within(t, 30*time.Second)
			_, err := c.TryLock(ctx, newRequest("x"))
			require.NoError(t, err)
			_, err = dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("y"))
			require.NoError(t, err)
			waiting := make(chan error, 1)
			go func() {
				_, err := c.Lock(ctx, newRequest("y"))
				waiting <- err
			}()
			require.Eventually(t, func() bool {
				children, _, err := admin(t, s.Addr).Children(prefix + "/y")
				return err == nil && len(children) == 2
			}, 5*time.Second, 20*time.Millisecond)
			fault(p)
			start := time.Now()
			require.NoError(t, c.Close())
			require.Less(t, time.Since(start), time.Second)
			require.Error(t, <-waiting)
			_, err = c.TryLock(ctx, newRequest("z"))
			require.ErrorIs(t, err, errClosed)
		})
	}
}

func TestCloseRemovesEverything(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	prefix := uniquePrefix(t)
	c := dial(t, s.Addr, prefix, nil)
	ctx := within(t, 30*time.Second)
	_, err := c.TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	h, err := dial(t, s.Addr, prefix, nil).TryLock(ctx, newRequest("x"))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))
}
