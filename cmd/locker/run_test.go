//go:build unix

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/internal/testserver"
)

func TestEnvironment(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		c := p.command(t, "run", "a job", "env")
		c.Env = append(c.Env, "LOCKER_TOKEN=old", "LOCKER_NAME=old", "OTHER=kept")
		require.Equal(t, 0, c.start().code())
		env := make(map[string]string)
		for _, line := range lines(c.stdout()) {
			key, value, _ := strings.Cut(line, "=")
			require.NotContains(t, env, key, "given twice")
			env[key] = value
		}
		kind := map[string]string{"file": "correctness", "redis": "efficiency", "etcd": "correctness"}[p.name]
		require.Equal(t, []string{"a job", p.name, kind, "kept"}, []string{env["LOCKER_NAME"], env["LOCKER_BACKEND"], env["LOCKER_KIND"], env["OTHER"]})
		first, err := strconv.ParseUint(env["LOCKER_TOKEN"], 10, 63)
		require.NoError(t, err)
		second, err := strconv.ParseUint(strings.TrimSpace(p.run(t, "run", "a job", "--", "sh", "-c", "echo $LOCKER_TOKEN").stdout()), 10, 63)
		require.NoError(t, err)
		require.Greater(t, second, first)
	})
}

func TestDefaultPlace(t *testing.T) {
	for _, test := range []struct{ state, home, want string }{
		{"STATE", "HOME", "STATE/locker"},
		{"", "HOME", "HOME/.local/state/locker"},
		{"relative", "HOME", "HOME/.local/state/locker"},
		{"with space & % # ?", "HOME", "HOME/.local/state/locker"},
		{"STATE/with space % # ? +é", "HOME", "STATE/with space % # ? +é/locker"},
	} {
		top := t.TempDir()
		in := strings.NewReplacer("STATE", filepath.Join(top, "state"), "HOME", filepath.Join(top, "home"))
		c := place{}.command(t, "run", "job", "true")
		c.Env = append(c.Env, "XDG_STATE_HOME="+in.Replace(test.state), "HOME="+in.Replace(test.home))
		require.Equal(t, 0, c.start().code())
		require.FileExists(t, filepath.Join(in.Replace(test.want), "job"), "%+v", test)
	}
	c := place{}.command(t, "run", "job", "true")
	c.Env = append(c.Env, "XDG_STATE_HOME=", "HOME=")
	require.Equal(t, 78, c.start().code())
	require.Contains(t, c.stderr(), "LOCKER_URL")
}

func TestCLI06ExitCodes(t *testing.T) {
	p := filePlace(t)
	for _, code := range []int{0, 1, 2, 3, 42, 100, 125, 255} {
		c := p.run(t, "run", "job", "sh", "-c", "exit "+strconv.Itoa(code))
		require.Equal(t, code, c.code())
		require.Empty(t, c.stderr())
	}
}

func TestCLI07KilledByASignal(t *testing.T) {
	p := filePlace(t)
	for signal, code := range map[string]int{"TERM": 143, "KILL": 137, "SEGV": 139, "INT": 130} {
		c := p.command(t, "run", "job", "sh", "-c", "ulimit -c 0; kill -"+signal+" $$; sleep 100")
		require.Equal(t, code, c.start().code(), signal)
		p.isFree(t, "job", 0)
	}
}

func TestCLI08CommandCannotBeStarted(t *testing.T) {
	p := filePlace(t)
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	plain := write("plain", "", 0o644)
	badInterpreter := write("bad-interpreter", "#!/does/not/exist\n", 0o755)
	text := write("text", "echo no interpreter\n", 0o755)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "adir"), 0o755))
	for _, test := range []struct {
		name, command string
		code          int
		before        bool // it shows before the lock is taken
	}{
		{"missing name", "no-such-command-" + t.Name(), 127, true},
		{"missing path", filepath.Join(dir, "missing"), 127, true},
		{"below a file", plain + "/x", 127, true},
		{"empty", "", 127, true},
		{"directory", filepath.Join(dir, "adir"), 126, true},
		{"directory in PATH", "adir", 126, true},
		{"not executable", plain, 126, true},
		{"not executable in PATH", "plain", 126, true},
		{"bad interpreter", badInterpreter, 126, false},
		{"no interpreter", text, 126, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := p.command(t, "run", "job", test.command, "x")
			c.Env = append(c.Env, "PATH="+dir+":"+os.Getenv("PATH"))
			require.Equal(t, test.code, c.start().code())
			require.Contains(t, c.stderr(), test.command)
			_, err := os.Stat(filepath.Join(p.path, "job"))
			require.Equal(t, test.before, os.IsNotExist(err), "whether the lock was tried")
			start := time.Now()
			p.isFree(t, "job", 0)
			require.Less(t, time.Since(start), ttl)
			require.NoError(t, os.Remove(filepath.Join(p.path, "job")))
		})
	}
	t.Run("a later entry of PATH", func(t *testing.T) {
		later := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(later, "plain"), []byte("#!/bin/sh\necho later"), 0o755))
		c := p.command(t, "run", "job", "plain")
		c.Env = append(c.Env, "PATH="+dir+":"+later)
		require.Equal(t, 0, c.start().code())
		require.Equal(t, "later\n", c.stdout())
	})
}

