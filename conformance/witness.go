package conformance

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

// witness is an append-only log that all contenders for one name write to, in one process or in several. It judges from
// the order of its lines alone, in a way that a slow machine can't mislead:
//
// A contender that holds a lease appends a line, and only then asks the lease's context whether it lives. If it does, the
// contender appends that the line is confirmed. A lease never revives, so a confirmed line proves that the lease was live
// when the line was appended, whatever happened between the append and the question. Two leases whose confirmed lines
// interleave were held at the same time; there is no other explanation. A line that isn't confirmed proves nothing and is
// ignored.
type witness struct {
	mu    sync.Mutex
	lines []line
	file  *os.File // nil within one process
}

type line struct {
	who       string
	what      string // "enter", "write" or "leave"
	token     locker.Token
	seq       int // of the contender's line, to confirm it by
	confirmed bool
	at        time.Time // in this process only; zero in lines read from a file
}

// newWitnessFile makes a witness that other processes can open by its path.
func newWitnessFile(path string) (*witness, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &witness{file: f}, nil
}

// visit is the stay of one holder.
type visit struct {
	w     *witness
	who   string
	lease locker.Lease
	seq   int
}

// enter is called by a contender that was granted a lease.
func (w *witness) enter(who string, l locker.Lease) *visit {
	v := &visit{w: w, who: who, lease: l}
	v.append("enter")
	return v
}

// write is what the lock protects. It returns false once the lease has ended.
func (v *visit) write() bool { return v.append("write") }

// leave is called before the release.
func (v *visit) leave() bool { return v.append("leave") }

func (v *visit) append(what string) bool {
	v.seq++
	l := line{who: v.who, what: what, token: v.lease.Token(), seq: v.seq, at: time.Now()}
	w := v.w
	if w.file != nil {
		// One write with O_APPEND: lines of several processes don't mix, and stand in the order of the writes.
		fmt.Fprintf(w.file, "%s %s %d %d\n", what, v.who, l.token, v.seq)
		if v.lease.Context().Err() != nil {
			return false
		}
		fmt.Fprintf(w.file, "confirm %s %d %d\n", v.who, l.token, v.seq)
		return true
	}
	w.mu.Lock()
	at := len(w.lines)
	w.lines = append(w.lines, l)
	w.mu.Unlock()
	if v.lease.Context().Err() != nil {
		return false
	}
	w.mu.Lock()
	w.lines[at].confirmed = true
	w.mu.Unlock()
	return true
}

// stay writes until the lease ends or ctx does, and reports whether the lease lives.
func (v *visit) stay(ctx context.Context, every time.Duration) bool {
	t := time.NewTicker(every)
	defer t.Stop()
	for v.write() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return true
		}
	}
	return false
}

// read returns the lines so far.
func (w *witness) read() ([]line, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return append([]line(nil), w.lines...), nil
	}
	text, err := io.ReadAll(io.NewSectionReader(w.file, 0, 1<<40))
	if err != nil {
		return nil, err
	}
	var lines []line
	index := make(map[string]int)
	for s := range strings.SplitSeq(string(text), "\n") {
		f := strings.Fields(s)
		if len(f) != 4 {
			continue // a contender was killed while it wrote, or there is none
		}
		token, err1 := strconv.ParseUint(f[2], 10, 64)
		seq, err2 := strconv.Atoi(f[3])
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("the witness has a line %q", s)
		}
		key := f[1] + " " + f[2] + " " + f[3]
		if f[0] == "confirm" {
			if i, ok := index[key]; ok {
				lines[i].confirmed = true
			}
			continue
		}
		index[key] = len(lines)
		lines = append(lines, line{who: f[1], what: f[0], token: locker.Token(token), seq: seq})
	}
	return lines, nil
}

// check returns what is wrong with the log: holders that overlap, tokens that don't rise in the order of entry.
func (w *witness) check() error {
	lines, err := w.read()
	if err != nil {
		return err
	}
	return judge(lines)
}

func judge(lines []line) error {
	holder := func(l line) string { return fmt.Sprintf("%s with token %d", l.who, l.token) }
	var last *line                        // confirmed
	entered := make(map[string]int)       // holder to the line of its first confirmed one
	owners := make(map[locker.Token]line) // who had a token
	for i, l := range lines {
		if !l.confirmed {
			continue
		}
		if o, ok := owners[l.token]; ok && o.who != l.who {
			return fmt.Errorf("token %d was granted to %s and to %s", l.token, o.who, l.who)
		}
		owners[l.token] = l
		first, known := entered[holder(l)]
		switch {
		case last != nil && holder(*last) == holder(l):
		case known:
			return fmt.Errorf("two holders at once: %s was live in line %d, and again in line %d, although %s was live in line %d", holder(l), first+1, i+1, holder(*last), i)
		case last != nil && l.token <= last.token:
			return fmt.Errorf("tokens don't rise in the order of grants: %s entered after %s", holder(l), holder(*last))
		}
		if !known {
			entered[holder(l)] = i
		}
		last = &lines[i]
	}
	return nil
}

// judged fails the case if the witness has seen something wrong.
func (e *env) judged(w *witness) {
	if err := w.check(); err != nil {
		e.fail("witness: %v", err)
	}
}
