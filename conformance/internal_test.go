package conformance

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasekit/locker"
	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	doc, err := os.ReadFile("../docs/conformance.md")
	require.NoError(t, err)
	seen := make(map[string]bool)
	name := regexp.MustCompile(`^[A-Z]+-[0-9]+[a-z]?$`)
	for _, c := range cases {
		require.Regexp(t, name, c.name)
		require.False(t, seen[c.name], "two cases are called %s", c.name)
		seen[c.name] = true
		require.True(t, strings.HasSuffix(c.rule, "."), "the rule of %s isn't a sentence", c.name)
		require.NotNil(t, c.run)
		require.Contains(t, string(doc), "| "+c.name+" | "+c.rule+" |", "docs/conformance.md lists all cases")
		for _, n := range c.needs {
			require.Contains(t, needs, n)
		}
	}
	for _, n := range needs {
		require.False(t, n.met(&Backend{}), "%s is met by an empty Backend", n)
	}
}

// parseLog makes the lines of a witness from a text: "who token" for each line of the log, with ! if it isn't confirmed.
func parseLog(text string) (lines []line) {
	for s := range strings.SplitSeq(text, ",") {
		plain, unconfirmed := strings.CutSuffix(strings.TrimSpace(s), " !")
		who, token, _ := strings.Cut(plain, " ")
		lines = append(lines, line{who: who, token: locker.Token(token[0] - '0'), confirmed: !unconfirmed})
	}
	return lines
}

func TestJudge(t *testing.T) {
	for _, test := range []struct{ lines, says string }{
		{"A 1, A 1, B 2, B 2, A 3", ""},
		{"A 1, B 2 !, A 1, B 2", ""}, // B's first line proves nothing
		{"A 1, B 2, A 1 !", ""},      // nor does A's last one
		{"B 2, A 1 !", ""},           // A was told before it could confirm
		{"A 1, B 2, A 1", "two holders at once"},
		{"A 1, B 2, B 2, C 3, B 2", "two holders at once"},
		{"A 2, B 1", "tokens don't rise"},
		{"A 1, A 2, A 1", "two holders at once"},
		{"A 1, B 1", "was granted to A and to B"},
		{"A 5, A 5, A 4", "tokens don't rise"},
	} {
		err := judge(parseLog(test.lines))
		if test.says == "" {
			require.NoError(t, err, test.lines)
		} else {
			require.ErrorContains(t, err, test.says, test.lines)
		}
	}
}

// leaseUntil is a lease that lives until it is ended.
type leaseUntil struct {
	locker.Lease
	token locker.Token
	ctx   context.Context
	end   context.CancelFunc
}

func newLeaseUntil(token locker.Token) *leaseUntil {
	l := &leaseUntil{token: token}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

func (l *leaseUntil) Token() locker.Token      { return l.token }
func (l *leaseUntil) Context() context.Context { return l.ctx }

func TestWitnessFile(t *testing.T) {
	path := t.TempDir() + "/witness"
	one, err := newWitnessFile(path)
	require.NoError(t, err)
	defer one.file.Close()
	other, err := newWitnessFile(path)
	require.NoError(t, err)
	defer other.file.Close()

	a := newLeaseUntil(1)
	v := one.enter("A", a)
	require.True(t, v.write())
	require.NoError(t, one.check())
	b := other.enter("B", newLeaseUntil(2))
	require.True(t, b.write())
	require.NoError(t, one.check())
	lines, err := other.read()
	require.NoError(t, err)
	require.Len(t, lines, 4)
	require.True(t, lines[3].confirmed)

	ended := newLeaseUntil(3)
	ended.end()
	require.False(t, other.enter("C", ended).write(), "a lease that has ended confirms nothing")
	require.NoError(t, one.check())

	require.True(t, v.write(), "A's lease lives, while B's does")
	require.ErrorContains(t, other.check(), "two holders at once")

	// A contender that was killed in the middle of a line.
	_, err = one.file.WriteString("write A")
	require.NoError(t, err)
	require.ErrorContains(t, one.check(), "two holders at once")
}

func TestHistory(t *testing.T) {
	h := &history{}
	now := h.now
	h.add(0, now(), "grant", 1)
	h.add(0, now(), "write", 1)
	h.add(0, now(), "end", 1)
	h.add(1, now(), "grant", 2)
	require.NoError(t, h.check(time.Minute))
	h.add(0, now(), "write", 1)
	require.Error(t, h.check(time.Minute), "a write by one that holds it no more")

	h = &history{}
	h.add(0, now(), "grant", 2)
	h.add(0, now(), "end", 2)
	h.add(1, now(), "grant", 1)
	require.Error(t, h.check(time.Minute), "a token that falls")

	h = &history{}
	h.add(0, h.now(), "grant", 1)
	h.add(1, h.now(), "grant", 2)
	require.Error(t, h.check(time.Minute), "two holders")
}

// TestHistoryOverlap shows what a release that overlaps the next grant stands for: the lease ended somewhere within.
func TestHistoryOverlap(t *testing.T) {
	h := &history{}
	h.add(0, h.now(), "grant", 1)
	end := h.now()
	h.add(1, h.now(), "grant", 2)
	h.add(0, end, "end", 1)
	require.NoError(t, h.check(time.Minute))
}

func TestMachineNotesAStall(t *testing.T) {
	m := watchMachine(true)
	require.Zero(t, m.stop())
	m = watchMachine(false)
	time.Sleep(3 * heartbeat)
	require.Less(t, m.stop(), time.Minute)
}

func TestPulseNotesASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pulse{}
		slow := func(d time.Duration, err error) func(context.Context) error {
			return func(context.Context) error { time.Sleep(d); return err }
		}
		began := time.Now()
		p.ask(t.Context(), slow(time.Second, nil))
		p.ask(t.Context(), slow(3*time.Second, nil))
		require.Equal(t, 3*time.Second, p.worst(began))
		later := time.Now()
		p.ask(t.Context(), slow(2*time.Second, errors.New("connection refused")))
		require.Zero(t, p.worst(later), "a server that refuses isn't slow")
		go p.ask(t.Context(), slow(7*time.Second, nil))
		time.Sleep(5 * time.Second)
		require.Equal(t, 5*time.Second, p.worst(later), "the answer isn't there yet")
		time.Sleep(3 * time.Second)
		require.Zero(t, (*pulse)(nil).worst(began))
	})
}
