package locker_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/leasekit/locker/internal/clock"
)

// The tests of this file guard what leases, waiters and cycles cost by counting it. Times are for benchmarks to show.

// used is what a process uses at a moment.
type used struct {
	heap, stack uint64
	goroutines  int
}

func measure() used {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one moves what pools hold to where the second one frees it
	runtime.ReadMemStats(&m)
	return used{m.HeapAlloc, m.StackInuse, runtime.NumGoroutine()}
}

// settled measures once the number of goroutines has come down to want, or has been given the time for it.
func settled(want int) used {
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > want && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	return measure()
}

// blocked counts the goroutines that wait inside Acquire.
func blocked() int {
	stacks := make([]runtime.StackRecord, 20_000)
	n, _ := runtime.GoroutineProfile(stacks)
	count := 0
	for _, s := range stacks[:n] {
		frames := runtime.CallersFrames(s.Stack())
		for {
			f, more := frames.Next()
			if strings.HasSuffix(f.Function, ".(*engine).Acquire") {
				count++
				break
			}
			if !more {
				break
			}
		}
	}
	return count
}

// observer is a client of a store that looks at it as the driver does.
func observer(t *testing.T, store *memory.Store) driver.Inspector {
	t.Helper()
	c, err := store.Connect(t.Context(), driver.Config{TTL: time.Minute, Now: clock.Monotonic})
	if err != nil {
		t.Fatal(err)
	}
	return c.(driver.Inspector)
}

// TestScaleLeases holds leases beyond their TTL, in a bubble's time.
func TestScaleLeases(t *testing.T) { synctest.Test(t, scaleLeases) }

func scaleLeases(t *testing.T) {
	const (
		n   = 100_000
		ttl = 15 * time.Second
	)
	var renewals, most atomic.Int64 // most goroutines seen at a renewal
	l, err := locker.New(t.Context(), memory.New(), &locker.Options{TTL: ttl, Hooks: locker.Hooks{
		Renewed: func(context.Context, locker.Event) {
			if renewals.Add(1)%1000 == 0 {
				if now := int64(runtime.NumGoroutine()); now > most.Load() {
					most.Store(now)
				}
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// The names and the list of leases are the caller's own.
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("lease-%06d", i)
	}
	leases := make([]locker.Lease, n)
	before := measure()
	for i, name := range names {
		if leases[i], err = l.Acquire(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	granted := measure()
	time.Sleep(ttl)
	held := measure()
	for _, now := range []used{granted, held} {
		each, more := int64(now.heap-before.heap)/n, now.goroutines-before.goroutines
		t.Logf("%d leases: %d bytes of heap each, %d goroutines", n, each, more)
		if each >= 1024 {
			t.Errorf("a lease uses %d bytes, and 1024 are too many", each)
		}
		if more > 8 {
			t.Errorf("%d leases use %d goroutines", n, more)
		}
	}
	if more := most.Load() - int64(before.goroutines); more > 8 {
		t.Errorf("%d renewals use %d goroutines", n, more)
	}
	if renewals.Load() < 2*n {
		t.Errorf("%d renewals of %d leases in one TTL", renewals.Load(), n)
	}
	for i, lease := range leases {
		if err := lease.Context().Err(); err != nil {
			t.Fatalf("lease %d: %v", i, context.Cause(lease.Context()))
		}
	}
	runtime.KeepAlive(names)

	// Contexts that somebody watches or derives cost memory, and still no goroutine.
	const watched = n / 10
	for _, lease := range leases[:watched] {
		lease.Context().Done()
		_, cancel := context.WithCancel(lease.Context())
		defer cancel()
	}
	if more := runtime.NumGoroutine() - before.goroutines; more > 8 {
		t.Errorf("%d watched contexts use %d goroutines", watched, more)
	}
}

func TestScaleWaiters(t *testing.T) {
	const n = 10_000
	store := memory.New()
	l, err := locker.New(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	holder, err := locker.New(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := holder.Acquire(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := measure()
	var waiting sync.WaitGroup
	for range n {
		waiting.Go(func() {
			if lease, err := l.Acquire(ctx, "n"); err == nil {
				t.Error("a held name was granted")
				lease.Release(ctx)
			}
		})
	}
	// They wait once they are blocked in Acquire: the stacks of all goroutines then say so.
	look := observer(t, store)
	for end := time.Now().Add(time.Minute); blocked() < n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d wait", blocked(), n)
		}
	}
	waits := measure()
	each := (int64(waits.heap-before.heap) + int64(waits.stack-before.stack)) / n
	t.Logf("%d waiters: %d bytes of heap and %d of stack each", n, int64(waits.heap-before.heap)/n, int64(waits.stack-before.stack)/n)
	if each >= 8<<10 {
		t.Errorf("a waiter uses %d bytes, and 8192 are too many", each)
	}
	if more := waits.goroutines - before.goroutines; more > n+8 {
		t.Errorf("%d waiters use %d goroutines", n, more)
	}
	e, err := look.Inspect(t.Context(), "n")
	if err != nil || e.Waiters != 1 {
		t.Errorf("%d contenders of one process wait at the backend: %v", e.Waiters, err)
	}
	cancel()
	waiting.Wait()
	if e, err := look.Inspect(t.Context(), "n"); err != nil || e.Waiters != 0 {
		t.Errorf("%d contenders are left at the backend: %v", e.Waiters, err)
	}
	if after := settled(before.goroutines); after.goroutines > before.goroutines {
		t.Errorf("%d goroutines are left of %d waiters", after.goroutines-before.goroutines, n)
	}
}

// TestCycleAllocations guards what acquiring and releasing a free name allocates, engine and memory driver together.
func TestCycleAllocations(t *testing.T) {
	l, err := locker.New(t.Context(), memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx := t.Context()
	allocs := testing.AllocsPerRun(1000, func() {
		lease, err := l.Acquire(ctx, "n")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v allocations", allocs)
	if allocs > 6 {
		t.Errorf("a cycle makes %v allocations, and 6 are allowed", allocs)
	}
}
