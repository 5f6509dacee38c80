package zookeeper

import (
	"time"

	"github.com/leasekit/locker/driver"
)

// contact works out since when the servers have certainly heard from a session, which is what its leases' deadlines count
// from. docs/design.md has the argument; in short:
//
//   - When a connection is made, the leader itself takes note of the session. That counts once a write on the same
//     connection was answered, since only a leader with a majority behind it answers writes.
//   - Later requests are noted by the server that the client is connected to. The leader hears of them with that server's
//     next report, every half tick, and a write that is answered after the report proves that it has arrived.
//
// It needs the Conn's mutex.
type contact struct {
	base   driver.Instant // the session can't end before base + its timeout
	dialed driver.Instant // before the present connection asked for the session
	writes []exchange     // answered on the present connection, oldest first
}

// exchange is a write that was answered.
type exchange struct{ sent, answered driver.Instant }

const (
	// maxWrites and spacing let writes reach back half of the timeout, more than the report takes.
	maxWrites = 16
	spacing   = 32
)

// report bounds how long a server takes to tell the leader of a session that it has heard from. It is half a tick, which
// nobody tells the client; but a timeout has at least two ticks, unless the server was configured otherwise, so a quarter
// of the timeout is enough. The rest is for a server that is late.
func report(timeout time.Duration) time.Duration { return timeout/4 + timeout/spacing }

// connected notes a new connection.
func (c *contact) connected(dialed driver.Instant) {
	c.dialed = dialed
	c.writes = c.writes[:0]
}

// proved returns what base becomes when a write that is sent at the given time is answered.
func (c *contact) proved(sent driver.Instant, timeout time.Duration) driver.Instant {
	base := c.base
	if base.Before(c.dialed) {
		base = c.dialed
	}
	for i := len(c.writes) - 1; i >= 0; i-- {
		if w := c.writes[i]; sent.Sub(w.answered) >= report(timeout) {
			if base.Before(w.sent) {
				base = w.sent
			}
			break
		}
	}
	return base
}

// answered notes that a write was sent and answered on the present connection.
func (c *contact) answered(sent, answered driver.Instant, timeout time.Duration) {
	c.base = c.proved(sent, timeout)
	if n := len(c.writes); n > 0 && sent.Sub(c.writes[n-1].sent) < timeout/spacing {
		return
	}
	if len(c.writes) == maxWrites {
		c.writes = append(c.writes[:0], c.writes[1:]...)
	}
	c.writes = append(c.writes, exchange{sent, answered})
}
