package main

import (
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestSkip"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"    a_test.go:5: needs etcd: it does not run\n"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestSkip","Elapsed":0}
{"Action":"run","Package":"m/a","Test":"TestPass"}
{"Action":"output","Package":"m/a","Test":"TestPass","Output":"quiet\n"}
{"Action":"pass","Package":"m/a","Test":"TestPass","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a","Elapsed":0.1}
{"ImportPath":"m/c","Action":"build-output","Output":"c.go:1: broken\n"}
{"Action":"run","Package":"m/b","Test":"TestFail"}
{"Action":"output","Package":"m/b","Test":"TestFail","Output":"    b_test.go:7: loud\n"}
{"Action":"output","Package":"m/b","Test":"TestFail","Output":"--- FAIL: TestFail (0.00s)\n"}
{"Action":"fail","Package":"m/b","Test":"TestFail","Elapsed":0}
{"Action":"run","Package":"m/b","Test":"TestHang"}
{"Action":"output","Package":"m/b","Test":"TestHang","Output":"panic: test timed out\n"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t0.1s\n"}
{"Action":"fail","Package":"m/b","Elapsed":0.1}
go: not an event
`

func TestSummary(t *testing.T) {
	var s summary
	var out strings.Builder
	s.read(strings.NewReader(events), &out, false)
	s.print(&out)
	want := "ok  \tm/a\t0.1s\nc.go:1: broken\n    b_test.go:7: loud\n--- FAIL: TestFail (0.00s)\nFAIL\tm/b\t0.1s\n" +
		"panic: test timed out\ngo: not an event\n\nSKIPPED\n  needs etcd: it does not run: 1\n    a.TestSkip\n\n1 passed, 1 failed, 1 skipped\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	new(summary).read(strings.NewReader(events), &out, true)
	if !strings.Contains(out.String(), "quiet") {
		t.Error("what a test printed is missing although the run is verbose")
	}
}

func TestModules(t *testing.T) {
	dirs, err := modules("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if dirs[0] != "../../.." {
		t.Errorf("the root is not first: %q", dirs)
	}
	for _, d := range dirs {
		if strings.Contains(d, "testservers") {
			t.Errorf("%s has no packages", d)
		}
	}
}
