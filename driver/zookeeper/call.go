package zookeeper

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// call is a request in the client library. The library can't cancel one, and a request that was queued when the
// connection broke is sent on the next one: so its goroutine runs until the library lets go, whoever still waits for it.
type call[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func start[T any](s *session, f func(*zk.Conn) (T, error)) *call[T] {
	c := &call[T]{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.value, c.err = f(s.zk)
	}()
	return c
}

// wait returns the result, or an error when ctx or the session ends before.
func (c *call[T]) wait(ctx context.Context, s *session) (T, error) {
	select {
	case <-c.done:
		return c.value, c.err
	default:
	}
	var none T
	select {
	case <-c.done:
		return c.value, c.err
	case <-s.ctx.Done():
		return none, s.ended()
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// mark is the state of a connection when a request was sent.
type mark struct {
	sent  driver.Instant
	wire  *wire
	reads uint64
}

// sending returns the mark of a request that is about to be sent. Without a connection nothing is sent: what the library
// queues then would be sent when nobody expects it any more.
func (s *session) sending() (mark, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	switch s.state {
	case dead:
		return mark{}, s.cause
	case connecting:
		return mark{}, s.unavailable()
	}
	return mark{sent: s.c.cfg.Now(), wire: s.wire, reads: s.wire.reads.Load()}, nil
}

// overdue is called when a request was given up. If the server has said nothing at all since, for long enough and for
// longer than it has taken before, the connection is taken for dead, so that the library goes on to the next server at
// once: by itself it would wait for two thirds of the timeout.
func (s *session) overdue(m mark) {
	patience := max(s.c.cfg.TTL/8, 3*time.Duration(m.wire.slow.Load()))
	if m.wire.reads.Load() == m.reads && s.c.cfg.Now().Sub(m.sent) >= patience {
		m.wire.Close()
	}
}

// took notes how long an answer has taken. Slow ones are forgotten slowly.
func (s *session) took(m mark) {
	d := int64(s.c.cfg.Now().Sub(m.sent))
	for {
		slow := m.wire.slow.Load()
		if m.wire.slow.CompareAndSwap(slow, max(d, slow-slow/16)) {
			return
		}
	}
}

// request sends one request and waits for its result.
func request[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) (T, error) {
	m, err := s.sending()
	if err != nil {
		var none T
		return none, err
	}
	v, err := start(s, f).wait(ctx, s)
	if ctx.Err() == nil {
		s.took(m)
	} else if err != nil {
		s.overdue(m)
	}
	return v, err
}

// proof notes that a write was answered, which says something about the session if it was sent and answered on one
// connection.
func (s *session) proof(m mark) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.state == up && s.wire == m.wire {
		s.contact.answered(m.sent, s.c.cfg.Now(), s.timeout)
	}
}

// multi is a transaction's result: what each operation gave, or the index and error of the one that failed.
type multi struct {
	results []zk.MultiResponse
	failed  int // -1: none
}

// startMulti sends a transaction. A transaction that fails at one of its operations is written like any other, and was
// answered.
func (s *session) startMulti(m mark, ops []any) *call[multi] {
	return start(s, func(c *zk.Conn) (multi, error) {
		results, err := c.Multi(ops...)
		if err != nil && len(results) < len(ops) {
			return multi{}, err
		}
		s.took(m)
		s.proof(m)
		for i, r := range results {
			if r.Error != nil {
				return multi{results, i}, r.Error
			}
		}
		return multi{results, -1}, nil
	})
}

// transact is startMulti for those who just wait. failed is the index of the operation that failed, or -1 if err isn't an
// operation's.
func (s *session) transact(ctx context.Context, ops []any) (failed int, err error) {
	m, err := s.sending()
	if err != nil {
		return -1, err
	}
	call := s.startMulti(m, ops)
	if _, err := call.wait(ctx, s); err != nil {
		select {
		case <-call.done:
			if len(call.value.results) > 0 {
				return call.value.failed, err
			}
		default:
			s.overdue(m)
		}
		return -1, err
	}
	return -1, nil
}
