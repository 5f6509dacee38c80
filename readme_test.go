package locker_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeProgram runs the program that the README shows, as it stands there.
func TestReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, ok := strings.Cut(string(readme), "```go\n")
	program, _, closed := strings.Cut(program, "```\n")
	if !ok || !closed || !strings.HasPrefix(program, "package main\n") {
		t.Fatal("the README shows no program")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gofmt", "-l", source).Output(); err == nil && len(out) > 0 {
		t.Error("the program isn't formatted by gofmt")
	}
	// An overlay makes it a package of this module without writing into the tree.
	here, err := filepath.Abs("readme_program")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "main.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOCKER_URL", "file://"+filepath.Join(dir, "locks"))
	out := goCommand(t, "run", "-overlay", filepath.Join(dir, "overlay.json"), "./readme_program")
	if !regexp.MustCompile(`^reporting with token [1-9][0-9]*\n$`).MatchString(out) {
		t.Errorf("the program prints %q", out)
	}
}
