package etcd

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestInspect(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), time.Minute)
	if e, err := c.Inspect(t.Context(), "a/b"); err != nil || e.Held {
		t.Errorf("a free name: %+v, %v", e, err)
	}
	req := request("a/b")
	req.Owner = "host one:12"
	h := tryLock(t, c, req)
	if err := c.Advance(t.Context(), h, 1<<50); err != nil {
		t.Fatal(err)
	}
	enqueue(t, a, c, request("a/b"))
	e, err := c.Inspect(t.Context(), "a/b")
	if err != nil || !e.Held || e.ID != req.ID || e.Owner != req.Owner || e.Waiters != 1 || e.Token <= 1<<50-1000 ||
		time.Since(e.Since).Abs() > time.Minute || e.Remaining <= 0 || e.Remaining > time.Minute {
		t.Errorf("Inspect: %+v, %v", e, err)
	}
	session, err := concurrency.NewSession(a)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	m := concurrency.NewMutex(session, prefix+"/native")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, err := c.Inspect(t.Context(), "native"); err != nil || !e.Held || e.ID != "" || e.Token != 0 || e.Waiters != 0 {
		t.Errorf("a native peer's: %+v, %v", e, err)
	}
}

func TestList(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a, c := admin(t, s), connect(t, url(s, prefix), time.Minute)
	want := []string{"a", "a/b", "a.b", "é", "ü/"}
	for _, name := range want {
		tryLock(t, c, request(name))
	}
	enqueue(t, a, c, request("a"))
	for _, key := range []string{"/x", "/x/y/z", "/%zz/1", "/foreign/1"} {
		if _, err := a.Put(t.Context(), prefix+key, ""); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	collect := func(e driver.Entry) bool {
		if !e.Held || e.Token == 0 || (e.Waiters == 1) != (e.Name == "a") {
			t.Errorf("List: %+v", e)
		}
		got = append(got, e.Name)
		return true
	}
	if err := c.List(t.Context(), collect); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("List gave %q, want %q", got, want)
	}
	n := 0
	if err := c.List(t.Context(), func(driver.Entry) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Errorf("List went on after false: %d, %v", n, err)
	}
	resp, err := a.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2500 { // more than a page
		if _, err := a.Put(t.Context(), fmt.Sprintf("%s/many-%04d/1", prefix, i), "", clientv3.WithLease(resp.ID)); err != nil {
			t.Fatal(err)
		}
	}
	n = 0
	if err := c.List(t.Context(), func(driver.Entry) bool { n++; return true }); err != nil || n != 2505 {
		t.Errorf("List gave %d entries, want 2505: %v", n, err)
	}
}

func findings(t *testing.T, c *conn) map[string]driver.Severity {
	t.Helper()
	list, err := c.Check(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	worst := make(map[string]driver.Severity)
	for _, f := range list {
		if f.Detail == "" || (f.Advice == "") != (f.Severity == driver.Pass) && f.Severity != driver.Note {
			t.Errorf("finding %+v", f)
		}
		worst[f.Check] = max(worst[f.Check], f.Severity)
	}
	t.Logf("%+v", list)
	return worst
}

func TestCheck(t *testing.T) {
	s := testserver.Need(t, testserver.Etcd)
	prefix := unique()
	a := admin(t, s)
	got := findings(t, connect(t, url(s, prefix), 10*time.Second))
	for check, want := range map[string]driver.Severity{"endpoint": driver.Pass, "version": driver.Pass, "members": driver.Note, "rights": driver.Pass, "ttl": driver.Pass} {
		if s, ok := got[check]; !ok || s != want {
			t.Errorf("%s: %v, %v", check, s, ok)
		}
	}
	if k := keys(t, a, prefix); len(k) != 0 {
		t.Errorf("left behind: %v", k)
	}
	if got := findings(t, connect(t, "etcd://"+deadPort(t)+","+s.Addr+prefix, 10*time.Second)); got["endpoint"] != driver.Warn {
		t.Errorf("a dead endpoint: %v", got["endpoint"])
	}
}

func TestCheckRights(t *testing.T) {
	s := testserver.Private(t, testserver.EtcdAuth, nil)
	auth(t, s)
	if got := findings(t, connect(t, "etcd://locker:s3cret@"+s.Addr+"/allowed", 10*time.Second)); got["rights"] != driver.Pass {
		t.Errorf("rights: %v", got["rights"])
	}
	c := connect(t, "etcd://locker:s3cret@"+s.Addr+"/readonly", 10*time.Second)
	if got := findings(t, c); got["rights"] != driver.Fail {
		t.Errorf("rights: %v", got["rights"])
	}
	list, _ := c.checkRights(t.Context())
	if !strings.Contains(fmt.Sprint(list), "grant-permission ROLE readwrite") {
		t.Errorf("no advice: %v", list)
	}
}

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]driver.Severity{"3.4.30": driver.Warn, "3.5.12": driver.Warn, "3.5.13": driver.Pass, "3.6.0": driver.Pass, "3.5.13-rc.1": driver.Warn, "soon": driver.Note} {
		if f := checkVersion("h", version); f.Severity != want {
			t.Errorf("%s: %+v", version, f)
		}
	}
}
