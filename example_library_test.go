package locker_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasekit/locker"
)

// Compactor is a library's type that takes a Locker from the program and knows no backend.
type Compactor struct {
	locks   locker.Locker
	compact func(ctx context.Context, shard string, fence locker.Token) error
}

// NewCompactor refuses a Locker under which two compactions of a shard could run at the same time.
func NewCompactor(l locker.Locker, compact func(context.Context, string, locker.Token) error) (*Compactor, error) {
	if l.Kind() != locker.Correctness {
		return nil, fmt.Errorf("compactor: locks of kind %v, and %v is needed", l.Kind(), locker.Correctness)
	}
	return &Compactor{l, compact}, nil
}

// Run compacts a shard, or does nothing if somebody else is at it.
func (c *Compactor) Run(ctx context.Context, shard string) error {
	err := locker.Do(ctx, c.locks, "compact/"+shard, func(ctx context.Context, lease locker.Lease) error {
		return c.compact(ctx, shard, lease.Token())
	}, locker.WithMaxWait(0))
	if errors.Is(err, locker.ErrHeld) {
		return nil
	}
	return err
}

// A library takes a Locker from the program, and asks for no more than the kind that it needs.
func Example_library() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "memory://", &locker.Options{Require: locker.Correctness})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	c, err := NewCompactor(l, func(_ context.Context, shard string, _ locker.Token) error {
		fmt.Println("compacting shard", shard)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Run(ctx, "7"))
	// Output:
	// compacting shard 7
	// <nil>
}
