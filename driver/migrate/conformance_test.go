package migrate

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/driver"
	_ "github.com/leasekit/locker/driver/etcd"
	"github.com/leasekit/locker/driver/memory"
	_ "github.com/leasekit/locker/driver/redis"
	"github.com/leasekit/locker/internal/testserver"
)

// stores is a pair of stores in this process.
func stores() conformance.Backend {
	old, new := memory.New(), memory.New()
	return conformance.Backend{
		Name:      "migrate",
		Connector: func([]string) (driver.Connector, error) { return Connect(old, new, Both) },
		TTL:       time.Second,
		TakeOver:  time.Second,
	}
}

func TestConformanceVirtual(t *testing.T) { conformance.RunVirtual(t, stores) }

// TestConformance takes a pair of different sorts: entries with a TTL each and hints here, a session and a queue there.
func TestConformance(t *testing.T) {
	conformance.Contender()
	old := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "no"}}) // what a killed server has written stays
	new := testserver.Private(t, testserver.Etcd, nil)
	servers := []*testserver.Server{old, new}
	do := func(a testserver.Action) func(context.Context, int) error {
		return func(ctx context.Context, i int) error { return servers[i].Do(ctx, a) }
	}
	conformance.Run(t, conformance.Backend{
		Name:  "migrate",
		Addrs: []string{old.Addr, new.Addr},
		URL: func(addrs []string) string {
			return pairURL("redis://"+addrs[0], "etcd://"+addrs[1]+"/conformance", Both)
		},
		TTL:      2 * time.Second,
		TakeOver: 3 * time.Second,
		Servers: conformance.Servers{
			Stop: do(testserver.Kill), Start: do(testserver.Start),
			Pause: do(testserver.Pause), Resume: do(testserver.Resume),
		},
		Excuses: map[string]string{
			"EXP-18": "a grant takes the round trips of both sides and of raising one of them, one after the other",
		},
	})
}

func pairURL(from, to string, phase Phase) string {
	return fmt.Sprintf("migrate:?from=%s&to=%s&phase=%s", url.QueryEscape(from), url.QueryEscape(to), phase)
}
