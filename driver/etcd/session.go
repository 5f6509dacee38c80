package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

// session is an etcd lease that entries belong to. Its fields but the first three are guarded by conn.mu.
type session struct {
	id   clientv3.LeaseID
	ctx  context.Context // ends when the lease is known to be gone
	gone context.CancelCauseFunc

	sent    driver.Instant // when the request was sent that last set the TTL
	ttl     time.Duration  // as granted
	users   int            // claims that refer to it
	retired bool           // no new claims: an entry may appear that nobody wants. It is revoked after its last user.
}

// fit returns the session that new entries may belong to, if at least half of its TTL is left.
func (c *conn) fit() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.current; s != nil && c.cfg.Now().Sub(s.sent) < s.ttl/2 {
		return s
	}
	return nil
}

// session returns the session for new entries. It renews it when less than half of its TTL is left, and makes one when
// there is none.
func (c *conn) session(ctx context.Context) (*session, error) {
	if s := c.fit(); s != nil {
		return s, nil
	}
	select {
	case c.gate <- struct{}{}:
		defer func() { <-c.gate }()
	case <-ctx.Done():
		return nil, c.classify(ctx.Err())
	}
	if s := c.fit(); s != nil {
		return s, nil
	}
	ctx, stop := bounded(ctx)
	defer stop()
	c.mu.Lock()
	s := c.current
	c.mu.Unlock()
	if s != nil {
		err := c.keepAlive(ctx, s)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errNoSession) {
			return nil, err
		}
	}
	return c.grant(ctx)
}

// grant makes a session. A lease whose grant was not heard of has no entries and expires by itself.
func (c *conn) grant(ctx context.Context) (*session, error) {
	sent := c.cfg.Now()
	resp, err := c.client.Grant(ctx, int64((c.cfg.TTL+time.Second-1)/time.Second))
	if err != nil {
		return nil, c.classify(err)
	}
	s := &session{id: resp.ID, sent: sent, ttl: time.Duration(resp.TTL) * time.Second}
	s.ctx, s.gone = context.WithCancelCause(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = s
	c.sessions[s] = struct{}{}
	return s, nil
}

// keepAlive renews a session with one request. errNoSession says that the lease is gone; what was held under it has been
// reported as lost then.
func (c *conn) keepAlive(ctx context.Context, s *session) error {
	sent := c.cfg.Now()
	ttl, err := c.keepAliveOnce(ctx, s.id)
	if errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken) && c.login != nil {
		if err := c.login.renew(ctx); err != nil {
			return c.classify(err)
		}
		sent = c.cfg.Now()
		ttl, err = c.keepAliveOnce(ctx, s.id)
	}
	if err != nil {
		return c.classify(err)
	}
	if ttl <= 0 {
		return c.lose(s, "it has expired or was revoked")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.sent.Before(sent) {
		s.sent, s.ttl = sent, ttl
	}
	return nil
}

func (c *conn) keepAliveOnce(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	ctx, stop := context.WithCancel(ctx) // ends the stream
	defer stop()
	stream, err := c.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		// The stream has ended, and only receiving says why.
		if _, why := stream.Recv(); why != nil {
			err = why
		}
		return 0, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

// lose notes that a session's lease is gone, and all its entries with it.
func (c *conn) lose(s *session, why string) error {
	err := fmt.Errorf("%w %x: %s", errNoSession, s.id, why)
	lost := fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
	c.mu.Lock()
	if s.ctx.Err() != nil { // all were told
		c.mu.Unlock()
		return err
	}
	s.gone(lost)
	c.forget(s)
	var tell []func(error)
	for _, cl := range c.claims {
		if cl.session == s && cl.lost != nil {
			tell = append(tell, cl.lost)
		}
	}
	c.mu.Unlock()
	for _, f := range tell {
		f(lost)
	}
	return err
}

// retire keeps a session from getting new users, because an entry may appear under it that nobody wants. It needs conn.mu.
func (c *conn) retire(s *session) {
	s.retired = true
	if c.current == s {
		c.current = nil
	}
}

// forget needs conn.mu.
func (c *conn) forget(s *session) {
	delete(c.sessions, s)
	if c.current == s {
		c.current = nil
	}
}

// revoke ends a session for good: its entries are gone, and a request that arrives later finds no lease.
func (c *conn) revoke(ctx context.Context, s *session) error {
	ctx, stop := bounded(ctx)
	defer stop()
	_, err := c.client.Revoke(ctx, s.id)
	if err = c.classify(err); err != nil && !errors.Is(err, errNoSession) {
		return err
	}
	s.gone(driver.ErrNotHeld)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(s)
	return nil
}

// validity returns what a hold under s has: the TTL, counted from the session's last renewal.
func (c *conn) validity(s *session) driver.Renewal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return driver.Renewal{Sent: s.sent, TTL: s.ttl}
}
