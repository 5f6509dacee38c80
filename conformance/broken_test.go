package conformance_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/conformance"
	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/driver/memory"
	"github.com/stretchr/testify/require"
)

// caught runs one case, under virtual time, and sees that it fails with its name and rule. The backend must be one that
// passes it but for what is broken on purpose; that it does is what TestMemoryVirtual and TestSessionsVirtual show.
func caught(t *testing.T, caseN string, backend func() conformance.Backend) {
	t.Helper()
	var err error
	synctest.Test(t, func(t *testing.T) {
		b := backend()
		b.Only, b.RequireAll = []string{caseN}, false
		err = conformance.Check(t.Context(), b)
		time.Sleep(2 * time.Hour) // what was left behind ends
	})
	require.Error(t, err, "%s has found nothing", caseN)
	found := false
	for line := range strings.SplitSeq(err.Error(), "\n") {
		found = found || strings.HasPrefix(line, caseN+": ")
	}
	require.True(t, found, "%s isn't what has failed: %v", caseN, err)
	if testing.Verbose() {
		text, _, _ := strings.Cut(err.Error(), "Error Trace:")
		t.Log(text)
	}
}

// spoiledBackend is the memory backend with something wrong in the driver.
func spoiledBackend(s spoiled, spoil func(*spoiledConn, *memory.Store)) conformance.Backend {
	store := memory.New()
	b := memoryBackend(time.Second)
	b.Admin = memoryAdmin(store)
	s.Connector = store
	s.spoil = func(c *spoiledConn) {
		if spoil != nil {
			spoil(c, store)
		}
	}
	b.Connector = func([]string) (driver.Connector, error) { return s, nil }
	return b
}

func TestBrokenDrivers(t *testing.T) {
	for _, d := range brokenDrivers {
		t.Run(d.what+" "+d.caseN, func(t *testing.T) {
			caught(t, d.caseN, func() conformance.Backend {
				return spoiledBackend(spoiled{info: d.info, queue: !d.plain}, d.spoil)
			})
		})
	}
}

func TestBrokenSessions(t *testing.T) {
	for _, d := range []struct {
		what  string
		caseN string
		flaws flaws
	}{
		{"counts the deadline from the acquisition under an older session", "LEASE-2", flaws{acquireIsRenewal: true}},
		{"leaks a waiter's place in the queue", "WAIT-01", flaws{leaksPlace: true}},
		{"lets a dead waiter keep its place", "WAIT-19", flaws{keepsDeadPlaces: true}},
		{"grants on a place that is gone", "OWN-02", flaws{grantsDeadPlace: true}},
	} {
		t.Run(d.what+" "+d.caseN, func(t *testing.T) {
			caught(t, d.caseN, func() conformance.Backend { return sessionBackend(d.flaws) })
		})
	}
}

func TestBrokenLockers(t *testing.T) {
	for _, d := range brokenLockers {
		t.Run(d.what+" "+d.caseN, func(t *testing.T) {
			caught(t, d.caseN, func() conformance.Backend {
				b := memoryBackend(time.Second)
				b.NewLocker = func(ctx context.Context, c driver.Connector, o *locker.Options) (locker.Locker, error) {
					if d.conn != nil || d.info != nil {
						c = spoiled{Connector: c, spoil: d.conn, info: d.info, queue: !d.plain}
					}
					l, err := locker.New(ctx, c, o)
					if err != nil || d.spoil == nil {
						return l, err
					}
					s := &spoiledLocker{Locker: l, ttl: o.TTL}
					d.spoil(s)
					return s, nil
				}
				return b
			})
		})
	}
}
