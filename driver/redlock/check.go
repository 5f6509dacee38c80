package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Check implements driver.Checker. It needs the right to INFO. Each node has findings of its own, which begin with its
// name; what nodes have in common comes last.
func (c *conn) Check(ctx context.Context) ([]driver.Finding, error) {
	replies := ask(c, attempts, c.limit, c.nodes, c.examine)
	exams := make([]*exam, len(c.nodes))
	errs := make([]error, len(c.nodes))
	answered := 0
	for range c.nodes {
		select {
		case r := <-replies:
			exams[r.node.index], errs[r.node.index] = r.value, r.err
			if r.heard() || driver.IsPermanent(r.err) {
				answered++
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if answered == 0 {
		return nil, undecided("no node answers", errs)
	}

	var findings []driver.Finding
	add := func(check string, s driver.Severity, detail, advice string) {
		findings = append(findings, driver.Finding{Check: check, Severity: s, Detail: detail, Advice: advice})
	}
	for i, e := range exams {
		if errs[i] != nil {
			add("node", driver.Fail, errs[i].Error(), "bring it back; locks go on as long as a majority answers")
			continue
		}
		e.findings(c, func(check string, s driver.Severity, detail, advice string) {
			add(check, s, c.nodes[i].name+": "+detail, advice)
		})
	}
	c.compare(exams, add)
	return findings, nil
}

// exam is what a node says about itself.
type exam struct {
	name   string
	rights error
	info   map[string]string
	ahead  time.Duration // of its clock, compared with this machine's
	rtt    time.Duration // the uncertainty of that
}

func (c *conn) examine(ctx context.Context, n *node, client *redis.Client) (*exam, error) {
	e := &exam{name: n.name, rights: c.probe(ctx, n, client, "locker")}
	if e.rights != nil && !driver.IsPermanent(e.rights) {
		return nil, e.rights
	}
	before := c.cfg.Now()
	now, err := client.Time(ctx).Result()
	if err == nil {
		e.rtt, e.ahead = c.cfg.Now().Sub(before), -time.Since(now)
		e.info, err = serverInfo(ctx, client)
	}
	if err != nil {
		return nil, n.explain("INFO", err)
	}
	return e, nil
}

type adder func(check string, s driver.Severity, detail, advice string)

// findings judges one node.
func (e *exam) findings(c *conn, add adder) {
	switch {
	case e.rights == nil:
		add("rights", driver.Pass, "all commands are allowed", "")
	case aboutName(e.rights):
		add("rights", driver.Note, "no right for the name that was tried: "+e.rights.Error(), "check that the names in use are allowed, and their companions {"+c.layout.prefix+"*")
	default:
		add("rights", driver.Fail, e.rights.Error(), "allow the commands, keys and channels that the documentation of package redlock lists")
	}

	version := e.info["redis_version"]
	if v := e.info["valkey_version"]; v != "" {
		version = "Valkey " + v
	}
	var major, minor int
	if fmt.Sscanf(e.info["redis_version"], "%d.%d", &major, &minor); major < 6 || major == 6 && minor < 2 {
		add("version", driver.Warn, version, "versions before 6.2 aren't tested")
	} else {
		add("version", driver.Pass, version, "")
	}

	switch policy := e.info["maxmemory_policy"]; {
	case policy == "noeviction" || policy != "" && e.info["maxmemory"] == "0":
		add("eviction", driver.Pass, fmt.Sprintf("maxmemory-policy %s, maxmemory %s", policy, e.info["maxmemory"]), "")
	case policy == "":
		add("eviction", driver.Note, "the policy can't be seen", "make sure that it is noeviction")
	default:
		add("eviction", driver.Fail, fmt.Sprintf("maxmemory-policy %s, maxmemory %s: a lock in use may be evicted", policy, e.info["maxmemory"]),
			"set maxmemory-policy noeviction, or keep locks on a server of their own")
	}

	if mode := e.info["redis_mode"]; mode != "standalone" && mode != "" {
		add("role", driver.Fail, "the server runs as "+mode, "give Redlock servers of their own")
	} else if role := e.info["role"]; role != "master" {
		add("role", driver.Fail, "the server is a "+role, "give Redlock masters that are independent of each other")
	} else if n := e.info["connected_slaves"]; n != "" && n != "0" {
		add("replicas", driver.Warn, n+" replicas: one that is promoted lacks the newest keys", "don't let replicas be promoted: Redlock lives without a node, and not with one that forgets")
	} else {
		add("replicas", driver.Pass, "none", "")
	}

	switch aof, rdb := e.info["aof_enabled"], e.info["rdb_last_bgsave_status"]; {
	case rdb == "err":
		add("persistence", driver.Warn, "the last save failed, and the server may refuse to write", "look at the server's log")
	case aof == "1":
		add("persistence", driver.Pass, "append-only file; with appendfsync always a crash forgets nothing", "")
	default:
		add("persistence", driver.Note, "no append-only file: a restart forgets the locks that are held", "set appendonly yes and appendfsync always, or keep a restarted server away for the longest TTL")
	}

	if e.rtt > c.ttl/10 {
		add("latency", driver.Warn, fmt.Sprintf("a request took %v, with a TTL of %v", e.rtt.Round(time.Millisecond), c.ttl), "take a longer TTL")
	} else {
		add("latency", driver.Pass, e.rtt.Round(time.Microsecond).String(), "")
	}
}

// compare judges what the nodes are to each other.
func (c *conn) compare(exams []*exam, add adder) {
	byID := make(map[string]*exam)
	var same []error
	var first, last *exam // by their clocks
	compared := 0
	for _, e := range exams {
		if e == nil {
			continue
		}
		compared++
		if other := byID[e.info["run_id"]]; other != nil {
			same = append(same, fmt.Errorf("%s and %s are the same server", other.name, e.name))
		}
		byID[e.info["run_id"]] = e
		if first == nil || e.ahead < first.ahead {
			first = e
		}
		if last == nil || e.ahead > last.ahead {
			last = e
		}
	}
	if len(same) > 0 {
		add("duplicates", driver.Fail, errors.Join(same...).Error(), "name each server once: a majority has to consist of different ones")
	} else {
		add("duplicates", driver.Pass, fmt.Sprintf("%d nodes of %d were compared, and all differ", compared, len(c.nodes)), "")
	}
	if first == nil {
		return
	}
	if apart := last.ahead - first.ahead; apart-first.rtt-last.rtt > time.Second {
		add("clocks", driver.Warn, fmt.Sprintf("the clocks of %s and %s are %v apart", first.name, last.name, apart.Round(time.Millisecond)),
			"synchronise them: after a loss of data tokens rise only as far as the clocks agree, and a step ends locks or keeps them for longer")
	} else {
		add("clocks", driver.Pass, fmt.Sprintf("all within %v of each other", max(apart, time.Millisecond).Round(time.Millisecond)), "")
	}
	if off := max(last.ahead.Abs(), first.ahead.Abs()); off-max(first.rtt, last.rtt) > time.Second {
		add("clock", driver.Note, fmt.Sprintf("a server's clock is up to %v apart from this machine's", off.Round(time.Millisecond)), "synchronise the clocks")
	}
}