func TestCLI09NotGettingTheLock(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		holder := p.holding(t, "job", "sh", "-c", "echo; exec sleep 1000")
		c := p.run(t, "run", "--no-wait", "job", "touch", "ran")
		require.Equal(t, 75, c.code())
		require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
		require.Contains(t, c.stderr(), "held by another")
		start := time.Now()
		c = p.run(t, "run", "--wait", "1s", "job", "touch", "ran")
		require.GreaterOrEqual(t, time.Since(start), time.Second)
		require.Equal(t, 75, c.code())
		require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
		c = p.run(t, "run", "--no-wait", "--ok-if-held", "--quiet", "job", "touch", "ran")
		require.Equal(t, 0, c.code())
		require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
		require.Empty(t, c.stderr())
		p.lose(t, "job")
		require.Equal(t, 79, holder.code())
	})
	t.Run("server down", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := l.Addr().String()
		l.Close()
		for _, flags := range [][]string{{"--no-wait"}, {"--wait", "300ms"}, {"--no-wait", "--ok-if-held"}} {
			c := place{url: "redis://" + addr}.run(t, append(append([]string{"run"}, flags...), "job", "touch", "ran")...)
			require.Equal(t, 69, c.code())
			require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
		}
	})
	for url, text := range map[string]string{
		"nonsense":                           "scheme",
		"nosuch://x":                         "nosuch",
		"file://host/x":                      "three slashes",
		"file:///proc":                       "type proc",
		"redis://127.0.0.1:1?ttl=1":          `"ttl"`,
		"redis://u:secret@127.0.0.1:1?pool=": "pool",
	} {
		c := place{url: url}.run(t, "run", "job", "touch", "ran")
		require.Equal(t, 78, c.code(), url)
		require.Contains(t, c.stderr(), text)
		require.NotContains(t, c.stderr(), "secret")
		require.NoFileExists(t, filepath.Join(c.Dir, "ran"))
	}
	c := place{url: "redis://127.0.0.1:1"}.run(t, "run", "--require", "correctness", "job", "true")
	require.Equal(t, 78, c.code())
	help := place{}.run(t, "run", "--help")
	require.Equal(t, 0, help.code())
	for _, code := range []int{64, 69, 73, 75, 78, 79, 126, 127} {
		require.Regexp(t, fmt.Sprintf(`(?m)^  %d +\w`, code), help.stdout())
	}
}

func TestUsage(t *testing.T) {
	p := filePlace(t)
	for _, args := range [][]string{
		{}, {"bogus"}, {"run"}, {"run", "job"}, {"run", "job", "--"}, {"run", "--no-such-flag", "job", "true"},
		{"run", "--wait", "1s", "--no-wait", "job", "true"}, {"run", "--quiet", "--verbose", "job", "true"},
		{"run", "", "true"}, {"run", strings.Repeat("x", 513), "true"}, {"run", "\xff", "true"},
		{"run", "--require", "strong", "job", "true"}, {"run", "--wait", "-1s", "job", "true"},
		{"run", "--grace", "6s", "job", "true"}, {"run", "--ttl", "1s", "--grace", "400ms", "job", "true"},
		{"version", "x"},
	} {
		c := p.run(t, args...)
		require.Equal(t, 64, c.code(), "%q", args)
		require.Contains(t, c.stderr(), "--help'", "%q", args)
		require.Empty(t, c.stdout())
	}
	require.NoDirExists(t, p.path)
}

