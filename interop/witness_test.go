package interop

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sort is one sort of lock. take waits until it holds name, or ctx ends.
type sort struct {
	name string
	take func(ctx context.Context, name string) (release func(context.Context) error, err error)
	try  func(ctx context.Context, name string) (release func(context.Context) error, err error) // errHeld if it is held
}

// contend lets contenders of several sorts fight for one name until each sort has been granted it often enough, and fails
// if two of them hold it at a time, or if a release finds that the lock isn't its own.
func contend(t *testing.T, name string, enough int64, sorts ...sort) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var (
		holder atomic.Pointer[string]
		grants = make([]atomic.Int64, len(sorts))
		wg     sync.WaitGroup
	)
	satisfied := func() bool {
		for i := range grants {
			if grants[i].Load() < enough {
				return false
			}
		}
		return true
	}
	for i, s := range sorts {
		for range 3 {
			wg.Go(func() {
				for !satisfied() && !t.Failed() {
					release, err := s.take(ctx, name)
					if err != nil {
						if !satisfied() {
							t.Errorf("%s: %v", s.name, err)
						}
						return
					}
					if other := holder.Swap(&s.name); other != nil {
						t.Errorf("%s was granted while %s held", s.name, *other)
					}
					time.Sleep(rand.N(4 * time.Millisecond))
					holder.Store(nil)
					grants[i].Add(1)
					if err := release(context.WithoutCancel(ctx)); err != nil {
						t.Errorf("release of %s: %v", s.name, err)
					}
					time.Sleep(rand.N(40 * time.Millisecond)) // let the others
				}
			})
		}
	}
	wg.Wait()
	for i, s := range sorts {
		t.Logf("%s: %d grants", s.name, grants[i].Load())
	}
	require.True(t, satisfied() || t.Failed(), "not everybody was granted the name often enough")
}
