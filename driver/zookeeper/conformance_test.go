package zookeeper

import (
	"context"
	"testing"
	"time"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/internal/testserver"
)

func TestConformance(t *testing.T) {
	conformance.Contender()
	s := testserver.Private(t, testserver.ZooKeeper, nil)
	const ttl, tick = 2 * time.Second, 200 * time.Millisecond
	do := func(a testserver.Action) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return s.Do(ctx, a) }
	}
	conformance.Run(t, conformance.Backend{
		Name:     "zookeeper",
		Addrs:    []string{s.Addr},
		URL:      func(addrs []string) string { return "zk://" + addrs[0] + "/conformance" },
		TTL:      ttl,
		TakeOver: ttl + 2*tick,
		Admin:    operator{s.Addr, "/conformance"}.admin(),
		Servers: conformance.Servers{
			Stop: do(testserver.Kill), Start: do(testserver.Start),
			Pause: do(testserver.Pause), Resume: do(testserver.Resume),
		},
		Excuses: map[string]string{
			"EXP-18": "what proves a session lies a quarter of its timeout and two round trips back: docs/design.md says why",
		},
		RequireAll: true,
	})
}
