package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// summary counts tests, and remembers why some were skipped: go test itself says nothing of these
// unless one asks it to be verbose, and a skip must not look like a pass.
type summary struct {
	passed, failed, skipped int
	reasons                 map[string][]string // tests by reason
}

// goTest runs go test in dir. It prints what go test prints, and reports whether all passed.
func goTest(ctx context.Context, dir string, args []string, sum *summary) (bool, error) {
	verbose := slices.Contains(args, "-v") || slices.Contains(args, "-test.v")
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-race", "-count=1", "-timeout=30m"}, args...)...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	sum.read(out, os.Stdout, verbose)
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, err
	}
	return err == nil, ctx.Err()
}

// read turns events into what go test would print without -json.
func (s *summary) read(r io.Reader, w io.Writer, verbose bool) {
	output := make(map[string][]string) // of each test that has not ended, by package and name
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			fmt.Fprint(w, line) // not of go test's own
		}
		key := e.Package + " " + e.Test
		switch {
		case e.Action == "output" && e.Test != "" && !verbose:
			output[key] = append(output[key], e.Output)
		case e.Action == "output" && e.Test == "" && !verbose && (e.Output == "PASS\n" || strings.HasPrefix(e.Output, "testing: warning: no tests to run")):
		case e.Action == "output" || e.Action == "build-output":
			fmt.Fprint(w, e.Output)
			output[key] = append(output[key], e.Output)
		case e.Test == "" && e.Action == "fail": // a panic, or the time ran out: some tests never ended
			for k, text := range output {
				if strings.HasPrefix(k, e.Package+" ") && k != key && !verbose {
					fmt.Fprint(w, strings.Join(text, ""))
				}
			}
		case e.Test != "" && e.Action == "pass":
			s.passed++
			delete(output, key)
		case e.Test != "" && e.Action == "fail":
			s.failed++
			if !verbose {
				fmt.Fprint(w, strings.Join(output[key], ""))
			}
			delete(output, key)
		case e.Test != "" && e.Action == "skip":
			s.skipped++
			s.skip(e, output[key])
			delete(output, key)
		}
		if err != nil {
			return
		}
	}
}

// skip remembers the reason, which is the last line that the test logged.
func (s *summary) skip(e event, output []string) {
	reason := "no reason given"
	for _, line := range output {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "===") || strings.HasPrefix(text, "---") || text == "" {
			continue
		}
		// FILE.go:LINE: REASON
		if _, after, ok := strings.Cut(text, ".go:"); ok {
			if _, after, ok := strings.Cut(after, ": "); ok {
				text = after
			}
		}
		reason = text
	}
	if s.reasons == nil {
		s.reasons = make(map[string][]string)
	}
	s.reasons[reason] = append(s.reasons[reason], e.Package[strings.LastIndex(e.Package, "/")+1:]+"."+e.Test)
}

// print lists what was skipped, and the numbers.
func (s *summary) print(w io.Writer) {
	if s.skipped > 0 {
		fmt.Fprintf(w, "\nSKIPPED\n")
		reasons := make([]string, 0, len(s.reasons))
		for r := range s.reasons {
			reasons = append(reasons, r)
		}
		slices.Sort(reasons)
		for _, r := range reasons {
			fmt.Fprintf(w, "  %s: %d\n", r, len(s.reasons[r]))
			for _, name := range s.reasons[r] {
				fmt.Fprintf(w, "    %s\n", name)
			}
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
}
