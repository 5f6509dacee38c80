//go:build unix

package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCLI02LossStopsEverything(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		for name, script := range map[string]string{
			"children":              `sleep 1000 & echo; sleep 1000; true`,
			"in other sessions":     `setsid sleep 1000 & setsid sh -c "sleep 1000 & sleep 1000 & wait" & echo; sleep 1000; true`,
			"orphans":               `(setsid sh -c "sleep 1000 & exec sleep 1000" &) ; sleep 0.3; echo; sleep 1000; true`,
			"which ignore TERM":     `trap "" TERM HUP INT; setsid sleep 1000 & sleep 1000 & echo; while :; do sleep 1; done`,
			"which are stopped":     `sleep 1000 & kill -STOP $!; echo; kill -STOP $$; true`,
			"of a leader that ends": `trap "exit 0" TERM; setsid sh -c "trap \"\" TERM; while :; do sleep 1; done" & echo; while :; do sleep 0.1; done`,
		} {
			t.Run(name, func(t *testing.T) {
				c := p.holding(t, "--ttl", ttl.String(), "job", "sh", "-c", script)
				require.NotEmpty(t, c.marked())
				start := time.Now()
				p.lose(t, "job")
				require.Equal(t, 79, c.code())
				require.Empty(t, c.marked(), "something lives on")
				require.Less(t, time.Since(start), 2*ttl, "it is noticed at a renewal, and stopped within the grace period")
				require.Contains(t, c.stderr(), `lost "job"`)
			})
		}
	})
}

// What the command leaves behind is stopped before the lock is released.
func TestLeftovers(t *testing.T) {
	p := filePlace(t)
	for name, script := range map[string]string{
		"background":     `sleep 1000 & exit 3`,
		"daemon":         `(setsid sleep 1000 &); exit 3`,
		"ignores TERM":   `sh -c 'trap "" TERM; echo; while :; do sleep 1; done' & exit 3`,
		"zombie's group": `sh -c 'sleep 0.1 & exec sleep 1000' & exit 3`,
	} {
		t.Run(name, func(t *testing.T) {
			c := p.run(t, "run", "--ttl", ttl.String(), "job", "sh", "-c", script)
			require.Equal(t, 3, c.code())
			require.Empty(t, c.marked())
		})
	}
	// It gets the time to stop, and holds the lock until then.
	c := p.command(t, "run", "job", "sh", "-c", `sh -c 'trap "sleep 1; echo late; exit" TERM; echo ready; while :; do sleep 0.05; done' & while ! grep -q ready stdout; do sleep 0.05; done; exit 3`).start()
	eventually(t, "the leader has ended", func() bool { return strings.Contains(c.stdout(), "ready") && len(c.marked()) <= 2 })
	require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code())
	require.Equal(t, 3, c.code())
	require.Equal(t, "ready\nlate\n", c.stdout())
}

// orphans aren't taken for the command when they end before it.
func TestOrphansAreReaped(t *testing.T) {
	p := filePlace(t)
	c := p.run(t, "run", "job", "sh", "-c", `for i in 1 2 3 4 5; do (sh -c "exit 9" &); done; sleep 0.5; ps -o stat= --ppid $PPID | grep -c Z; exit 6`)
	require.Equal(t, 6, c.code())
	require.Equal(t, "0\n", c.stdout())
}

// heartbeat writes the time into a file again and again, and doesn't stop for TERM.
const heartbeat = `trap "date +%s%N >>term" TERM; echo; while :; do date +%s%N >>beats; sleep 0.02; done`

func lastTime(t *testing.T, s string) time.Time {
	t.Helper()
	all := lines(s)
	for i := len(all) - 1; i >= 0; i-- {
		if ns, err := strconv.ParseInt(all[i], 10, 64); err == nil && len(all[i]) == 19 {
			return time.Unix(0, ns)
		}
	}
	require.Fail(t, "no time", "%q", s)
	return time.Time{}
}

// The holder is cut off; its command is dead before the next one starts, and before its lease could have ended.
func TestCLI10CutOffHolder(t *testing.T) {
	check := func(t *testing.T, a, b place, cut func()) {
		holder := a.holding(t, "--ttl", ttl.String(), "job", "sh", "-c", heartbeat)
		next := b.waiting(t, "--ttl", ttl.String(), "job", "date", "+%s%N")
		cut()
		start := time.Now()
		require.Equal(t, 79, holder.code())
		require.Equal(t, 0, next.code())
		last := lastTime(t, holder.read("beats"))
		require.True(t, last.Before(lastTime(t, next.stdout())), "two commands at once")
		require.Less(t, last.Sub(start), ttl, "the lease has ended by then")
		require.Greater(t, last.Sub(start), ttl/4, "the time to the next renewals is used")
		require.True(t, lastTime(t, holder.read("term")).Before(last), "TERM comes first")
		require.Empty(t, holder.marked())
	}
	t.Run("file", func(t *testing.T) {
		// The way to the directory becomes a loop, so that whether the lock is there can't be found out.
		top := t.TempDir()
		via := filepath.Join(top, "via")
		require.NoError(t, os.Symlink(top, via))
		check(t, place{url: "file://" + via + "/locks"}, place{url: "file://" + top + "/locks"}, func() {
			require.NoError(t, os.Symlink("via", filepath.Join(top, "loop")))
			require.NoError(t, os.Rename(filepath.Join(top, "loop"), via))
		})
	})
	t.Run("redis", func(t *testing.T) {
		b := redisPlace(t)
		_, rest, _ := strings.Cut(b.url, "://")
		server, rest, _ := strings.Cut(rest, "?")
		proxy, cut := blackHole(t, server)
		check(t, place{url: "redis://" + proxy + "?" + rest}, b, cut)
	})
}

