package testserver

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// An Action is something that is done to a server.
type Action int

const (
	Pause   Action = iota + 1 // freeze: connections stay open, new ones open, nothing answers
	Resume                    // undo Pause; returns when the server answers again
	Kill                      // SIGKILL: connections end, new ones are refused
	Stop                      // shut down cleanly
	Start                     // after Kill or Stop, with what was on its disk; returns when the server answers again
	Restart                   // Stop and Start
	Cut                       // drop all packets between the server and everybody else: silence
	Reject                    // answer all packets with a TCP reset: connections end, new ones end at once
	Isolate                   // drop all packets between a member of a group and the other members; clients still reach it
	Heal                      // undo Cut, Reject and Isolate; does not wait for the server
)

var actionNames = []string{"", "pause", "resume", "kill", "stop", "start", "restart", "cut", "reject", "isolate", "heal"}

func (a Action) String() string { return actionNames[a] }

// condition is what is wrong with a server on purpose.
type condition struct {
	paused, stopped, cut bool
}

// Do does something to the server. It is not undone before the end of the test that the server was
// handed to; the methods below undo it at the end of the test that they are given.
//
// It is an error to do something to a server from Need, which is shared with tests that run at the same
// time, and one that matches errors.ErrUnsupported where the server is not ours or has no container.
func (s *Server) Do(ctx context.Context, a Action) error {
	if s.faults != nil {
		return s.faults
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down.cut && (a == Cut || a == Reject || a == Isolate) { // one cut replaces another
		if err := s.host.do(ctx, Heal); err != nil {
			return fmt.Errorf("testserver: healing %s: %w", s.Name, err)
		}
		s.down.cut = false
	}
	if s.down.paused && (a == Kill || a == Stop || a == Restart) { // Docker kills nothing that is paused
		if err := s.host.do(ctx, Resume); err != nil {
			return fmt.Errorf("testserver: resuming %s: %w", s.Name, err)
		}
		s.down.paused = false
	}
	if a == Heal && !s.down.cut || a == Resume && !s.down.paused || a == Start && !s.down.stopped {
		return nil
	}
	// What is marked before it is done is undone even if only half of it was done.
	switch a {
	case Pause:
		s.down.paused = true
	case Kill, Stop, Restart:
		s.down.stopped = true
	case Cut, Reject, Isolate:
		s.down.cut = true
	}
	if err := s.host.do(ctx, a); err != nil {
		return fmt.Errorf("testserver: %s %s: %w", a, s.Name, err)
	}
	switch a {
	case Resume:
		s.down.paused = false
	case Start, Restart:
		s.down.stopped = false
	case Heal:
		s.down.cut = false
	}
	if (a == Resume || a == Start || a == Restart) && s.down == (condition{}) {
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		return s.Ready(ctx)
	}
	return nil
}

// undo undoes all that was done to the server, without waiting until it answers.
func (s *Server) undo(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, step := range []struct {
		flag *bool
		a    Action
	}{{&s.down.paused, Resume}, {&s.down.stopped, Start}, {&s.down.cut, Heal}} {
		if !*step.flag {
			continue
		}
		if err := s.host.do(ctx, step.a); err != nil {
			errs = append(errs, fmt.Errorf("testserver: %s %s: %w", step.a, s.Name, err))
			continue
		}
		*step.flag = false
	}
	return errors.Join(errs...)
}

// restore is undo, and waits until the server answers.
func (s *Server) restore(ctx context.Context) error {
	if err := s.undo(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return s.Ready(ctx)
}

// try does a, fails the test if that fails, and has the server restored at the test's end.
func (s *Server) try(t testing.TB, a Action) {
	t.Helper()
	if errors.Is(s.faults, errors.ErrUnsupported) {
		unavailable(t, s.Name, s.faults)
	}
	if s.owner != t.Name() { // its own test removes or restores it anyway
		t.Cleanup(func() { restore(t, s) })
	}
	err := s.Do(context.Background(), a)
	if errors.Is(err, errors.ErrUnsupported) { // such as cutting off a process, or without the tools' image
		unavailable(t, s.Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (s *Server) touched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down != condition{}
}

// Pause freezes the server: connections stay, and nothing answers on them.
func (s *Server) Pause(t testing.TB) { t.Helper(); s.try(t, Pause) }

// Resume thaws it and waits until it answers.
func (s *Server) Resume(t testing.TB) { t.Helper(); s.try(t, Resume) }

// Kill ends it at once.
func (s *Server) Kill(t testing.TB) { t.Helper(); s.try(t, Kill) }

// Stop shuts it down cleanly.
func (s *Server) Stop(t testing.TB) { t.Helper(); s.try(t, Stop) }

// Start starts it after Kill or Stop and waits until it answers.
func (s *Server) Start(t testing.TB) { t.Helper(); s.try(t, Start) }

// Restart is Stop and Start.
func (s *Server) Restart(t testing.TB) { t.Helper(); s.try(t, Restart) }

// Cut drops all packets between the server and everybody else.
func (s *Server) Cut(t testing.TB) { t.Helper(); s.try(t, Cut) }

// Reject ends connections and refuses new ones while the server itself goes on.
func (s *Server) Reject(t testing.TB) { t.Helper(); s.try(t, Reject) }

// Isolate cuts a member of a group off from the other members only.
func (s *Server) Isolate(t testing.TB) { t.Helper(); s.try(t, Isolate) }

// Heal undoes Cut, Reject and Isolate.
func (s *Server) Heal(t testing.TB) { t.Helper(); s.try(t, Heal) }
