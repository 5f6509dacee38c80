package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/goleak"
)

const (
	atOnce   = 8 // cases that run at the same time: most of them wait for a TTL
	attempts = 5 // of a case while the machine stalls
)

// suite is one run of the cases against a backend.
type suite struct {
	b        Backend
	process  *processes // nil under Check
	pulse    *pulse     // nil before the first case
	virtual  bool
	ignored  []goleak.Option
	before   map[string]int // goroutines by what has created them
	sessions int            // at the backend, before; -1 if they can't be counted
}

func newSuite(b Backend) *suite {
	s := &suite{b: b, ignored: []goleak.Option{goleak.IgnoreCurrent()}, before: creators(), sessions: -1}
	for _, f := range b.Background {
		s.ignored = append(s.ignored, goleak.IgnoreAnyFunction(f))
	}
	return s
}

func (s *suite) log(text string) {
	if s.b.Log != nil {
		s.b.Log(text)
	}
}

// result is what became of a case.
type result struct {
	name, rule string
	skipped    string // why it has no verdict
	failures   []string
	notes      []string
	took       time.Duration
}

func (r result) err() error {
	text := fmt.Sprintf("%s: %s\n\t%s", r.name, r.rule, strings.Join(r.failures, "\n\t"))
	if len(r.notes) > 0 {
		text += "\n\t(" + strings.Join(r.notes, "; ") + ")"
	}
	return errors.New(text)
}

// selected returns the cases that keep accepts, which may be nil.
func (s *suite) selected(keep func(name string) bool) []testCase {
	var chosen []testCase
	for _, c := range cases {
		if (len(s.b.Only) == 0 || slices.Contains(s.b.Only, c.name)) && (keep == nil || keep(c.name)) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// run runs cases, several at a time, those that measure the process or the server at the end and each alone. Results
// come in the order of the cases.
func (s *suite) run(ctx context.Context, chosen []testCase) iter.Seq[result] {
	if s.b.Admin.Sessions != nil {
		if n, err := s.b.Admin.Sessions(ctx); err == nil {
			s.sessions = n
		}
	}
	s.pulse = s.watchServer()
	results := make([]chan result, len(chosen))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	go func() {
		slots := make(chan struct{}, atOnce)
		var wg sync.WaitGroup
		for i, c := range chosen {
			if c.alone {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				results[i] <- s.result(ctx, c)
				<-slots
			})
		}
		wg.Wait()
		for i, c := range chosen {
			if c.alone {
				results[i] <- s.result(ctx, c)
			}
		}
	}()
	return func(yield func(result) bool) {
		defer s.pulse.stop()
		for _, r := range results {
			if !yield(<-r) {
				return
			}
		}
	}
}

// result runs a case, again if it fails while the machine stalls.
func (s *suite) result(ctx context.Context, c testCase) result {
	why := s.b.excuse(c)
	if s.process == nil && slices.Contains(c.needs, needProcesses) && why == "" {
		why = "not run: needs processes, which only Run starts"
	}
	if why != "" {
		r := result{name: c.name, rule: c.rule, skipped: why}
		if s.b.RequireAll && !strings.HasPrefix(why, "excused") {
			r.skipped, r.failures = "", []string{why + ", and Backend.RequireAll allows that with an excuse only"}
		}
		return r
	}
	var stalls []string
	for attempt := 1; ; attempt++ {
		m, began := watchMachine(s.virtual), time.Now()
		r := s.once(ctx, c)
		stall := max(m.stop(), s.pulse.worst(began))
		if len(r.failures) == 0 || stall < s.b.TTL/8 || attempt == attempts {
			r.notes = append(r.notes, stalls...)
			return r
		}
		stalls = append(stalls, fmt.Sprintf("run again, since the machine or the server stood still for %v: %s", stall.Round(time.Millisecond), r.failures[0]))
	}
}

// caseBound is the time after which a case counts as hanging.
func (s *suite) caseBound() time.Duration {
	d := 100*s.b.TTL + 2*time.Minute
	if long() {
		d *= 20
	}
	return d
}

// once runs a case and sees that it leaves nothing behind.
func (s *suite) once(outer context.Context, c testCase) result {
	// The case's context has no deadline, since a wait without one is a promise of its own.
	ctx, stop := context.WithCancel(context.WithoutCancel(outer))
	defer stop()
	defer context.AfterFunc(outer, stop)()
	defer time.AfterFunc(s.caseBound(), stop).Stop()
	e := newEnv(ctx, &s.b, s.process)
	began := time.Now()
	done := make(chan struct{})
	// Goroutines inherit labels, so that those a case leaves behind are told from those of the cases beside it.
	label := c.name + " " + e.tag
	go pprof.Do(context.Background(), pprof.Labels("conformance", label), func(context.Context) {
		defer close(done)
		defer e.finish()
		defer e.caught()
		c.run(e)
	})
	hung := time.NewTimer(s.caseBound() + 30*time.Second)
	defer hung.Stop()
	select {
	case <-done:
		e.goroutines(label)
		e.entries(stop)
	case <-hung.C:
		e.Errorf("the case hangs; its goroutines:\n%s", strings.Join(labelled(label, nil), "\n\n"))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	r := result{name: c.name, rule: c.rule, failures: e.failures, notes: e.notes, took: time.Since(began)}
	if len(e.failures) == 0 {
		r.skipped = e.skipped
	}
	return r
}

// caught turns a panic into a failure, so that one case doesn't hide the others.
func (e *env) caught() {
	if p := recover(); p != nil {
		buf := make([]byte, 16<<10)
		e.Errorf("panic: %v\n%s", p, buf[:runtime.Stack(buf, false)])
	}
}
