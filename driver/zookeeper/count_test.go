package zookeeper

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/leasekit/locker/internal/testserver"
)

// Operations as they stand in a request, behind its length and number.
const (
	opDelete  = 2
	opMulti   = 14
	opGetData = 4
	opPing    = 11
)

// op matches requests with one of some operations. The request for a session is none.
func op(codes ...int32) func([]byte) bool {
	return func(b []byte) bool {
		if len(b) < 12 || b[4] == 0 && b[5] == 0 && b[6] == 0 && b[7] == 0 {
			return false
		}
		code := int32(binary.BigEndian.Uint32(b[8:]))
		if len(codes) == 0 {
			return code != opPing
		}
		for _, c := range codes {
			if c == code {
				return true
			}
		}
		return false
	}
}

func through(t testing.TB, addr string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(addr)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTwoRequestsPerFreeCycle(t *testing.T) {
	s := testserver.Need(t, testserver.ZooKeeper)
	p := through(t, s.Addr)
	c := dialTTL(t, p.Addr(), uniquePrefix(t), time.Minute, nil)
	ctx := within(t, 30*time.Second)
	cycle := func() {
		h, err := c.TryLock(ctx, newRequest("x"))
		require.NoError(t, err)
		require.NoError(t, h.Release(ctx))
	}
	cycle()
	var count int
	for range 2 { // once a minute the server removes empty folders, which costs a cycle two requests more
		n := p.Count(op())
		for range 20 {
			cycle()
		}
		if count = n.N(); count == 40 {
			break
		}
	}
	require.Equal(t, 40, count)
	require.Equal(t, 1, p.Accepted())
}
