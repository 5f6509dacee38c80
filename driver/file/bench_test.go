//go:build linux || darwin

package file

import (
	"os"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

// BenchmarkCycle is a lock and a release. On a disk all but some 50 µs are the two fsyncs of the token.
func BenchmarkCycle(b *testing.B) {
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		b.Run(dir, func(b *testing.B) {
			dir, err := os.MkdirTemp(dir, "locker-bench-")
			if err != nil {
				b.Skip(err)
			}
			defer os.RemoveAll(dir)
			c, err := New(dir, nil).Connect(b.Context(), driver.Config{TTL: time.Second, Now: clock.System})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			b.ReportAllocs()
			for b.Loop() {
				h, err := c.TryLock(b.Context(), request("job"))
				if err != nil {
					b.Fatal(err)
				}
				if err := h.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHeld is a look at a name that somebody else holds, which a waiter takes every 25 ms.
func BenchmarkHeld(b *testing.B) {
	c, err := New(b.TempDir(), nil).Connect(b.Context(), driver.Config{TTL: time.Second, Now: clock.System})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if _, err := c.TryLock(b.Context(), request("job")); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.TryLock(b.Context(), request("job"))
	}
}

// BenchmarkRenew is one hold's part of a renewal.
func BenchmarkRenew(b *testing.B) {
	c, err := New(b.TempDir(), nil).Connect(b.Context(), driver.Config{TTL: time.Second, Now: clock.System})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	h, err := c.TryLock(b.Context(), request("job"))
	if err != nil {
		b.Fatal(err)
	}
	holds := make([]driver.Hold, 1000)
	for i := range holds {
		holds[i] = h
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Renew(b.Context(), holds[:], func(int, driver.Renewal) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/hold")
}
