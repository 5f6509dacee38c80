//go:build unix

package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCLI14StdinStdoutStderrAreTheCommands(t *testing.T) {
	p := filePlace(t)
	data := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{})
	r.Read(data)
	c := p.command(t, "run", "job", "--", "cat")
	c.Stdin = bytes.NewReader(data)
	require.Equal(t, 0, c.start().code())
	got, err := os.ReadFile(filepath.Join(c.Dir, "stdout"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))

	c = p.run(t, "run", "job", "--", "sh", "-c", "echo out; echo err >&2")
	require.Equal(t, "out\n", c.stdout())
	require.Equal(t, "err\n", c.stderr())

	// They are the same open files, and so are others that the locker was started with; none of its own is among them.
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	const list = "cd /proc/self/fd && for f in *; do readlink $f; done | grep -v /proc/"
	c = p.command(t, "run", "job", "sh", "-c", list)
	c.Stdin, c.ExtraFiles = in, []*os.File{in}
	require.Equal(t, 0, c.start().code())
	direct := exec.Command("sh", "-c", list)
	direct.Stdin, direct.Stdout, direct.Stderr, direct.ExtraFiles = c.Stdin, c.create("direct"), c.Cmd.Stderr, c.ExtraFiles
	require.NoError(t, direct.Run())
	require.Equal(t, strings.ReplaceAll(c.read("direct"), "/direct", "/stdout"), c.stdout())
	require.GreaterOrEqual(t, strings.Count(c.stdout(), "pipe:"), 2)
}

func TestCLI14StdinIsNotRead(t *testing.T) {
	p := filePlace(t)
	holder := p.holding(t, "job", "sh", "-c", "echo; exec sleep 1000")
	in, out, err := os.Pipe()
	require.NoError(t, err)
	_, err = out.WriteString("precious")
	require.NoError(t, err)
	out.Close()
	c := p.command(t, "run", "--wait", "500ms", "job", "cat")
	c.Stdin = in
	require.Equal(t, 75, c.start().code())
	b, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b), "CLI-14: it isn't consumed while waiting")
	holder.signal(syscall.SIGTERM)
	holder.code()
}
