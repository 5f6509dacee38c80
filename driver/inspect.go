package driver

import (
	"context"
	"time"
)

// Entry is what a backend knows about a name.
type Entry struct {
	Name      string
	Held      bool
	Owner     string        // the holder's label, as far as the entry has one; "" for a foreign client's
	ID        string        // the holder's identity, "" for a foreign client's
	Since     time.Time     // when the holder took it, by the holder's wall clock; zero if not known
	Token     uint64        // the holder's token; 0 if not known
	Remaining time.Duration // what is left of the entry's or session's TTL; 0 if not known
	Waiters   int           // the length of the queue at the backend; -1 if there is none to count
}

// Inspector is implemented by a Conn that can look without touching. It needs no more than the right to read.
type Inspector interface {
	// Inspect returns the entry of a name; a free name is an Entry that isn't Held, and no error.
	Inspect(ctx context.Context, name string) (Entry, error)
	// List calls yield for each held name under the Conn's prefix, in no particular order, until yield returns false.
	List(ctx context.Context, yield func(Entry) bool) error
}

// Severity orders findings.
type Severity int

const (
	Pass Severity = iota // looked at and found in order
	Note                 // worth knowing
	Warn                 // locks work and their promises are weaker than they could be
	Fail                 // locks don't work, or break a promise
)

// String returns "pass", "note", "warn" or "fail".
func (s Severity) String() string {
	switch s {
	case Pass:
		return "pass"
	case Note:
		return "note"
	case Warn:
		return "warn"
	}
	return "fail"
}

// Finding is one result of a check.
type Finding struct {
	Check    string   // a short stable name: "eviction"
	Severity Severity // Pass where all is well, so that the reader sees what was checked
	Detail   string   // what was found
	Advice   string   // what to do about it; "" for Pass
}

// Checker is implemented by a Conn that can tell whether its backend is fit for locks.
type Checker interface {
	// Check looks at the backend's version, settings, rights and clocks. It fails only if it couldn't ask at all; what it
	// may not see is a finding. It leaves nothing behind.
	Check(ctx context.Context) ([]Finding, error)
}
