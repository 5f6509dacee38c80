package consul

import (
	"context"
	"fmt"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

var _ driver.Checker = (*conn)(nil)

// checkName is a key that is never made. No name encodes to it.
const checkName = "%check"

// Check looks at what decides whether locks work and how soon they are free again.
func (c *conn) Check(ctx context.Context) ([]driver.Finding, error) {
	var leader string
	if _, err := c.api.Raw().Query("/v1/status/leader", &leader, c.query(ctx)); err != nil {
		return nil, c.explain(err, "no right")
	}
	findings := []driver.Finding{checkLeader(leader), c.checkSession(ctx), c.checkKeys(ctx), c.checkTakeOver()}
	return append(findings, c.checkVersion(ctx)), nil
}

func checkLeader(leader string) driver.Finding {
	if leader == "" {
		return driver.Finding{Check: "leader", Severity: driver.Fail, Detail: "the cluster has no leader",
			Advice: "without one no lock is granted or renewed: look at the servers"}
	}
	return driver.Finding{Check: "leader", Detail: "the leader is " + leader}
}

// checkSession makes sure that a session of the TTL can be made.
func (c *conn) checkSession(ctx context.Context) driver.Finding {
	f := driver.Finding{Check: "session", Detail: fmt.Sprintf("sessions of %v are granted, and may be made and renewed", c.cfg.TTL)}
	s, err := c.join(ctx, nil)
	if err == nil {
		err = c.renew(ctx, c.upkeep, s)
		c.leave(s)
	}
	if err != nil {
		f.Severity, f.Detail = driver.Fail, err.Error()
		f.Advice = "set a TTL within the server's bounds, or lower session_ttl_min; give the token session:write"
	}
	return f
}

// checkKeys makes sure that the names' keys may be written, by a transaction that is refused after the rights are
// checked.
func (c *conn) checkKeys(ctx context.Context) driver.Finding {
	key := c.under() + checkName
	f := driver.Finding{Check: "keys", Detail: "keys like " + strconv.Quote(key) + " may be read and written"}
	_, no, err := c.txn(ctx, c.upkeep,
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: 1}, &api.KVTxnOp{Verb: api.KVDelete, Key: key})
	if err == nil && no != nil && no.says(saysDenied) {
		err = no.err()
	}
	if err = c.explain(err, "key:write on "+key); err != nil {
		f.Severity, f.Detail = driver.Fail, err.Error()
		f.Advice = fmt.Sprintf("give the token: key_prefix %q { policy = \"write\" }", c.under())
	}
	return f
}

func (c *conn) checkTakeOver() driver.Finding {
	f := driver.Finding{Check: "take-over", Detail: fmt.Sprintf(
		"after a crash the next holder waits up to %v: twice the TTL %v, and the lock-delay %v", 2*c.cfg.TTL+c.lockDelay, c.cfg.TTL, c.lockDelay)}
	if c.lockDelay < c.cfg.TTL/2 {
		f.Severity = driver.Note
		f.Detail += "; a session that is ended early has a new holder before the old one may know"
		f.Advice = fmt.Sprintf("a lock-delay of at least half of the TTL, lockdelay=%v, leaves the old holder the time to notice", c.cfg.TTL/2)
	}
	return f
}

func (c *conn) checkVersion(ctx context.Context) driver.Finding {
	f := driver.Finding{Check: "version"}
	var self struct{ Config struct{ Version string } }
	_, err := c.api.Raw().Query("/v1/agent/self", &self, c.query(ctx))
	if err != nil {
		f.Severity, f.Detail = driver.Note, "the agent's version isn't known: "+c.explain(err, "agent:read on the agent's node").Error()
		f.Advice = "agent:read shows it; locks don't need it"
		return f
	}
	f.Detail = "the agent's version is " + self.Config.Version
	return f
}
