package testserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// composeConfig returns what docker-compose makes of each service's description.
func composeConfig(t *testing.T) map[string]string {
	t.Helper()
	command, err := composeCommand()
	if err != nil {
		t.Skip(err)
	}
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	args := append(command[1:], "--file", filepath.Join(root, "docker-compose.yml"), "--profile", "all", "config")
	cmd := exec.Command(command[0], args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	services := make(map[string]string)
	name, inside := "", false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(line, " ") {
			inside = line == "services:"
		}
		if inside && strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "   ") {
			name = strings.TrimSuffix(strings.TrimSpace(line), ":")
		} else if inside {
			services[name] += flat(line)
		}
	}
	return services
}

// flat leaves out what YAML writers add to strings in different ways: quotes, blanks, line breaks.
func flat(s string) string {
	return strings.NewReplacer(" ", "", "\n", "", `"`, "", "'", "", `\`, "").Replace(s)
}
