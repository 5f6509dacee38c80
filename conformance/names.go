package conformance

import (
	"strings"
	"time"

	"github.com/leasekit/locker"
)

var nameCases = []testCase{
	{name: "NAME-01", rule: "No name is in the way of another one that begins the same, contains it, or lies below it.", run: noPrefixHazard},
	{name: "NAME-03", rule: "Every valid name works, whatever characters it holds, and excludes itself.", run: everyName},
	{name: "NAME-07", rule: "Something that isn't a lock where the entry would stand is an ErrConflict, soon, and is left as it is.", needs: []need{needOccupy}, run: conflict},
	{name: "NAMES-1", rule: "Names that look alike are different: case, normalisation, spaces, percent signs and separators count.", run: lookAlikes},
}

func noPrefixHazard(e *env) {
	a, b := e.open(), e.open()
	base := e.name("p")
	for _, pair := range []struct {
		holds  string
		others []string
	}{
		{base + "/b", []string{base, base + "/", base + "/b/c", base + "b", base + ".b", base + "/b/", base + "//b", base + "/b-0000000001", base + "/b:t"}},
		{base, []string{base + "/b", base + "/", base + "/b/c", base + ":t", base + ":q", base + "%2Fb", base + "-lock", "/" + base, base + "*"}},
	} {
		l := e.acquire(a, pair.holds)
		for _, other := range pair.others {
			e.independent(b, other, pair.holds)
		}
		e.held(b, pair.holds)
		e.release(l)
	}
	e.free(b, base)
}

// independent sees that a name can be had while another is held.
func (e *env) independent(c *client, name, beside string) {
	l, err := c.TryAcquire(e.ctx, name)
	if err != nil {
		e.fail("%q can't be had while %q is held: %v", name, beside, err)
	}
	e.granted(l, err)
	e.release(l)
}

func everyName(e *env) {
	a, b := e.open(), e.open()
	t := e.tag
	for _, name := range []string{
		"file:///var/" + t, t + "//b", ".", "..", t + "/../b", "/" + t + "/", "zookeeper", "zookeeper/" + t, t + "\x00", t + "\x7f", t + "\u0085",
		t + "\ud7ff", t + "\ue000", t + "\ufffd", t + "\U0001f512", t + strings.Repeat("n", 200), t + strings.Repeat("ü", 240), " ", t + " ", " " + t, t + "\n", t + "\t",
		t + "*?[x]", t + "{a}b{", "{" + t, "}" + t, t + "%", t + "%41", t + "+", t + "&a=b", t + "#f", t + "'\"`$(x);", t + "\\x", t + ":t", "-" + t, "_c_" + t, "lock-0000000001" + t, "con", "~",
	} {
		l := e.acquire(a, name)
		got, err := b.TryAcquire(e.ctx, name)
		e.refused(got, err, locker.ErrHeld)
		e.Equal(name, l.Name())
		e.release(l)
		e.free(b, name)
	}
}

func lookAlikes(e *env) {
	t := e.tag
	a, b := e.open(), e.open()
	for _, alike := range [][]string{
		{t + "job", t + "Job", t + "JOB", strings.ToUpper(t) + "job"},
		{t + "é", t + "e\u0301", t + "É"},
		{t + "x", t + "x ", " " + t + "x", t + "x\n", t + "x\x00"},
		{t + "a/b", t + "a%2Fb", t + "a%2fb", t + "a%252Fb", t + "a\\b", t + "a:b", t + "a_b", t + "a-b", t + "a.b"},
		{t + "+", t + " ", t + "%20", t + "%2B"},
		{t + strings.Repeat("n", 300) + "1", t + strings.Repeat("n", 300) + "2", t + strings.Repeat("n", 300)},
	} {
		var leases []locker.Lease
		for i, name := range alike {
			c := a
			if i%2 == 1 {
				c = b
			}
			l, err := c.TryAcquire(e.ctx, name)
			if err != nil {
				e.fail("%q can't be had while %q are held: %v", name, alike[:i], err)
			}
			e.granted(l, err)
			leases = append(leases, l)
		}
		for _, l := range leases {
			if err := l.Release(e.ctx); err != nil {
				e.fail("release of %q: %v", l.Name(), err)
			}
		}
	}
}

func conflict(e *env) {
	name := e.name("foreign")
	c := e.open()
	check, err := e.b.Admin.Occupy(e.ctx, name)
	e.NoError(err, "Admin.Occupy")
	began := time.Now()
	w := e.wait(c, name)
	w.refused(e.patience, locker.ErrConflict)
	e.note("conflict after %v", time.Since(began))
	l, err := c.TryAcquire(e.ctx, name)
	e.refused(l, err, locker.ErrConflict)
	e.NoError(check(e.ctx), "what isn't a lock was changed")
	e.free(c, name)
}
