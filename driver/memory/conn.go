package memory

import (
	"errors"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

var (
	_ driver.Conn      = (*conn)(nil)
	_ driver.Queuer    = (*conn)(nil)
	_ driver.Advancer  = (*conn)(nil)
	_ driver.Inspector = (*conn)(nil)
	_ driver.Checker   = (*conn)(nil)
)

// conn is one client of a store.
type conn struct {
	store *Store
	ttl   time.Duration
	now   func() driver.Instant
	close sync.Once
	done  chan struct{} // closed by Close
}

var errClosed = errors.New("memory: connection closed")

func (c *conn) Close() error {
	c.close.Do(func() { close(c.done) })
	return nil
}

func (c *conn) closed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// hold is an entry. The store's mutex guards what changes.
type hold struct {
	conn  *conn
	req   driver.Request
	since time.Time // by the wall clock, for people
	token uint64
	sent  driver.Instant // at the grant

	expires driver.Instant
}

func (h *hold) Grant() driver.Grant {
	return driver.Grant{Token: h.token, Renewal: driver.Renewal{Sent: h.sent, TTL: h.conn.ttl}}
}
