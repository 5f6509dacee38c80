package conformance_test

import (
	"testing"
	"time"

	"github.com/leasekit/locker/conformance"
	_ "github.com/leasekit/locker/driver/memory" // the driver that is tested
)

// The test of a driver. With this much, the suite runs what needs nothing but the servers' addresses, and names the
// cases that it can't run; Admin, Servers and TakeOver add those.
func ExampleRun() {
	TestConformance := func(t *testing.T) {
		conformance.Run(t, conformance.Backend{
			Name:  "mine",
			Addrs: []string{"127.0.0.1:7000"},
			URL:   func(addrs []string) string { return "mine://" + addrs[0] + "/empty-database" },
			TTL:   time.Second,
		})
	}
	_ = TestConformance
}
