//go:build unix

package main

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/internal/testserver"
)

func decode[T any](t *testing.T, c *process) (v T) {
	t.Helper()
	require.Equal(t, 0, c.code(), c.stderr())
	require.NoError(t, json.Unmarshal([]byte(c.stdout()), &v), c.stdout())
	return v
}

func TestInspect(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		free := decode[entryJSON](t, p.run(t, "inspect", "--json", "job"))
		require.False(t, free.Held)
		require.Equal(t, "job", free.Name)
		require.Equal(t, p.name, free.Backend)

		holder := p.holding(t, "--ttl", "30s", "job", "sh", "-c", "echo $LOCKER_TOKEN; exec sleep 1000")
		held := decode[entryJSON](t, p.run(t, "inspect", "--json", "job"))
		require.True(t, held.Held)
		host, err := os.Hostname()
		require.NoError(t, err)
		require.Regexp(t, "^"+host+":[0-9]+$", held.Owner)
		var token uint64
		require.NoError(t, json.Unmarshal([]byte(holder.stdout()), &token))
		require.Equal(t, token, held.Token)
		require.NotNil(t, held.Since)
		require.LessOrEqual(t, held.Remaining, 30.0)

		table := lines(p.run(t, "inspect", "job").stdout())
		require.Len(t, table, 2)
		require.Regexp(t, `^NAME +STATE +HOLDER +TOKEN +AGE +TTL LEFT +WAITERS$`, table[0])
		require.Regexp(t, `^job +held +`+held.Owner+` +[0-9]+ +[0-9.ms]+ +(-|[0-9]+s) +(-|0)$`, table[1])
		require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code(), "looking has changed nothing")
		holder.signal(syscall.SIGINT)
		holder.code()
		require.False(t, decode[entryJSON](t, p.run(t, "inspect", "--json", "job")).Held)
	})
}

func TestList(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		require.Equal(t, "[]\n", p.run(t, "list", "--json").stdout())
		for _, name := range []string{"zebra", "a b", "nightly"} {
			p.holding(t, name, "sh", "-c", "echo; exec sleep 1000")
		}
		var names []string
		for _, e := range decode[[]entryJSON](t, p.run(t, "list", "--json")) {
			require.True(t, e.Held)
			names = append(names, e.Name)
		}
		require.Equal(t, []string{"a b", "nightly", "zebra"}, names)
		require.Len(t, lines(p.run(t, "list").stdout()), 4)
	})
}

func TestLookingFails(t *testing.T) {
	p := filePlace(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"inspect"}, 64, "NAME is missing"},
		{[]string{"inspect", "a", "b"}, 64, "only one NAME"},
		{[]string{"inspect", ""}, 64, "invalid name"},
		{[]string{"list", "a"}, 64, "takes no NAME"},
		{[]string{"doctor", "a"}, 64, "takes no argument"},
		{[]string{"list", "--timeout", "3"}, 64, "isn't a duration with a unit"},
		{[]string{"list", "--url", "redis://127.0.0.1:9/?color=red"}, 78, `unknown parameter "color"`},
		{[]string{"doctor", "--url", "memory://?require=both"}, 78, "neither efficiency nor correctness"},
		{[]string{"doctor", "--url", "redis://127.0.0.1:9?require=correctness"}, 78, "correctness is required"},
		{[]string{"inspect", "--timeout", "500ms", "--url", "redis://127.0.0.1:9", "a"}, 69, "connection refused"},
		{[]string{"list", "--timeout", "500ms", "--url", "etcd://127.0.0.1:9"}, 69, ""},
		{[]string{"doctor", "--timeout", "500ms", "--url", "consul://127.0.0.1:9"}, 69, "connection refused"},
	} {
		r := p.run(t, c.args...)
		require.Equal(t, c.code, r.code(), "%q: %s", c.args, r.stderr())
		require.Contains(t, r.stderr(), c.says, "%q", c.args)
		require.Empty(t, r.stdout(), "%q", c.args)
	}
}

func TestDoctor(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		p.run(t, "run", "job", "true") // makes the directory
		r := p.run(t, "doctor")
		require.Equal(t, 0, r.code(), r.stderr())
		require.Contains(t, r.stdout(), "pass  rights")
		d := decode[diagnosis](t, p.run(t, "doctor", "--json"))
		require.Equal(t, p.name, d.Backend)
		require.Contains(t, []string{"pass", "note"}, d.Worst)
		require.Empty(t, decode[[]entryJSON](t, p.run(t, "list", "--json")), "it has left something")
	})
	t.Run("missing directory", func(t *testing.T) {
		p := filePlace(t)
		require.Contains(t, p.run(t, "doctor").stdout(), "the first lock creates it")
		require.NoDirExists(t, p.path)
	})
	t.Run("unfit", func(t *testing.T) {
		s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}})
		p := place{name: "redis", url: s.URL("redis")}
		r := p.run(t, "doctor", "--json")
		require.Equal(t, 1, r.code())
		var d diagnosis
		require.NoError(t, json.Unmarshal([]byte(r.stdout()), &d))
		require.Equal(t, "fail", d.Worst)
		for _, f := range d.Findings {
			if f.Check == "eviction" {
				require.Equal(t, "fail", f.Severity)
				require.NotEmpty(t, f.Advice)
			}
		}
		require.Equal(t, 1, strings.Count(p.run(t, "doctor").stdout(), "fail  "))
	})
}
