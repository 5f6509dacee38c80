package locker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver/memory"
)

func Example() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "memory://", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	lease, err := l.Acquire(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	fmt.Println(lease.Name(), "is held:", lease.Context().Err() == nil)
	// Output: nightly is held: true
}

// A job that runs on several machines and shall run on one of them: those who come second skip it.
func ExampleDo() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "memory://", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	job := func(ctx context.Context, lease locker.Lease) error {
		// ctx ends when the lease does: pass it on to everything that takes one.
		fmt.Println("working")
		second := locker.Do(ctx, l, "nightly", func(context.Context, locker.Lease) error {
			fmt.Println("working twice")
			return nil
		}, locker.WithMaxWait(0))
		fmt.Println(second)
		return nil
	}
	switch err := locker.Do(ctx, l, "nightly", job, locker.WithMaxWait(0)); {
	case errors.Is(err, locker.ErrHeld):
		fmt.Println("somebody else does it")
	case errors.Is(err, locker.ErrLost): // before context.Canceled, which job may have returned
		fmt.Println("stopped, since the name was no longer ours:", err)
	case err != nil:
		fmt.Println("failed:", err)
	}
	// Output:
	// working
	// locker: acquire "nightly" (memory): held by another
}

// WithMaxWait bounds the wait. The context would bound the work too.
func ExampleWithMaxWait() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "memory://", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	lease, err := l.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	_, err = l.Acquire(ctx, "report", locker.WithMaxWait(20*time.Millisecond))
	fmt.Println(errors.Is(err, locker.ErrHeld), errors.Is(err, context.DeadlineExceeded))
	// Output: true false
}

// A holder is told when its lease ends before it was released, and why.
func ExampleLease_context() {
	ctx := context.Background()
	store := memory.New()
	l, err := locker.New(ctx, store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	lease, err := l.Acquire(ctx, "leader")
	if err != nil {
		log.Fatal(err)
	}

	store.Expire("leader") // what a server does that loses its data
	<-lease.Context().Done()
	fmt.Println(context.Cause(lease.Context()))
	fmt.Println(errors.Is(lease.Release(ctx), locker.ErrLost))
	// Output:
	// locker: hold "leader" (memory): lease lost: the backend says so: not held
	// true
}

// account refuses whoever holds an older token than the last one that it has seen. In a database this is one statement:
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// which changes no row for a holder that woke up late.
type account struct {
	balance int
	fence   locker.Token
}

func (a *account) set(balance int, token locker.Token) error {
	if token < a.fence {
		return errors.New("stale token")
	}
	a.balance, a.fence = balance, token
	return nil
}

// No lock can stop a process that was paused right before it writes. What is written to can, if the token goes along.
func ExampleToken() {
	ctx := context.Background()
	store := memory.New()
	l, err := locker.New(ctx, store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	var a account

	first, err := l.Acquire(ctx, "account")
	if err != nil {
		log.Fatal(err)
	}
	store.Expire("account") // the first holder is paused for longer than its TTL

	second, err := l.Acquire(ctx, "account")
	if err != nil {
		log.Fatal(err)
	}
	defer second.Release(ctx)
	fmt.Println("second:", a.set(20, second.Token()))
	fmt.Println("second again:", a.set(21, second.Token()))
	fmt.Println("first, woken up:", a.set(10, first.Token()))
	fmt.Println("balance:", a.balance)
	// Output:
	// second: <nil>
	// second again: <nil>
	// first, woken up: stale token
	// balance: 21
}
