package zookeeper

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/clock"
)

func TestSequence(t *testing.T) {
	for name, want := range map[string]int32{
		"_c_0123-lock-0000000007":   7,
		"_c_lock-1-lock-0000000008": 8,
		"lock-0000000000":           0,
		"lock-2147483647":           math.MaxInt32,
		"lock--2147483648":          math.MinInt32,
		"lock--000000005":           -5,
		"0123456789abcdef0123456789abcdef__lock__0000000003": 3,
	} {
		got, ok := sequence(name)
		require.True(t, ok, name)
		require.Equal(t, want, got, name)
	}
	for _, name := range []string{"", "lock-", "lock-7", "lock-config", "x0000000007", "lock-+000000007", "lock-99999999999", "__", "lock-000000000x"} {
		_, ok := sequence(name)
		require.False(t, ok, name)
	}
}

func TestOWN10OrderAcrossTheOverflow(t *testing.T) {
	nodes := contenders([]string{"a-lock--2147483648", "z-lock-2147483646", "foreign", "m-lock-2147483647", "b-lock--2147483647"})
	var got []string
	for _, n := range nodes {
		got = append(got, n.name[:1])
	}
	require.Equal(t, "zmab", strings.Join(got, ""))
}

func TestNodeID(t *testing.T) {
	id := strings.Repeat("0f", 16)
	require.Equal(t, id, node{name: protected + id + "-lock-0000000001"}.id())
	require.Empty(t, node{name: id + "-lock-0000000001"}.id())
	require.Empty(t, node{name: "lock-0000000001"}.id())
}

func TestNAME03Encoding(t *testing.T) {
	names := []string{
		"a", "file:///var/x", "a//b", ".", "..", "...", ".hidden", "a/../b", "zookeeper", "zookeeper2", "\x00", "\x1f", " ", "\x7f", "\u0085",
		"\u00a0", "\ud7ff", "\ue000", "\uf8ff", "\uf900", "\uffef", "\ufff0", "\uffff", "\U0001f512", "%", "%7Aookeeper", "%2E", strings.Repeat("\u00e9", 100),
		strings.Repeat("/", driver.MaxNameLen),
	}
	seen := make(map[string]string)
	for _, name := range names {
		e := encode(name)
		require.NotContains(t, e, "/")
		require.NotContains(t, []string{"", ".", "..", reserved, offsetName}, e)
		for _, r := range e {
			require.True(t, r >= ' ' && r < 0x7f || r >= 0xa0 && r < 0xd800 || r >= 0xf900 && r < 0xfff0, "%q has %U", e, r)
		}
		require.NotContains(t, seen, e, "%q and %q", name, seen[e])
		seen[e] = name
		back, ok := decode(e)
		require.True(t, ok, "%q", e)
		require.Equal(t, name, back)
	}
	_, ok := decode(offsetName)
	require.False(t, ok)
	_, ok = decode(reserved)
	require.False(t, ok)
}

