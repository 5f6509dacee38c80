//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trapping is a command that writes the name of each signal it gets and ends on those that end programs. The file that
// it writes first says that the traps are set.
const trapping = `
	for s in USR1 USR2 WINCH CONT; do trap "echo $s >>log" $s; done
	for s in INT TERM HUP QUIT; do trap "echo $s >>log; exit 7" $s; done
	echo ready
	while :; do sleep 0.05; done`

func TestCLI01SignalsArePassedOn(t *testing.T) {
	p := filePlace(t)
	for signal, name := range map[syscall.Signal]string{
		syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT",
	} {
		t.Run(name, func(t *testing.T) {
			c := p.holding(t, "job", "sh", "-c", trapping)
			c.signal(signal)
			require.Equal(t, 7, c.code(), "the locker ends after the command, with its code")
			require.Equal(t, []string{name}, lines(c.read("log")), "once")
			require.Empty(t, c.marked(), "nothing is left")
			p.isFree(t, "job", 0)
		})
	}
	for signal, name := range map[syscall.Signal]string{
		syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2", syscall.SIGWINCH: "WINCH", syscall.SIGCONT: "CONT",
	} {
		t.Run(name, func(t *testing.T) {
			c := p.holding(t, "job", "sh", "-c", trapping)
			c.signal(signal)
			eventually(t, "the command gets it", func() bool { return c.read("log") != "" })
			require.False(t, c.exited())
			require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code(), "the lock is held")
			c.signal(syscall.SIGTERM)
			require.Equal(t, 7, c.code())
			require.Equal(t, []string{name, "TERM"}, lines(c.read("log")))
		})
	}
	t.Run("TSTP and CONT", func(t *testing.T) {
		c := p.holding(t, "--ttl", "1s", "job", "sh", "-c", "echo $$; exec sleep 1000")
		pid := strings.TrimSpace(c.stdout())
		c.signal(syscall.SIGTSTP)
		eventually(t, "the command stops", func() bool { return state(pid) == "T" })
		time.Sleep(3 * time.Second) // without a terminal the locker goes on and renews the lock
		require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code())
		c.signal(syscall.SIGCONT)
		eventually(t, "the command goes on", func() bool { return state(pid) == "S" })
		c.signal(syscall.SIGTERM)
		require.Equal(t, 143, c.code())
	})
	t.Run("a command that doesn't react", func(t *testing.T) {
		c := p.holding(t, "job", "sh", "-c", "trap '' TERM INT HUP; echo; sleep 1; exit 4")
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			c.signal(s)
		}
		require.Equal(t, 4, c.code())
	})
	t.Run("its children get those of a terminal", func(t *testing.T) {
		c := p.holding(t, "job", "sh", "-c", "echo; sleep 1000; true")
		c.signal(syscall.SIGTERM)
		require.Equal(t, 143, c.code())
		require.Empty(t, c.marked())
	})
}

// state returns the state of a process, such as S or T.
func state(pid string) string {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return after[:1]
}

// ignoredSignals returns the set of signals that this process ignores, which those it starts inherit.
func ignoredSignals(t *testing.T) uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(b), "\nSigIgn:")
	require.True(t, ok)
	line, _, _ := strings.Cut(after, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	require.NoError(t, err)
	return set
}

// Signals that were ignored when the locker was started stay ignored in the command.
func TestNohup(t *testing.T) {
	p := filePlace(t)
	c := p.command(t)
	args := []string{"sh", "-c", `trap '' HUP; exec "$0" run job grep SigIgn /proc/self/status`, binary}
	c.Path, c.Args = "/bin/sh", args
	require.Equal(t, 0, c.start().code())
	inherited := ignoredSignals(t)
	require.Regexp(t, fmt.Sprintf(`SigIgn:\s+%016x\n`, inherited|1), c.stdout())
	c = p.run(t, "run", "job", "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
	require.Regexp(t, fmt.Sprintf(`SigBlk:\s+0+\nSigIgn:\s+%016x\n`, inherited), c.stdout(), "nothing is ignored or blocked otherwise")
}

func TestCLI04SignalsEndTheWait(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		holder := p.holding(t, "job", "sh", "-c", "echo; exec sleep 1000")
		for signal, code := range map[syscall.Signal]int{
			syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129, syscall.SIGQUIT: 131,
		} {
			c := p.waiting(t, "job", "touch", "ran")
			c.signal(syscall.SIGUSR1)
			c.signal(syscall.SIGWINCH)
			start := time.Now()
			c.signal(signal)
			require.Equal(t, code, c.code())
			require.Less(t, time.Since(start), ttl)
			require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
		}
		holder.signal(syscall.SIGTERM)
		require.Equal(t, 143, holder.code())
		start := time.Now()
		p.isFree(t, "job", 0)
		require.Less(t, time.Since(start), ttl, "no waiter has left an entry")
	})
}

func TestSHUT05SuccessorIsGrantedAtOnce(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			holder := p.holding(t, "--ttl", "30s", "job", "sh", "-c", "echo; exec sleep 1000")
			next := p.waiting(t, "--ttl", "30s", "job", "echo", "mine")
			start := time.Now()
			holder.signal(signal)
			require.Equal(t, 128+int(signal), holder.code())
			require.Equal(t, 0, next.code())
			require.Less(t, time.Since(start), 2*ttl, "much less than the TTL")
		}
	})
}

func TestLEAK04OWN07CrashedHolder(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		// All labels are the same; that must not make one of them the other.
		url := p.url + map[bool]string{true: "&", false: "?"}[strings.Contains(p.url, "?")] + "owner=same"
		p.url = url
		holder := p.holding(t, "--ttl", ttl.String(), "job", "sh", "-c", "echo; exec sleep 1000")
		require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code())
		next := p.waiting(t, "--ttl", ttl.String(), "job", "echo", "mine")
		start := time.Now()
		require.NoError(t, holder.Process.Kill())
		require.Equal(t, -9, holder.code())
		require.Equal(t, 0, next.code())
		took := time.Since(start)
		if p.gone > 0 {
			require.Greater(t, took, p.gone/3, "it waits for the expiry: the last renewal was at most a third of the TTL ago")
		}
		require.Less(t, took, p.gone+2*ttl)
	})
}

func TestCLI18KilledLocker(t *testing.T) {
	p := filePlace(t)
	c := p.holding(t, "job", "sh", "-c", "echo; exec sleep 1000")
	// A process that is just becoming another program has no environment to read.
	eventually(t, "sh has become sleep", func() bool { return len(c.marked()) == 1 })
	start := time.Now()
	require.NoError(t, c.Process.Kill())
	require.Equal(t, -9, c.code())
	eventually(t, "the command dies", func() bool { return len(c.marked()) == 0 })
	require.Less(t, time.Since(start), ttl)

	// It isn't killed without reason, however many threads of the locker come and go.
	c = p.command(t, "run", "--ttl", "300ms", "job", "sh", "-c", "trap : USR1; echo $$; i=0; while [ $i -lt 60 ]; do sleep 0.05; i=$((i+1)); done; exit 5")
	c.Env = append(c.Env, "GOMAXPROCS=16")
	c.start()
	eventually(t, "the command runs", func() bool { return c.stdout() != "" })
	for !c.exited() {
		c.Process.Signal(syscall.SIGUSR1)
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, 5, c.code())
}
