package conformance_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/leasekit/locker/internal/clock"
)

// memoryBackend is a store in this process. It is what the suite's own tests break.
func memoryBackend(ttl time.Duration) conformance.Backend {
	store := memory.New()
	return conformance.Backend{
		Name:      "memory",
		Connector: func([]string) (driver.Connector, error) { return store, nil },
		TTL:       ttl,
		TakeOver:  ttl,
		Admin:     memoryAdmin(store),
		Excuses: map[string]string{
			"Addrs":            "there is no connection",
			"processes":        "a store lives in one process",
			"Servers.Stop":     "there is no server",
			"Servers.Pause":    "there is no server",
			"Admin.EndSession": "there are no sessions",
			"Admin.DropWaiter": "a place in the queue is a value that nobody else can reach",
			"Admin.Occupy":     "there is nothing but locks in a store",
			"Admin.Sessions":   "there are no sessions",
		},
		RequireAll: true,
	}
}

// memoryAdmin acts on a store through a client of its own.
func memoryAdmin(store *memory.Store) conformance.Admin {
	conn, _ := store.Connect(context.Background(), driver.Config{TTL: time.Hour, Logger: slog.New(slog.DiscardHandler), Now: clock.Monotonic})
	look := conn.(driver.Inspector)
	take := func(name string) error {
		if !store.Expire(name) {
			return errors.New("it isn't held")
		}
		return nil
	}
	return conformance.Admin{
		Entry: func(ctx context.Context, name string) (conformance.Entry, error) {
			e, err := look.Inspect(ctx, name)
			return conformance.Entry{Value: e.ID, Remaining: e.Remaining}, err
		},
		Delete: func(_ context.Context, name string) error { return take(name) },
		Replace: func(ctx context.Context, name string) error {
			if err := take(name); err != nil {
				return err
			}
			_, err := conn.TryLock(ctx, driver.Request{Name: name, ID: "someone else"})
			return err
		},
		Entries: func(ctx context.Context) (names []string, err error) {
			err = look.List(ctx, func(e driver.Entry) bool {
				names = append(names, e.Name)
				return true
			})
			return names, err
		},
	}
}

func TestMemory(t *testing.T) { conformance.Run(t, memoryBackend(time.Second)) }

func TestMemoryVirtual(t *testing.T) {
	conformance.RunVirtual(t, func() conformance.Backend { return memoryBackend(time.Second) })
}

func TestSessionsVirtual(t *testing.T) {
	conformance.RunVirtual(t, func() conformance.Backend { return sessionBackend(flaws{}) })
}