// TestContact follows a session through its life. All times are in units of a 32nd of the timeout.
func TestContact(t *testing.T) {
	const timeout = 32 * time.Second
	start := clock.At(time.Hour, time.Hour)
	at := func(n float64) driver.Instant { return start.Add(time.Duration(n * float64(time.Second))) }
	base := func(c *contact) float64 { return c.base.Sub(start).Seconds() }
	var c contact

	c.connected(at(0))
	require.True(t, c.base.IsZero(), "a connection alone proves nothing")
	c.answered(at(1), at(2), timeout)
	require.EqualValues(t, 0, base(&c), "since when the leader itself has heard of the session")
	c.answered(at(9), at(10), timeout)
	require.EqualValues(t, 0, base(&c), "7 after the answer: the report may not have come")
	c.answered(at(11), at(12), timeout)
	require.EqualValues(t, 1, base(&c), "9 after the answer to what was sent at 1")
	c.answered(at(18.9), at(20), timeout)
	require.EqualValues(t, 1, base(&c))
	c.answered(at(19), at(20), timeout)
	require.EqualValues(t, 9, base(&c))
	require.EqualValues(t, 11, c.proved(at(22), timeout).Sub(start).Seconds())
	require.EqualValues(t, 9, base(&c), "to ask changes nothing")

	c.connected(at(30))
	require.EqualValues(t, 9, base(&c), "what was proved stays")
	c.answered(at(31), at(31), timeout)
	require.EqualValues(t, 30, base(&c))
	c.answered(at(35), at(36), timeout)
	require.EqualValues(t, 30, base(&c), "a server that one was connected to before reports nothing any more")

	// Answers that overtake each other, and more writes than are kept.
	c.answered(at(34), at(60), timeout)
	last := base(&c)
	for i := 40; i < 2000; i++ {
		now := at(float64(i) / 10)
		c.answered(now, now, timeout)
		require.GreaterOrEqual(t, base(&c), last)
		last = base(&c)
		if i > 600 {
			require.GreaterOrEqual(t, now.Sub(c.base), report(timeout))
			require.LessOrEqual(t, now.Sub(c.base), report(timeout)+2*timeout/spacing)
		}
	}
}

func TestToken(t *testing.T) {
	got, err := token(5, 7)
	require.NoError(t, err)
	require.EqualValues(t, 12, got)
	_, err = token(math.MaxInt64, 1)
	require.ErrorIs(t, err, driver.ErrConfig)
	_, err = token(0, 0)
	require.Error(t, err)
}

func TestValue(t *testing.T) {
	req := newRequest("x")
	id, since, owner, ok := parseValue(value(req))
	require.True(t, ok)
	require.Equal(t, req.ID, id)
	require.Equal(t, req.Owner, owner)
	require.WithinDuration(t, time.Now(), since, time.Minute)
	_, _, _, ok = parseValue([]byte("10.0.0.1"))
	require.False(t, ok)
}

func TestURL(t *testing.T) {
	for url, want := range map[string]struct{ prefix, servers, user, password string }{
		"zk://h":                                 {"/locks", "h:2181", "", ""},
		"zk://h/":                                {"/locks", "h:2181", "", ""},
		"zookeeper://h:1,[::1],i:3/a/b/":         {"/a/b", "h:1 [::1]:2181 i:3", "", ""},
		"zk://u:p%40+w@h/a":                      {"/a", "h:2181", "u", "p@+w"},
		"zk://h?prefix=":                         {"", "h:2181", "", ""},
		"zk://h?prefix=/":                        {"", "h:2181", "", ""},
		"zks://h?prefix=/x&server-name=zk.local": {"/x", "h:2181", "", ""},
	} {
		c, err := driver.Parse(url)
		require.NoError(t, err, url)
		z := c.(*connector)
		require.Equal(t, want.prefix, z.prefix, url)
		require.Equal(t, want.servers, strings.Join(z.servers, " "), url)
		require.Equal(t, want.user, z.o.User, url)
		require.Equal(t, want.password, z.o.Password, url)
	}
	for url, part := range map[string]string{
		"zk://":                   "host",
		"zk:?x=1":                 "host",
		"zk://h?ttll=5s":          "ttll",
		"zk://h/a?prefix=/b":      "prefix",
		"zk://h?prefix=a":         "slash",
		"zk://h/a//b":             "empty element",
		"zk://h/a/./b":            `"."`,
		"zk://h/zookeeper/quota":  "server",
		"zk://h/%01":              "character",
		"zk://u@h":                "password",
		"zk://:p@h":               "user",
		"zk://u%3Av:p@h":          "colon",
		"zk://h?ca=x":             "TLS",
		"zk://h:99999":            "port",
		"zks://h?cert=x":          "key",
		"zk://h?prefix=&prefix=/": "2 times",
	} {
		_, err := driver.Parse(url)
		require.ErrorIs(t, err, driver.ErrConfig, url)
		require.ErrorContains(t, err, part, url)
	}
}
