package conformance_test

import (
	"context"
	"time"

	"github.com/leasekit/locker"
)

// spoiledLocker is a Locker around another one.
type spoiledLocker struct {
	locker.Locker
	ttl     time.Duration
	acquire func(ctx context.Context, try bool, name string, next acquirer) (locker.Lease, error)
	close   func(next func() error) error
}

type acquirer func(ctx context.Context, name string) (locker.Lease, error)

func (s *spoiledLocker) Acquire(ctx context.Context, name string, opts ...locker.AcquireOption) (locker.Lease, error) {
	next := func(ctx context.Context, name string) (locker.Lease, error) {
		return s.Locker.Acquire(ctx, name, opts...)
	}
	if s.acquire == nil {
		return next(ctx, name)
	}
	return s.acquire(ctx, false, name, next)
}

func (s *spoiledLocker) TryAcquire(ctx context.Context, name string, opts ...locker.AcquireOption) (locker.Lease, error) {
	next := func(ctx context.Context, name string) (locker.Lease, error) {
		return s.Locker.TryAcquire(ctx, name, opts...)
	}
	if s.acquire == nil {
		return next(ctx, name)
	}
	return s.acquire(ctx, true, name, next)
}

func (s *spoiledLocker) Close() error {
	if s.close == nil {
		return s.Locker.Close()
	}
	return s.close(s.Locker.Close)
}

// spoiledLease is a Lease around another one.
type spoiledLease struct {
	locker.Lease
	ctx       context.Context
	token     func(locker.Token) locker.Token
	ttl       func(time.Duration) time.Duration
	remaining func(time.Duration) time.Duration
	release   func(ctx context.Context, next func(context.Context) error) error
}

func (l *spoiledLease) Context() context.Context {
	if l.ctx == nil {
		return l.Lease.Context()
	}
	return l.ctx
}

func (l *spoiledLease) Token() locker.Token {
	if l.token == nil {
		return l.Lease.Token()
	}
	return l.token(l.Lease.Token())
}

func (l *spoiledLease) TTL() time.Duration {
	if l.ttl == nil {
		return l.Lease.TTL()
	}
	return l.ttl(l.Lease.TTL())
}

func (l *spoiledLease) Remaining() time.Duration {
	if l.remaining == nil {
		return l.Lease.Remaining()
	}
	return l.remaining(l.Lease.Remaining())
}

func (l *spoiledLease) Release(ctx context.Context) error {
	if l.release == nil {
		return l.Lease.Release(ctx)
	}
	return l.release(ctx, l.Lease.Release)
}

// leasing spoils the leases that a Locker grants.
func leasing(spoil func(ctx context.Context, began time.Time, l *spoiledLease)) func(*spoiledLocker) {
	return func(s *spoiledLocker) {
		s.acquire = func(ctx context.Context, _ bool, name string, next acquirer) (locker.Lease, error) {
			began := time.Now()
			inner, err := next(ctx, name)
			if err != nil {
				return nil, err
			}
			l := &spoiledLease{Lease: inner}
			spoil(ctx, began, l)
			return l, nil
		}
	}
}
