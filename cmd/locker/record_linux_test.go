package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recording notes what appears on several terminals, and when.
type recording struct {
	mu    sync.Mutex
	start time.Time
	lines []string
}

func (r *recording) note(who, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("%5.1f s  %s  %s", time.Since(r.start).Seconds(), who, text))
}

// watch notes each line that s shows until it ends. A line that replaces itself is noted when it first appears.
func (r *recording) watch(who string, s *terminalSession) (done chan struct{}) {
	done = make(chan struct{})
	seconds := regexp.MustCompile(`[0-9.]+m?s`)
	go func() {
		defer close(done)
		noted, last := 0, ""
		for ended := false; ; {
			shown := s.shown()
			for noted < len(shown) {
				end := strings.IndexAny(shown[noted:], "\r\n")
				if end < 0 && !ended {
					if strings.Contains(shown[noted:], "waiting for") { // no end of line follows it
						end = len(shown) - noted
					} else {
						break
					}
				}
				if end < 0 {
					end = len(shown) - noted
				}
				line := strings.TrimRight(shown[noted:noted+end], " ")
				noted = min(noted+end+1, len(shown))
				if same := seconds.ReplaceAllString(line, ""); line != "" && same != last {
					last = same
					r.note(who, line)
				}
			}
			if ended {
				return
			}
			ended = s.exited()
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return done
}

// Two terminals and one lock: a wait, a loss and a hand-over. With LOCKER_RECORD=1 what they show is written to
// docs/two-terminals.md.
func TestTwoTerminals(t *testing.T) {
	p := redisPlace(t)
	r := &recording{start: time.Now()}
	run := func(who, script string) (*terminalSession, chan struct{}) {
		r.note(who, "$ locker run --ttl 3s nightly -- sh -c '"+script+"'")
		s := onTerminal(t, p, binary, "run", "--ttl", "3s", "nightly", "--", "sh", "-c", script)
		return s, r.watch(who, s)
	}
	a, doneA := run("A", `echo "A works"; sleep 1000; true`)
	a.shows("A works")
	b, doneB := run("B", `echo "B works with token $LOCKER_TOKEN"; sleep 4; echo "B is done"`)
	b.shows("waiting for")
	time.Sleep(time.Second) // for whoever watches

	r.note(" ", "(somebody deletes the key in Redis)")
	p.lose(t, "nightly")
	require.Equal(t, 79, a.code())
	<-doneA
	r.note("A", "(ends with 79)")
	b.shows("B works")
	a, doneA = run("A", `echo "A works with token $LOCKER_TOKEN"`)
	a.shows("waiting for")
	require.Equal(t, 0, b.code())
	<-doneB
	r.note("B", "(ends with 0)")
	require.Equal(t, 0, a.code())
	<-doneA
	r.note("A", "(ends with 0)")

	text := strings.Join(r.lines, "\n")
	// In which order the two terminals show what happens at the same time isn't fixed.
	require.Regexp(t, `(?s)A works.*waiting for "nightly", held by .*deletes.*lost "nightly".*ends with 79`, text)
	require.Regexp(t, `(?s)deletes.*B works with token.*waiting for "nightly", held by .*A works with token`, text)
	require.Contains(t, text, "B is done")
	tokens := regexp.MustCompile(`token ([0-9]+)\b`).FindAllStringSubmatch(text, -1)
	require.Less(t, tokens[len(tokens)-2][1], tokens[len(tokens)-1][1])
	if os.Getenv("LOCKER_RECORD") == "1" {
		host, _ := os.Hostname()
		text = strings.ReplaceAll(text, host+":", "host:")
		page := "# Two terminals and one lock\n\nA recorded run on Redis, with a TTL of 3 s: a wait, a loss and a hand-over, as they appeared on two terminals A and B. The\n" +
			"lines that say who is waited for are kept up to date in place; here is each one's beginning.\n\n```\n" + text + "\n```\n\n" +
			"Recorded with `LOCKER_RECORD=1 go test -run TestTwoTerminals ./cmd/locker`.\n"
		require.NoError(t, os.WriteFile("../../docs/two-terminals.md", []byte(page), 0o644))
	}
}
