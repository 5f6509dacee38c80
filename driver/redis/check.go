package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Check implements driver.Checker. It needs the right to INFO; what it may not see is a finding.
func (c *conn) Check(ctx context.Context) ([]driver.Finding, error) {
	var findings []driver.Finding
	add := func(check string, s driver.Severity, detail, advice string) {
		findings = append(findings, driver.Finding{Check: check, Severity: s, Detail: detail, Advice: advice})
	}

	switch err := c.probe(ctx, "locker"); {
	case err == nil:
		add("rights", driver.Pass, "all commands are allowed", "")
	case aboutName(err):
		add("rights", driver.Note, "no right for the name that was tried: "+err.Error(), "check that the names in use are allowed, and their companions {"+c.layout.prefix+"*")
	case driver.IsPermanent(err):
		add("rights", driver.Fail, err.Error(), "allow the commands, keys and channels that the documentation of package redis lists")
	default:
		return nil, err
	}

	servers, err := c.client.servers(ctx)
	if err != nil {
		return nil, explain("servers", err)
	}
	for _, s := range servers {
		at := ""
		if s.addr != "" {
			at = s.addr + ": "
		}
		if err := c.checkServer(ctx, s, func(check string, s driver.Severity, detail, advice string) {
			add(check, s, at+detail, advice)
		}); err != nil {
			return nil, err
		}
	}
	return findings, nil
}

// checkServer looks at one of the servers.
func (c *conn) checkServer(ctx context.Context, s server, add func(check string, s driver.Severity, detail, advice string)) error {
	type answer struct {
		info  map[string]string
		clock time.Duration
		rtt   time.Duration
	}
	a, err := callServer(ctx, s, func(ctx context.Context, client redis.UniversalClient) (a answer, err error) {
		before := c.cfg.Now()
		now, err := client.Time(ctx).Result()
		if err != nil {
			return a, err
		}
		a.rtt = c.cfg.Now().Sub(before)
		a.clock = time.Until(now)
		text, err := client.Info(ctx).Result()
		a.info = make(map[string]string)
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				a.info[key] = value
			}
		}
		return a, err
	})
	err = explain("INFO", err)
	switch {
	case errors.Is(err, driver.ErrDenied):
		add("server", driver.Note, "its settings can't be seen: "+err.Error(), "allow INFO to the user that runs the check")
		return nil
	case err != nil:
		return err
	}

	version := a.info["redis_version"]
	if v := a.info["valkey_version"]; v != "" {
		version = "Valkey " + v
	}
	var major, minor int
	if fmt.Sscanf(a.info["redis_version"], "%d.%d", &major, &minor); major < 6 || major == 6 && minor < 2 {
		add("version", driver.Warn, version, "versions before 6.2 aren't tested")
	} else {
		add("version", driver.Pass, version, "")
	}

	switch policy := a.info["maxmemory_policy"]; {
	case policy == "noeviction" || policy != "" && a.info["maxmemory"] == "0":
		add("eviction", driver.Pass, fmt.Sprintf("maxmemory-policy %s, maxmemory %s", policy, a.info["maxmemory"]), "")
	case policy == "":
		add("eviction", driver.Note, "the policy can't be seen", "make sure that it is noeviction")
	default:
		add("eviction", driver.Fail, fmt.Sprintf("maxmemory-policy %s, maxmemory %s: a lock in use may be evicted", policy, a.info["maxmemory"]),
			"set maxmemory-policy noeviction, or keep locks on a server of their own")
	}

	if role := a.info["role"]; role != "master" {
		add("role", driver.Fail, "the server is a "+role, "connect to the primary")
	} else if n := a.info["connected_slaves"]; n != "" && n != "0" {
		add("replicas", driver.Warn, n+" replicas: one that is promoted without a key gives a second holder", "use tokens at the resource; take a backend of kind correctness where two holders do harm")
	} else {
		add("replicas", driver.Pass, "none", "")
	}

	switch aof, rdb := a.info["aof_enabled"], a.info["rdb_last_bgsave_status"]; {
	case rdb == "err":
		add("persistence", driver.Warn, "the last save failed, and the server may refuse to write", "look at the server's log")
	case aof == "1":
		add("persistence", driver.Pass, "append-only file", "")
	default:
		add("persistence", driver.Note, "no append-only file: a restart forgets the locks that are held", "set appendonly yes, or keep a restarted server away for the longest TTL")
	}

	if off := a.clock.Abs() - a.rtt; off > time.Second {
		add("clock", driver.Note, fmt.Sprintf("the server's clock is %v apart from this machine's", a.clock.Round(time.Millisecond)), "synchronise the clocks; a step of the server's clock ends locks or keeps them for longer")
	} else {
		add("clock", driver.Pass, "within a second of this machine's", "")
	}
	if a.rtt > c.ttl/10 {
		add("latency", driver.Warn, fmt.Sprintf("a request took %v, with a TTL of %v", a.rtt.Round(time.Millisecond), c.ttl), "take a longer TTL")
	} else {
		add("latency", driver.Pass, a.rtt.Round(time.Microsecond).String(), "")
	}
	return nil
}
