package conformance

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"go.uber.org/goleak"
)

// goroutines sees that none is left which the case, or the library for it, has started.
func (e *env) goroutines(label string) {
	var left []string
	for end := time.Now().Add(e.patience); ; time.Sleep(10 * time.Millisecond) {
		if left = labelled(label, e.b.Background); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	e.Errorf("%d kinds of goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
}

// labelled returns the groups of goroutines that carry a label.
func labelled(label string, background []string) []string {
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return []string{err.Error()}
	}
	var found []string
	for group := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(group, label) && !slices.ContainsFunc(background, func(f string) bool { return strings.Contains(group, f) }) {
			found = append(found, group)
		}
	}
	return found
}

// creators counts the goroutines of the process by the functions that have started them.
func creators() map[string]int {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	kinds := make(map[string]int)
	for s := range strings.SplitSeq(string(buf), "\n") {
		if by, ok := strings.CutPrefix(s, "created by "); ok {
			by, _, _ = strings.Cut(by, " in goroutine")
			kinds[by]++
		}
	}
	return kinds
}

// more reports whether there are more goroutines of any kind than before the first case.
func (s *suite) more() bool {
	for by, n := range creators() {
		if n > s.before[by] {
			return true
		}
	}
	return false
}

// entries sees that nothing of the case is left in the store once its Lockers are closed and entries that nobody could
// remove have had the time to expire.
func (e *env) entries(stop func()) {
	defer stop()
	if e.b.Admin.Entries == nil {
		return
	}
	var left []string
	for end := time.Now().Add(e.patience + 2*e.b.TakeOver); ; time.Sleep(max(e.ttl/20, 5*time.Millisecond)) {
		all, err := e.b.Admin.Entries(e.ctx)
		if err != nil {
			e.Errorf("Admin.Entries: %v", err)
			return
		}
		left = slices.DeleteFunc(all, func(s string) bool { return !strings.Contains(s, e.tag) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	e.Errorf("entries are left in the store: %q", left)
}

// leftovers sees that after all cases nothing is left that can't be assigned to one of them.
func (s *suite) leftovers(ctx context.Context) (errs []error) {
	if !s.virtual { // where time is virtual, package synctest looks itself
		// An admin's client that has connected anew has other goroutines than before, and no more of them.
		if err := goleak.Find(s.ignored...); err != nil && s.more() {
			errs = append(errs, fmt.Errorf("resources: goroutines are left after all cases: %w", err))
		}
	}
	end := time.Now().Add(15*s.b.TTL + 2*s.b.TakeOver + 15*time.Second)
	for s.sessions >= 0 {
		n, err := s.b.Admin.Sessions(ctx)
		if err == nil && n <= s.sessions {
			break
		}
		if time.Now().After(end) {
			errs = append(errs, fmt.Errorf("resources: %d sessions are left after all cases, %d were there before (%v)", n, s.sessions, err))
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for s.b.Admin.Entries != nil {
		left, err := s.b.Admin.Entries(ctx)
		if err == nil && len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			errs = append(errs, fmt.Errorf("resources: entries are left after all cases: %q (%v)", left, err))
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errs
}
