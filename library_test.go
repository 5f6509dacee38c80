package locker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/driver/memory"
)

// How the author of the library in example_library_test.go tests it: on memory, in virtual time, where an hour takes none.

func TestLibraryStopsWorkWhenItsLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		l, err := locker.New(t.Context(), store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		stopped := false
		c, err := NewCompactor(l, func(ctx context.Context, _ string, _ locker.Token) error {
			<-ctx.Done()
			stopped = true
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { store.Expire("compact/7") })
		if err := c.Run(t.Context(), "7"); !errors.Is(err, locker.ErrLost) || !stopped {
			t.Errorf("stopped: %v, error: %v", stopped, err)
		}
	})
}

// Two Lockers on one store stand for two processes.
func TestLibraryWorksOnAShardOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var runs atomic.Int32
		compact := func(context.Context, string, locker.Token) error {
			time.Sleep(time.Hour)
			runs.Add(1)
			return nil
		}
		var processes []*Compactor
		for range 2 {
			l, err := locker.New(t.Context(), store, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			c, err := NewCompactor(l, compact)
			if err != nil {
				t.Fatal(err)
			}
			processes = append(processes, c)
		}
		go processes[0].Run(t.Context(), "7")
		time.Sleep(time.Minute)
		if err := processes[1].Run(t.Context(), "7"); err != nil {
			t.Errorf("the second one: %v", err)
		}
		if err := processes[1].Run(t.Context(), "8"); err != nil {
			t.Errorf("another shard: %v", err)
		}
		synctest.Wait()
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs on two shards", n)
		}
	})
}

// weaker is a fake: it embeds the interface and overrides what matters.
type weaker struct{ locker.Locker }

func (weaker) Kind() locker.Kind { return locker.Efficiency }

func TestLibraryRefusesAWeakerKind(t *testing.T) {
	if _, err := NewCompactor(weaker{}, nil); err == nil {
		t.Error("a Locker of kind efficiency is accepted")
	}
}
