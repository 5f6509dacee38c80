package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coreos/go-semver/semver"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

// leadershipFixed is the first version whose leaders make sure that they still lead before they confirm a lease.
var leadershipFixed = semver.New("3.5.13")

// Check implements driver.Checker.
func (c *conn) Check(ctx context.Context) ([]driver.Finding, error) {
	ctx = bare(ctx)
	if _, err := c.client.Get(ctx, c.offsetKey()); err != nil && !driver.IsPermanent(c.classify(err)) {
		return nil, c.classify(err)
	}
	findings := c.checkMembers(ctx)
	rights, ok := c.checkRights(ctx)
	findings = append(findings, rights...)
	if ok {
		findings = append(findings, c.checkLatency(ctx), c.checkTTL(ctx))
	}
	return findings, nil
}

func pass(check, format string, args ...any) driver.Finding {
	return driver.Finding{Check: check, Detail: fmt.Sprintf(format, args...)}
}

// checkMembers asks each endpoint for its state.
func (c *conn) checkMembers(ctx context.Context) []driver.Finding {
	endpoints := c.client.Endpoints()
	states := make([]*clientv3.StatusResponse, len(endpoints))
	errs := make([]error, len(endpoints))
	var all sync.WaitGroup
	for i, e := range endpoints {
		all.Go(func() {
			ctx, stop := bounded(ctx)
			defer stop()
			states[i], errs[i] = c.client.Status(ctx, e)
		})
	}
	all.Wait()
	var findings []driver.Finding
	for i, st := range states {
		switch {
		case errs[i] != nil:
			findings = append(findings, driver.Finding{Check: "endpoint", Severity: driver.Warn,
				Detail: fmt.Sprintf("%s: %v", endpoints[i], c.classify(errs[i])), Advice: "bring it back, or take it out of the URL"})
			continue
		case st.Leader == 0:
			findings = append(findings, driver.Finding{Check: "quorum", Severity: driver.Fail,
				Detail: endpoints[i] + " knows no leader", Advice: "bring a majority of the members back"})
		case st.IsLearner:
			findings = append(findings, driver.Finding{Check: "endpoint", Severity: driver.Warn,
				Detail: endpoints[i] + " is a learner, which serves no locks", Advice: "promote it, or take it out of the URL"})
		default:
			findings = append(findings, pass("endpoint", "%s answers and knows the leader", endpoints[i]))
		}
		if len(st.Errors) > 0 {
			findings = append(findings, driver.Finding{Check: "alarm", Severity: driver.Fail,
				Detail: fmt.Sprintf("%s: %v", endpoints[i], st.Errors), Advice: "see etcdctl alarm list"})
		}
		findings = append(findings, checkVersion(endpoints[i], st.Version))
	}
	return append(findings, c.checkSize(ctx))
}

func checkVersion(endpoint, version string) driver.Finding {
	v, err := semver.NewVersion(version)
	switch {
	case err != nil:
		return driver.Finding{Check: "version", Severity: driver.Note, Detail: fmt.Sprintf("%s has the unknown version %q", endpoint, version)}
	case v.LessThan(*leadershipFixed):
		return driver.Finding{Check: "version", Severity: driver.Warn,
			Detail: fmt.Sprintf("%s is etcd %s: a leader that was deposed while its disk stood still goes on confirming leases", endpoint, version),
			Advice: "upgrade to " + leadershipFixed.String() + " or later, or have the protected resource check tokens"}
	}
	return pass("version", "%s is etcd %s", endpoint, version)
}

// checkSize tells how many members may fail.
func (c *conn) checkSize(ctx context.Context) driver.Finding {
	resp, err := c.client.MemberList(ctx)
	if err != nil {
		return driver.Finding{Check: "members", Severity: driver.Note, Detail: "the list of members can't be read: " + c.classify(err).Error()}
	}
	voters := 0
	for _, m := range resp.Members {
		if !m.IsLearner {
			voters++
		}
	}
	if voters < 3 {
		return driver.Finding{Check: "members", Severity: driver.Note,
			Detail: fmt.Sprintf("members with a vote: %d, of which none may fail", voters), Advice: "three members let locks go on while one is away"}
	}
	return pass("members", "members with a vote: %d, of which %d may fail", voters, (voters-1)/2)
}

