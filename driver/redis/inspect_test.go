package redis

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestInspectAndList(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	for what, connector := range map[string]driver.Connector{
		"URL": must(driver.Parse(s.URL("redis") + "?prefix=l[o]ck*:")), "client": New(a, &Options{Prefix: new("l[o]ck*:")}),
	} {
		t.Run(what, func(t *testing.T) {
			a.FlushAll(ctx)
			c := connect(t, connector, 30*time.Second)
			if e, err := c.Inspect(ctx, "free"); err != nil || e.Held || e.Name != "free" || e.Waiters != -1 {
				t.Errorf("free: %+v, %v", e, err)
			}
			req := driver.Request{Name: "a b{c}", ID: newID(), Owner: "host:1 with spaces"}
			h := mustLock(t, c, req)
			e, err := c.Inspect(ctx, req.Name)
			if err != nil || !e.Held || e.ID != req.ID || e.Owner != req.Owner || e.Token != h.Grant().Token ||
				e.Remaining <= 0 || e.Remaining > 30*time.Second || time.Since(e.Since).Abs() > time.Minute {
				t.Errorf("%+v, %v", e, err)
			}
			a.Set(ctx, "l[o]ck*:foreign", "x", 0)
			if e, err := c.Inspect(ctx, "foreign"); err != nil || !e.Held || e.ID != "" || e.Token != 0 || e.Remaining != 0 || !e.Since.IsZero() {
				t.Errorf("foreign: %+v, %v", e, err)
			}
			a.RPush(ctx, "l[o]ck*:list", "x")
			_, err = c.Inspect(ctx, "list")
			wantAnswer(t, err, driver.ErrConflict)

			a.Set(ctx, "lock:other", "x", 0)
			a.Set(ctx, "lock*:other", "x", 0)
			for i := range 2500 {
				a.Set(ctx, c.layout.key("many/"+newID()), i, time.Minute)
			}
			listed := map[string]driver.Entry{}
			if err := c.List(ctx, func(e driver.Entry) bool {
				if _, twice := listed[e.Name]; twice {
					t.Errorf("%s is listed twice", e.Name)
				}
				listed[e.Name] = e
				return true
			}); err != nil {
				t.Fatal(err)
			}
			if len(listed) != 2502 || listed[req.Name].ID != req.ID || !listed["foreign"].Held {
				t.Errorf("%d listed: %+v %+v", len(listed), listed[req.Name], listed["foreign"])
			}
			n := 0
			if err := c.List(ctx, func(driver.Entry) bool { n++; return n < 3 }); err != nil || n != 3 {
				t.Errorf("List went on to %d: %v", n, err)
			}
			mustRelease(t, h)
		})
	}
}

func TestAdvance(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	a := admin(t, s)
	ctx := t.Context()
	c := connectURL(t, s.URL("redis"), 30*time.Second)
	name := newName(t)
	last := uint64(0)
	for _, floor := range []uint64{0, 1, uint64(time.Now().Add(2 * time.Hour).UnixMicro()), 5, 1<<53 + 3, 1<<53 + 2, math.MaxInt64 - 10} {
		h := mustLock(t, c, newRequest(name))
		if h.Grant().Token <= last {
			t.Errorf("token %d after %d", h.Grant().Token, last)
		}
		if err := c.Advance(ctx, h, floor); err != nil {
			t.Fatal(err)
		}
		last = max(h.Grant().Token, floor)
		if ahead := time.Until(time.UnixMicro(int64(floor % (1 << 51)))); ahead > 0 && floor < 1<<51 {
			if keep := a.PTTL(ctx, "{"+h.key+"}:t").Val(); keep < ahead {
				t.Errorf("a floor that is %v ahead is kept for %v", ahead, keep)
			}
		}
		mustRelease(t, h)
		wantAnswer(t, c.Advance(ctx, h, floor+1), driver.ErrNotHeld)
	}
	h := mustLock(t, c, newRequest(name))
	if h.Grant().Token != last+1 {
		t.Errorf("token %d after %d", h.Grant().Token, last)
	}
	wantAnswer(t, c.Advance(ctx, h, math.MaxInt64), driver.ErrConfig)
	a.Del(ctx, "{"+h.key+"}:t")
	mustRelease(t, h)
}

func TestCheck(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	c := connectURL(t, s.URL("redis"), 10*time.Second)
	find := func() map[string]driver.Finding {
		t.Helper()
		findings, err := c.Check(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]driver.Finding{}
		for _, f := range findings {
			if f.Detail == "" || (f.Severity == driver.Pass) != (f.Advice == "") {
				t.Errorf("%+v", f)
			}
			m[f.Check] = f
		}
		return m
	}
	want := func(check string, s driver.Severity) {
		t.Helper()
		if f := find()[check]; f.Severity != s || f.Check == "" {
			t.Errorf("%+v, want %v", f, s)
		}
	}
	for _, check := range []string{"rights", "version", "eviction", "replicas", "clock"} {
		want(check, driver.Pass)
	}
	want("persistence", driver.Note)
	a.ConfigSet(ctx, "maxmemory", "100mb")
	a.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru")
	want("eviction", driver.Fail)
	a.ConfigSet(ctx, "appendonly", "yes")
	want("persistence", driver.Pass)
	replica := testserver.Private(t, testserver.Redis, nil)
	r := admin(t, replica)
	r.ReplicaOf(ctx, "127.0.0.1", "1")
	c2 := connectURL(t, replica.URL("redis"), 10*time.Second)
	if findings, err := c2.Check(ctx); err == nil || driver.IsAnswer(err) {
		// A replica answers the probe with READONLY, an unknown: the check couldn't be made.
		t.Errorf("%+v, %v", findings, err)
	}
	if err := a.Do(ctx, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	limited := connectURL(t, "redis://app:pw@"+s.Addr, 10*time.Second)
	findings, err := limited.Check(ctx)
	if err != nil || len(findings) != 2 || findings[1].Severity != driver.Note || !strings.Contains(findings[1].Detail, "info") {
		t.Errorf("%+v, %v", findings, err)
	}
	if n := a.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	a.Do(ctx, "ACL", "SETUSER", "app", "-del")
	if findings, err := limited.Check(ctx); err != nil || findings[0].Severity != driver.Fail || !strings.Contains(findings[0].Detail, "DEL") {
		t.Errorf("%+v, %v", findings, err)
	}
}
