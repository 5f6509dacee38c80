package consul

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

// An agent refuses more than 200 connections from one address (http_max_conns_per_client), so each Conn has few,
// whatever the number of locks and waiters. A request under way needs one. What holders wait for never queues behind
// what contenders wait for.
const (
	maxGrants   = 32 // requests that take locks
	maxUpkeep   = 16 // requests that renew, release, clean up
	maxFollowed = 8  // blocking queries
)

// An answer is waited for half a TTL, within these bounds, before its request is taken for lost.
const (
	minSilence = 2 * time.Second
	maxSilence = 5 * time.Second
)

var (
	errClosed = errors.New("consul: the connection is closed")
	errBusy   = errors.New("consul: no request is free in time")
)

// conn is a driver.Conn. Everything it holds is under its session.
type conn struct {
	settings
	cfg       driver.Config
	api       *api.Client
	transport *transport // nil: the client is the program's
	token     func() string

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines

	grants, upkeep lane

	mu       sync.Mutex
	closed   bool
	current  *session              // what the next lock is taken under; nil: to be made
	sessions map[*session]struct{} // those that aren't known to be gone
	joining  map[*session]*joining // sessions being renewed for those who need them; nil: a new one is being made
	asks     map[string]*ask       // acquisitions whose outcome isn't settled, by ID

	manners  manners
	watchers watchers
}

var (
	_ driver.Conn     = (*conn)(nil)
	_ driver.Waiter   = (*conn)(nil)
	_ driver.Advancer = (*conn)(nil)
)

func newConn(c *connector, cfg driver.Config) (*conn, error) {
	conn := &conn{
		settings: c.settings,
		cfg:      cfg,
		api:      c.client,
		token:    c.token,
		grants:   lane{make(chan struct{}, maxGrants), true},
		upkeep:   lane{make(chan struct{}, maxUpkeep), false},
		sessions: make(map[*session]struct{}),
		joining:  make(map[*session]*joining),
		asks:     make(map[string]*ask),
	}
	if conn.token == nil {
		conn.token = func() string { return "" }
	}
	if conn.api == nil {
		var err error
		if conn.api, conn.transport, err = c.newClient(); err != nil {
			return nil, conn.explain(err, "")
		}
	}
	conn.ctx, conn.cancel = context.WithCancel(context.Background())
	conn.watchers.init(conn)
	return conn, nil
}

// query returns the options of a request. Those that only read and decide something are consistent.
func (c *conn) query(ctx context.Context) *api.QueryOptions {
	q := &api.QueryOptions{
		Token:             c.token(),
		Datacenter:        c.dc,
		Namespace:         c.namespace,
		Partition:         c.partition,
		RequireConsistent: true,
	}
	return q.WithContext(ctx)
}

// lane is what requests of one kind go through, a limited number at a time.
type lane struct {
	slots chan struct{}
	apart bool // once sent, a request goes on without the call that wanted it
}

// enter waits for a slot as long as ctx lasts, and returns the context of the request that it is for.
func (c *conn) enter(ctx context.Context, l lane) (request context.Context, leave func(), err error) {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, errors.Join(errBusy, ctx.Err())
	}
	if l.apart {
		ctx = c.ctx
	}
	request, stop := context.WithTimeoutCause(ctx, c.silence(), errSilent)
	return request, func() { stop(); <-l.slots }, nil
}

// put sends a PUT request that isn't a transaction.
func (c *conn) put(ctx context.Context, l lane, path string, in, out any) error {
	ctx, leave, err := c.enter(ctx, l)
	if err != nil {
		return err
	}
	defer leave()
	w := &api.WriteOptions{Token: c.token(), Datacenter: c.dc, Namespace: c.namespace, Partition: c.partition}
	_, err = c.api.Raw().Write(path, in, out, w.WithContext(ctx))
	return err
}

// txn sends a transaction. If it was refused, the error is nil and the refusal isn't.
func (c *conn) txn(ctx context.Context, l lane, ops ...*api.KVTxnOp) (api.TxnResults, *refusal, error) {
	ctx, leave, err := c.enter(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	all := make(api.TxnOps, len(ops))
	for i, op := range ops {
		op.Namespace, op.Partition = c.namespace, c.partition
		all[i] = &api.TxnOp{KV: op}
	}
	ok, resp, _, err := c.api.Txn().Txn(all, c.query(ctx))
	switch {
	case err != nil:
		return nil, nil, err
	case !ok:
		return nil, &refusal{resp.Errors}, nil
	}
	return resp.Results, nil, nil
}

// silence is how long an answer is waited for.
func (c *conn) silence() time.Duration { return min(max(c.cfg.TTL/2, minSilence), maxSilence) }

// look reads a key, and the offset of tokens with it. The entry is nil if there is none.
func (c *conn) look(ctx context.Context, l lane, key string) (entry, offset *api.KVPair, err error) {
	results, no, err := c.txn(ctx, l, &api.KVTxnOp{Verb: api.KVGet, Key: key}, c.offsetOp())
	switch {
	case err != nil:
		return nil, nil, err
	case no != nil && no.says(saysMissing):
		return nil, nil, nil
	case no != nil:
		return nil, nil, no.err()
	}
	for _, r := range results {
		switch r.KV.Key {
		case key:
			entry = r.KV
		case c.offsetKey():
			offset = r.KV
		}
	}
	if entry == nil {
		return nil, nil, errFiltered
	}
	return entry, offset, nil
}

// errFiltered is what an entry that is there and isn't shown means. The text is that of Consul for other requests.
var errFiltered = errors.New("the server doesn't show the key: " + saysDenied)

// Close ends the sessions, and with them what is still locked.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	sessions := c.sessions
	c.sessions, c.current = nil, nil
	c.mu.Unlock()
	c.cancel()

	ctx, stop := context.WithTimeoutCause(context.Background(), 900*time.Millisecond, errSilent)
	defer stop()
	var ending sync.WaitGroup
	for s := range sessions {
		ending.Go(func() {
			if err := c.put(ctx, c.upkeep, "/v1/session/destroy/"+s.id, nil, nil); err != nil {
				c.cfg.Logger.DebugContext(ctx, "the session is left to end by its TTL", "err", c.explain(err, sessionRight))
			}
		})
	}
	ending.Wait()
	c.work.Wait()
	if c.transport != nil {
		c.transport.http.CloseIdleConnections()
	}
	return nil
}