func TestCFG05DurationsNeedAUnit(t *testing.T) {
	for value, ok := range map[string]bool{
		"10s": true, "1m30s": true, "500ms": true,
		"10": false, "0": false, "-1s": false, "": false, "abc": false, "1e3": false, "10 s": false,
	} {
		p := filePlace(t)
		escaped := strings.ReplaceAll(value, " ", "%20")
		for where, c := range map[string]*process{
			"flag":        p.run(t, "run", "--ttl", value, "job", "true"),
			"URL":         p.run(t, "run", "--url", p.url+"?ttl="+escaped, "job", "true"),
			"environment": place{url: p.url + "?ttl=" + escaped}.run(t, "run", "job", "true"),
		} {
			if ok {
				require.Equal(t, 0, c.code(), "%s %q", where, value)
				continue
			}
			require.Equal(t, map[bool]int{true: 64, false: 78}[where == "flag"], c.code(), "%s %q", where, value)
			require.Contains(t, c.stderr(), "ttl")
			require.NotRegexp(t, `\d{7}`, c.stderr(), "no raw nanoseconds")
		}
	}
	c := filePlace(t).run(t, "run", "--url", filePlace(t).url+"?ttl=10s", "--ttl", "7500ms", "job", "true")
	require.Equal(t, 78, c.code(), "two different values")
}

func TestCLI11ReleaseFails(t *testing.T) {
	for _, code := range []int{0, 3} {
		s := testserver.Private(t, testserver.Redis, nil)
		p := place{url: s.URL("redis") + "?ttl=30s"}
		in, out, err := os.Pipe()
		require.NoError(t, err)
		defer in.Close()
		c := p.command(t, "run", "job", "sh", "-c", "echo; read x; exit "+strconv.Itoa(code))
		c.Stdin = in
		c.start()
		eventually(t, "the command runs", func() bool { return c.stdout() != "" })
		s.Kill(t)
		start := time.Now()
		out.Close()
		require.Equal(t, code, c.code(), "the command's code stands")
		require.Less(t, time.Since(start), 5*time.Second+ttl)
		require.Contains(t, c.stderr(), "warning")
	}
}

func TestCLI12ArgumentsAreTheCommands(t *testing.T) {
	p := filePlace(t)
	dir := t.TempDir()
	for _, name := range []string{"args", "-weird-name"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nfor a; do printf '[%s]' \"$a\"; done"), 0o755))
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"job", "--", "args", "-v", "FILE"}, "[-v][FILE]"},
		{[]string{"job", "args", "--help"}, "[--help]"},
		{[]string{"job", "args", "--url", "x", "--ttl", "5"}, "[--url][x][--ttl][5]"},
		{[]string{"job", "--", "-weird-name"}, ""},
		{[]string{"job", "--", "-weird-name", "-x"}, "[-x]"},
		{[]string{"job", "--", "args", "--", "x"}, "[--][x]"},
		{[]string{"job", "args", "--", "x", "--", ""}, "[--][x][--][]"},
		{[]string{"--", "job", "--", "args", "x"}, "[x]"},
		{[]string{"--ttl", "5s", "--", "-job", "args", "a b", "$HOME", "*", ";", "\n"}, "[a b][$HOME][*][;][\n]"},
		{[]string{"job", "args", "completion", "version"}, "[completion][version]"},
	} {
		c := p.command(t, append([]string{"run"}, test.args...)...)
		c.Env = append(c.Env, "PATH="+dir+":"+os.Getenv("PATH"))
		require.Equal(t, 0, c.start().code(), "%q: %s", test.args, c.stderr())
		require.Equal(t, test.want, c.stdout(), "%q", test.args)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	require.Regexp(t, `^locker \S+ \(go\S+ \w+/\w+\)\n$`, place{}.run(t, "version").stdout())
	c := place{}.run(t, "completion", "bash")
	require.Equal(t, 0, c.code())
	if sh, err := exec.LookPath("bash"); err == nil {
		cmd := exec.Command(sh, "-n", filepath.Join(c.Dir, "stdout"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

func TestVerboseAndQuiet(t *testing.T) {
	p := filePlace(t)
	c := p.run(t, "run", "-v", "job", "true")
	require.Regexp(t, `(?s)acquired "job".*token \d+.*released "job"`, c.stderr())
	c = p.run(t, "run", "-q", "job", "no-such-command")
	require.Equal(t, 127, c.code())
	require.Empty(t, c.stderr())
}
