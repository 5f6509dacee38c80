package testserver

import (
	"strings"
	"sync"
	"testing"
)

// locks are those that this process's tests hold. See the package comment for their order.
var locks = &lockTable{servers: make(map[string]*serverLock)}

type lockTable struct {
	mu      sync.Mutex
	alone   string // the test that holds the lock of all exclusive use; empty: none does
	servers map[string]*serverLock
}

// serverLock is the lock of one server.
type serverLock struct {
	opening sync.Mutex // held while the shared lock is taken for the first test
	holders []string   // tests that share it
	file    *heldFile  // for all of them
	owner   string     // the test that has it alone
}

// within reports whether test is outer or one of its subtests.
func within(test, outer string) bool {
	return outer != "" && (test == outer || strings.HasPrefix(test, outer+"/"))
}

func (l *lockTable) server(name string) *serverLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.servers[name]
	if s == nil {
		s = new(serverLock)
		l.servers[name] = s
	}
	return s
}

// shared takes the lock of a server together with other tests, until t ends. A test whose outer test
// has the server alone has it, too.
func (l *lockTable) shared(t testing.TB, name string) {
	t.Helper()
	s := l.server(name)
	l.mu.Lock()
	owned := within(t.Name(), s.owner)
	l.mu.Unlock()
	if owned {
		return
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	l.mu.Lock()
	join := s.file != nil
	if join {
		s.holders = append(s.holders, t.Name())
	}
	l.mu.Unlock()
	if !join {
		ctx, cancel := patience(t)
		defer cancel()
		// The gate is held by whoever waits for the server alone, so that new sharers queue up
		// behind it. One who has a share already passes: it might be the one that is waited for.
		gate, err := lockFile(ctx, name+".gate", true)
		if err != nil {
			t.Fatal(err)
		}
		file, err := lockFile(ctx, name, false)
		gate.Close()
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		s.file, s.holders = file, []string{t.Name()}
		l.mu.Unlock()
	}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, h := range s.holders {
			if h == t.Name() {
				s.holders = append(s.holders[:i], s.holders[i+1:]...)
				break
			}
		}
		if len(s.holders) == 0 {
			s.file.Close()
			s.file = nil
		}
	})
}

// exclusive takes the lock of all exclusive use and then that of the server, until t ends.
func (l *lockTable) exclusive(t testing.TB, name string) {
	t.Helper()
	l.single(t)
	s := l.server(name)
	l.mu.Lock()
	owned := within(t.Name(), s.owner)
	l.mu.Unlock()
	if owned {
		return
	}
	ctx, cancel := patience(t)
	defer cancel()
	gate, err := lockFile(ctx, name+".gate", true)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	file, err := lockFile(ctx, name, true)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	s.owner = t.Name()
	l.mu.Unlock()
	t.Cleanup(func() {
		l.mu.Lock()
		s.owner = ""
		l.mu.Unlock()
		file.Close()
	})
}

// single takes the lock that all exclusive use has in common, until t ends. The machine's few
// cores are one reason for it; the other is that nobody can then wait in a circle.
func (l *lockTable) single(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	mine := within(t.Name(), l.alone)
	for name, s := range l.servers {
		for _, h := range s.holders {
			if within(t.Name(), h) && !mine {
				l.mu.Unlock()
				t.Fatalf("testserver: %s shares %s already: call Exclusive or Group before Need, or use Private", h, name)
			}
		}
	}
	l.mu.Unlock()
	if mine {
		return
	}
	ctx, cancel := patience(t)
	defer cancel()
	file, err := lockFile(ctx, "exclusive", true)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.alone = t.Name()
	l.mu.Unlock()
	t.Cleanup(func() {
		l.mu.Lock()
		l.alone = ""
		l.mu.Unlock()
		file.Close()
	})
}