// blackHole is a proxy that passes nothing on once cut is called, and keeps its connections open.
func blackHole(t *testing.T, server string) (addr string, cut func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	var silent atomic.Bool
	pass := func(to, from net.Conn) {
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if !silent.Load() {
				to.Write(b[:n])
			}
			if err != nil {
				if !silent.Load() {
					to.Close()
				}
				return
			}
		}
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { client.Close() })
			if silent.Load() {
				go io.Copy(io.Discard, client)
				continue
			}
			backend, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			t.Cleanup(func() { backend.Close() })
			go pass(client, backend)
			go pass(backend, client)
		}
	}()
	return l.Addr().String(), func() { silent.Store(true) }
}

func TestEXP01PausedLongerThanTheTTL(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		const ttl = time.Second
		c := p.holding(t, "--ttl", ttl.String(), "job", "sh", "-c", `trap "" TERM; echo $LOCKER_TOKEN; while :; do sleep 0.1; done`)
		c.signal(syscall.SIGSTOP)
		time.Sleep(2500 * time.Millisecond) // longer than the TTL is the point
		var next *process
		if p.name != "file" { // where a frozen process keeps the lock
			next = p.holding(t, "--ttl", "30s", "job", "sh", "-c", `echo $LOCKER_TOKEN; exec sleep 1000`)
		}
		c.signal(syscall.SIGCONT)
		start := time.Now()
		require.Equal(t, 79, c.code())
		require.Less(t, time.Since(start), wait/3)
		require.Empty(t, c.marked())
		if next == nil {
			p.isFree(t, "job", 0)
			return
		}
		old, err := strconv.Atoi(strings.TrimSpace(c.stdout()))
		require.NoError(t, err)
		token, err := strconv.Atoi(strings.TrimSpace(next.stdout()))
		require.NoError(t, err)
		require.Greater(t, token, old)
		require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code(), "the next one's lock is untouched")
		next.signal(syscall.SIGTERM)
		require.Equal(t, 143, next.code())
	})
}

func TestMaxHold(t *testing.T) {
	p := filePlace(t)
	start := time.Now()
	c := p.run(t, "run", "--ttl", ttl.String(), "--max-hold", "2s", "--grace", "500ms", "job", "sh", "-c", `trap "" TERM; while :; do sleep 0.1; done`)
	require.Equal(t, 79, c.code())
	require.Greater(t, time.Since(start), time.Second)
	require.Less(t, time.Since(start), wait/3)
	require.Empty(t, c.marked())
	p.isFree(t, "job", 0)
	require.Equal(t, 4, p.run(t, "run", "--max-hold", "1m", "job", "sh", "-c", "exit 4").code())
}

// A command that stops in time when it gets TERM isn't killed.
func TestGrace(t *testing.T) {
	p := filePlace(t)
	c := p.holding(t, "--ttl", ttl.String(), "job", "sh", "-c", `trap "echo stopping; sleep 0.2; echo done; exit 1" TERM; echo ready; while :; do sleep 0.05; done`)
	p.lose(t, "job")
	require.Equal(t, 79, c.code())
	require.Equal(t, "ready\nstopping\ndone\n", c.stdout())
}

// A command that is stopped is made to go on, so that TERM reaches it.
func TestGraceOfAStoppedCommand(t *testing.T) {
	p := filePlace(t)
	c := p.holding(t, "--ttl", ttl.String(), "job", "sh", "-c", `trap "echo stopping; exit 1" TERM; echo $$; kill -STOP $$; while :; do sleep 0.05; done`)
	pid := strings.TrimSpace(c.stdout())
	eventually(t, "it stops", func() bool { return state(pid) == "T" })
	p.lose(t, "job")
	require.Equal(t, 79, c.code())
	require.Equal(t, pid+"\nstopping\n", c.stdout())
}

// A child that ends by itself while its lock is lost unnoticed: the release finds out.
func TestLossFoundAtRelease(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		in, out, err := os.Pipe()
		require.NoError(t, err)
		c := p.command(t, "run", "--ttl", "1m", "job", "sh", "-c", "echo; read x; exit 0")
		c.Stdin = in
		c.start()
		eventually(t, "the command runs", func() bool { return c.stdout() != "" })
		p.lose(t, "job")
		out.Close()
		require.Equal(t, 79, c.code())
		require.Contains(t, c.stderr(), `lost "job"`)
	})
}
