package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/internal/testserver"
)

func TestRECON03RestartShorterThanTheTTL(t *testing.T) {
	s := testserver.Private(t, testserver.Etcd, nil)
	l, err := locker.Open(t.Context(), url(s, "/x"), &locker.Options{TTL: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	held := acquire(t, l, "x")
	for range 2 {
		s.Restart(t)
		if n := len(keys(t, admin(t, s), "/x/x/")); n != 1 {
			t.Fatalf("%d keys after a restart", n)
		}
		before := held.Remaining()
		eventually(t, "a renewal", func() bool { return held.Remaining() > before })
	}
	if err := held.Context().Err(); err != nil {
		t.Fatalf("the lease ended: %v", context.Cause(held.Context()))
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A holder that is cut off is told before the next one is granted.
func TestEXP02HolderIsCutOff(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	p := newProxy(t, s.Addr)
	holder, err := locker.Open(t.Context(), "etcd://"+p.Addr+prefix, &locker.Options{TTL: testTTL})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	other, err := locker.Open(t.Context(), url(s, prefix), &locker.Options{TTL: testTTL})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 3 {
		held := acquire(t, holder, "x")
		p.down.close()
		p.up.close()
		next := acquire(t, other, "x")
		if held.Context().Err() == nil {
			t.Error("two holders")
		}
		if next.Token() <= held.Token() {
			t.Errorf("token %d after %d", next.Token(), held.Token())
		}
		p.cut()
		p.up.open()
		p.down.open()
		if err := held.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if next.Context().Err() != nil {
			t.Error("the next holder lost its lease")
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
