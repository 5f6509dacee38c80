//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// recipes returns the blocks of docs/recipes.md in a language.
func recipes(t *testing.T, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/recipes.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	require.NotEmpty(t, blocks)
	return blocks
}

// inPath makes a directory of commands: locker, and scripts.
func inPath(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Symlink(binary, filepath.Join(dir, "locker")))
	for name, script := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	return dir
}

func TestRecipeCron(t *testing.T) {
	block := recipes(t, "cron")[0]
	_, line, ok := strings.Cut(block, "* * * *  ")
	require.True(t, ok)
	dir := inPath(t, map[string]string{"sync-orders": `echo "$@" >>"$ran"; [ -n "$hold" ] && { echo; exec sleep 1000; }; exit 3`})
	p := redisPlace(t)
	ran := filepath.Join(dir, "ran")
	start := func(env ...string) *process {
		c := p.command(t)
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", strings.TrimSpace(line)}
		c.Env = append(c.Env, append(env, "PATH="+dir+":"+os.Getenv("PATH"), "ran="+ran)...)
		return c.start()
	}
	first := start("hold=1")
	eventually(t, "it runs", func() bool { return first.stdout() != "" })
	second := start()
	require.Equal(t, 0, second.code(), "somebody else is at it")
	require.Empty(t, second.stdout()+second.stderr())
	require.NoError(t, syscall.Kill(-first.Process.Pid, syscall.SIGTERM)) // sh and locker
	first.code()
	p.isFree(t, "sync", ttl)
	require.Equal(t, 3, start().code(), "the job's own code")
	log, err := os.ReadFile(ran)
	require.NoError(t, err)
	require.Equal(t, "--all\n--all\n", string(log))
}

func TestRecipeSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze isn't installed")
	}
	units := recipes(t, "ini")
	require.Len(t, units, 2)
	dir := t.TempDir()
	bin := inPath(t, map[string]string{"report": "exit 0"})
	service := strings.NewReplacer("/usr/local/bin/", bin+"/", "EnvironmentFile=/", "EnvironmentFile=-/").Replace(units[0])
	for name, unit := range map[string]string{"report.service": service, "report.timer": units[1]} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(unit), 0o644))
	}
	out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, "report.service"), filepath.Join(dir, "report.timer")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "report.", "it has something to say about our units")
}

func TestRecipeKubernetes(t *testing.T) {
	block := recipes(t, "yaml")[0]
	list := regexp.MustCompile(`command: \[(.*)\]`).FindStringSubmatch(block)
	require.NotNil(t, list)
	var args []string
	for word := range strings.SplitSeq(list[1], ", ") {
		args = append(args, strings.Trim(word, `"`))
	}
	require.Equal(t, "locker", args[0])
	args[len(args)-1] = "sh"
	p := redisPlace(t)
	require.Equal(t, 4, p.run(t, append(args[1:], "-c", "exit 4")...).code())
}

func TestMan(t *testing.T) {
	p := filePlace(t)
	page := p.run(t, "man").stdout()
	for _, want := range []string{".TH LOCKER 1", ".SH LOCKER RUN", `\fB\-\-max\-hold \fIDURATION\fR`, ".SH LOCKER DOCTOR", "79       the lock was lost", "LOCKER_URL"} {
		require.Contains(t, page, want)
	}
	for line := range strings.Lines(page) {
		require.Regexp(t, `^(\.(TH|SH|SS|TP|PP|B|br|nf|fi)\b.*|[^.'].*)?\n$`, line, "a line of the text is taken for a request")
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		return
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww")
	cmd.Stdin = strings.NewReader(page)
	var errs strings.Builder
	cmd.Stderr = &errs
	require.NoError(t, cmd.Run())
	require.Empty(t, errs.String())
}