// checkRights tries what a lock needs, on a name of its own.
func (c *conn) checkRights(ctx context.Context) (findings []driver.Finding, ok bool) {
	advice := fmt.Sprintf("etcdctl role grant-permission ROLE readwrite %q --prefix", c.prefix)
	try := func(what string, do func(ctx context.Context) error) bool {
		ctx, stop := bounded(ctx)
		defer stop()
		if err := c.classify(do(ctx)); err != nil {
			findings = append(findings, driver.Finding{Check: "rights", Severity: driver.Fail, Detail: what + ": " + err.Error(), Advice: advice})
			return false
		}
		return true
	}
	key := c.prefix + "%doctor/" + c.cfg.Owner
	var lease clientv3.LeaseID
	ok = try("make a lease", func(ctx context.Context) error {
		resp, err := c.client.Grant(ctx, 10)
		if err == nil {
			lease = resp.ID
		}
		return err
	}) && try("create, read and delete a key", func(ctx context.Context) error {
		_, err := c.client.Txn(ctx).Then(clientv3.OpPut(key, "", clientv3.WithLease(lease)), clientv3.OpGet(key)).Commit()
		if err == nil {
			_, err = c.client.Delete(ctx, key)
		}
		return err
	}) && try("watch keys", func(ctx context.Context) error {
		r, open := <-c.client.Watch(ctx, key, clientv3.WithCreatedNotify())
		if !open {
			return errors.New("the watch ended at once")
		}
		return r.Err()
	}) && try("renew the lease", func(ctx context.Context) error {
		_, err := c.keepAliveOnce(ctx, lease)
		return err
	})
	if lease != 0 {
		ok = try("revoke the lease", func(ctx context.Context) error { _, err := c.client.Revoke(ctx, lease); return err }) && ok
	}
	if ok {
		findings = append(findings, pass("rights", "leases, and keys that begin with %q: create, read, watch, delete", c.prefix))
	}
	return findings, ok
}

// checkLatency compares how long a write takes with the TTL.
func (c *conn) checkLatency(ctx context.Context) driver.Finding {
	const samples = 5
	var worst time.Duration
	for range samples {
		ctx, stop := bounded(ctx)
		start := time.Now()
		_, err := c.client.Delete(ctx, c.prefix+"%doctor/none") // goes through the log, and changes nothing
		stop()
		if err != nil {
			return driver.Finding{Check: "latency", Severity: driver.Warn, Detail: "a write failed: " + c.classify(err).Error()}
		}
		worst = max(worst, time.Since(start))
	}
	detail := fmt.Sprintf("the slowest of %d writes took %v; the TTL is %v", samples, worst.Round(time.Microsecond), c.cfg.TTL)
	if worst > c.cfg.TTL/20 {
		return driver.Finding{Check: "latency", Severity: driver.Warn, Detail: detail, Advice: "use a longer TTL, or a faster disk for etcd's log"}
	}
	return pass("latency", "%s", detail)
}

// checkTTL compares the TTL with what the server grants.
func (c *conn) checkTTL(ctx context.Context) driver.Finding {
	ctx, stop := bounded(ctx)
	defer stop()
	resp, err := c.client.Grant(ctx, 1)
	if err != nil {
		return driver.Finding{Check: "ttl", Severity: driver.Warn, Detail: "no lease was granted: " + c.classify(err).Error()}
	}
	defer c.client.Revoke(ctx, resp.ID)
	least := time.Duration(resp.TTL) * time.Second
	if c.cfg.TTL < least {
		return driver.Finding{Check: "ttl", Severity: driver.Note,
			Detail: fmt.Sprintf("the TTL of %v is raised to the server's minimum of %v", c.cfg.TTL, least), Advice: fmt.Sprintf("use %v or more", least)}
	}
	return pass("ttl", "the TTL of %v is not below the server's minimum of %v", c.cfg.TTL, least)
}
