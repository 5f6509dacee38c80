package locker

import (
	"testing"

	"github.com/leasekit/locker/driver/memory"
)

// BenchmarkCycle measures the engine alone: a free lock in memory, acquired and released.
func BenchmarkCycle(b *testing.B) {
	l, err := New(b.Context(), memory.New(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		lease, err := l.Acquire(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
