package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/leasekit/locker/driver"
)

const (
	// attempt bounds a request whose caller has more time: a member that is cut off keeps a request for 7 s, one that is
	// paused for ever, and the next request goes to another.
	attempt = 2 * time.Second
	// grace is how long a request that creates an entry goes on after its caller has left, so that Undo knows what
	// became of it.
	grace = time.Second
)

// conn is a client and the etcd leases that its entries belong to.
type conn struct {
	cfg     driver.Config
	prefix  string
	client  *clientv3.Client
	leases  pb.LeaseClient // for single keep-alives: the client's own tries again and hides when it sent them
	owned   bool           // the client is closed with the conn
	link    *link          // nil if the program brought the client
	login   *login         // nil without a user
	ctx     context.Context
	cancel  context.CancelFunc
	flights sync.WaitGroup // requests that may outlive their callers

	gate chan struct{} // held by who makes or renews the session for all others

	mu       sync.Mutex
	closed   bool
	current  *session
	sessions map[*session]struct{} // those that may have entries
	claims   map[string]*claim     // by key
}

// claim is what an acquisition may have at the server: an entry that holds the name, or a place in its queue.
type claim struct {
	session *session      // under which its entry was asked for last
	flying  chan struct{} // closed when the request under way has ended; nil if none is
	unknown int           // requests whose outcome isn't known: each may create the entry later
	entry   bool          // an entry may be there
	lost    func(error)   // tells the engine about a loss; nil unless the name is held
}

// open makes a conn. It sends nothing.
func open(cn *connector, cfg driver.Config) (*conn, error) {
	c := &conn{
		cfg:      cfg,
		prefix:   cn.prefix,
		client:   cn.client,
		gate:     make(chan struct{}, 1),
		sessions: make(map[*session]struct{}),
		claims:   make(map[string]*claim),
	}
	if c.client == nil {
		if err := c.dial(cn); err != nil {
			return nil, err
		}
	}
	if c.client.ActiveConnection() == nil {
		return nil, errors.New("the client has no connection: it has to come from clientv3.New")
	}
	c.leases = pb.NewLeaseClient(c.client.ActiveConnection())
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// ask finds out whether the configuration is right, as far as a server answers.
func (c *conn) ask(ctx context.Context) error {
	_, err := c.client.Get(bare(ctx), c.offsetKey())
	return c.classify(err)
}

// bare takes outgoing gRPC metadata off a context: what a program has set for its own calls isn't for etcd.
func bare(ctx context.Context) context.Context {
	if _, ok := metadata.FromOutgoingContext(ctx); !ok {
		return ctx
	}
	return metadata.NewOutgoingContext(ctx, metadata.MD{})
}

// bounded bounds a single request.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(bare(ctx), attempt)
}

// stake returns the claim of a key and the session that its entry is to belong to: the one it has belonged to before, if
// that still lives, or the current one.
func (c *conn) stake(ctx context.Context, key string) (*claim, error) {
	c.mu.Lock()
	cl := c.claims[key]
	c.mu.Unlock()
	if cl != nil {
		switch err := c.refresh(ctx, cl.session); {
		case err == nil:
			return cl, nil
		case !errors.Is(err, errNoSession):
			return nil, err
		}
	}
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if cl == nil {
		cl = &claim{}
		c.claims[key] = cl
	} else {
		cl.session.users--
	}
	cl.session, cl.unknown, cl.entry = s, 0, false // what there was has gone with its session
	s.users++
	return cl, nil
}

// drop ends the claim of a key, whose entry is gone or will go with its session.
func (c *conn) drop(ctx context.Context, key string) {
	c.mu.Lock()
	cl := c.claims[key]
	if cl == nil {
		c.mu.Unlock()
		return
	}
	delete(c.claims, key)
	s := cl.session
	s.users--
	if cl.unknown > 0 {
		c.retire(s)
	}
	over := s.retired && s.users == 0 && s.ctx.Err() == nil
	c.mu.Unlock()
	if over {
		c.revoke(ctx, s) // if it fails, Renew tries again; unless it does, the lease expires
	}
}

// put commits a transaction that may create cl's entry. It goes on for a while after ctx has ended.
func (c *conn) put(ctx context.Context, cl *claim, txn func(context.Context) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
	type result struct {
		resp *clientv3.TxnResponse
		err  error
	}
	results := make(chan result, 1)
	flying := make(chan struct{})
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errClosed
	}
	cl.flying = flying
	c.flights.Add(1)
	c.mu.Unlock()

	rctx, cancel := context.WithCancel(bare(context.WithoutCancel(ctx)))
	stop := context.AfterFunc(c.ctx, cancel)
	go func() {
		defer c.flights.Done()
		resp, err := txn(rctx)
		stop()
		cancel()
		err = c.classify(err)
		c.mu.Lock()
		switch {
		case err == nil:
			cl.entry = true
		case !driver.IsPermanent(err) && !errors.Is(err, errNoSession) && !errors.Is(err, errUnsent):
			cl.entry = true
			cl.unknown++
		}
		cl.flying = nil
		c.mu.Unlock()
		close(flying)
		results <- result{resp, err}
	}()
	select {
	case r := <-results:
		return r.resp, r.err
	case <-ctx.Done():
		time.AfterFunc(grace, cancel)
		return nil, c.classify(ctx.Err())
	}
}

// Close implements driver.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	over := make([]*session, 0, len(c.sessions))
	for s := range c.sessions {
		over = append(over, s)
	}
	c.mu.Unlock()
	c.cancel()

	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, stop := context.WithTimeout(context.Background(), 700*time.Millisecond)
		defer stop()
		var revoked sync.WaitGroup
		for _, s := range over {
			revoked.Go(func() { c.revoke(ctx, s) })
		}
		revoked.Wait()
		if c.owned {
			c.client.Close()
		}
		c.flights.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(time.Second):
		return fmt.Errorf("etcd: closing takes longer than a second")
	}
}
