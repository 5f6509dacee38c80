package locker_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/leasekit/locker"

// The rule of what may import what, so that a program which uses one backend links no other's client, and one which uses
// none links nothing but the standard library. Each line lists what the non-test code of a package may depend on beyond
// the standard library, however indirectly; "+" is a package with all that it needs itself.
var importRules = []struct {
	packages string
	allowed  []string
}{
	{".", []string{".", "./driver", "./internal/clock"}},
	{"./driver", []string{"./driver", "./internal/clock"}},
	{"./internal/clock", []string{"./internal/clock"}},
	{"./driver/memory", []string{"./driver/memory", "./driver", "./internal/clock"}},
	{"./fence", []string{"./fence", ".", "./driver", "./internal/clock"}},
	{"./conformance", []string{
		".", "./...",
		"+github.com/stretchr/testify/require", "+go.uber.org/goleak", "+github.com/anishathalye/porcupine",
	}},
}

func TestImports(t *testing.T) {
	for _, rule := range importRules {
		if files, _ := filepath.Glob(rule.packages + "/*.go"); len(files) == 0 {
			continue // there is no such package yet
		}
		t.Run(rule.packages, func(t *testing.T) {
			var allowed []string
			for _, a := range rule.allowed {
				if pkg, ok := strings.CutPrefix(a, "+"); ok {
					allowed = append(allowed, dependencies(t, pkg)...)
					continue
				}
				allowed = append(allowed, strings.TrimSuffix(module+strings.TrimPrefix(a, "."), "/"))
			}
			got := dependencies(t, rule.packages)
			if !slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, module) }) {
				t.Fatalf("go list names %q, and not even the package itself", got)
			}
			for _, p := range got {
				if !slices.ContainsFunc(allowed, func(a string) bool {
					tree, ok := strings.CutSuffix(a, "...")
					return p == a || ok && strings.HasPrefix(p, tree)
				}) {
					t.Errorf("%s depends on %s", rule.packages, p)
				}
			}
		})
	}
}

// dependencies lists the packages that a package's code needs, itself included and the standard library not.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	return strings.Fields(goCommand(t, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg))
}

// The root module, its tests included, must not require a nested one: their dependencies would reach its users.
func TestRootRequiresNoNestedModule(t *testing.T) {
	var mod struct {
		Module  struct{ Path string }
		Require []struct{ Path string }
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal([]byte(goCommand(t, "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	if mod.Module.Path != module || len(mod.Require) == 0 {
		t.Fatalf("go.mod reads as %+v", mod)
	}
	nested := []string{module}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if err != nil || d.Name() != "go.mod" || path == "go.mod" {
			return err
		}
		name, _, _ := strings.Cut(goCommand(t, "list", "-C", filepath.Dir(path), "-m", "-mod=readonly"), "\n")
		nested = append(nested, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if slices.Contains(nested, r.Path) || strings.HasPrefix(r.Path, module+"/") {
			t.Errorf("go.mod requires %s", r.Path)
		}
	}
	for _, r := range mod.Replace {
		t.Errorf("go.mod replaces %s, which users of the module don't get", r.Old.Path)
	}
}

func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("go")
	if err != nil {
		t.Skip("the go command isn't there")
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, failed.String())
	}
	return string(out)
}
