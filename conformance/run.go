package conformance

import (
	"flag"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
)

// Run runs all cases against b, each as a subtest. It starts processes that run the test binary again, up to the same call
// of Run; see [Contender] if what comes before it must not be repeated.
func Run(t *testing.T, b Backend) {
	t.Helper()
	Contender()
	if err := b.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.Log == nil {
		b.Log = func(text string) { t.Log(text) }
	}
	s := newSuite(b)
	s.process = newProcesses(t.Name())
	chosen := s.selected(subtests(t.Name()))
	i := 0
	for r := range s.run(t.Context(), chosen) {
		t.Run(chosen[i].name, func(t *testing.T) { r.report(t) })
		i++
	}
	for _, err := range s.leftovers(t.Context()) {
		t.Error(err)
	}
}

// RunVirtual runs the cases under virtual time, each in a testing/synctest bubble of its own, with a backend that
// newBackend makes inside it. It is for backends without servers whose time is that of the process.
func RunVirtual(t *testing.T, newBackend func() Backend) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var r result
			synctest.Test(t, func(t *testing.T) { r = inBubble(t, newBackend(), c) })
			r.report(t)
		})
	}
}

// inBubble runs a case in the bubble of its caller.
func inBubble(t *testing.T, b Backend, c testCase) result {
	if len(b.Addrs) > 0 {
		t.Fatal("conformance: a backend with servers has no virtual time")
	}
	if err := b.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := newSuite(b)
	s.virtual = true
	r := s.result(t.Context(), c)
	for _, err := range s.leftovers(t.Context()) {
		r.failures = append(r.failures, err.Error())
	}
	return r
}

// report turns a result into that of a subtest.
func (r result) report(t *testing.T) {
	t.Helper()
	switch {
	case len(r.failures) > 0:
		t.Error(r.err())
	case r.skipped != "":
		t.Skipf("%s: %s", r.name, r.skipped)
	default:
		for _, n := range r.notes {
			t.Log(n)
		}
		if testing.Verbose() {
			t.Logf("%.2fs: %s", r.took.Seconds(), r.rule)
		}
	}
}

// subtests returns a function that says which subtests of a test the flag -test.run selects, so that cases which won't
// be reported aren't run.
func subtests(test string) func(name string) bool {
	f := flag.Lookup("test.run")
	if f == nil {
		return nil
	}
	parts := strings.Split(f.Value.String(), "/")
	depth := strings.Count(test, "/") + 1
	if len(parts) <= depth || strings.Contains(f.Value.String(), "|") && len(parts) > depth+1 {
		return nil
	}
	re, err := regexp.Compile(parts[depth])
	if err != nil {
		return nil
	}
	return re.MatchString
}
