package testserver

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// silent fails the test unless the server keeps silent, or refuses, for a while.
func silent(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := s.Probe(ctx); err == nil {
		t.Fatalf("%s answers", s.Name)
	}
}

// TestPrivate starts each server that there can be a private one of, one after another.
func TestPrivate(t *testing.T) {
	for _, name := range Profile("all") {
		if servers[name] == nil || servers[name].command == nil {
			continue
		}
		t.Run(string(name), func(t *testing.T) {
			start := time.Now()
			s := Private(t, name, nil)
			t.Logf("%s after %.2f s", s.Addr, time.Since(start).Seconds())
		})
	}
}

func TestPrivateFaults(t *testing.T) {
	s := Private(t, Redis, &Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}})
	ctx := t.Context()
	set := func(value string) {
		t.Helper()
		if out, err := s.Exec(ctx, "redis-cli", "set", "k", value); err != nil || out != "OK" {
			t.Fatalf("%q, %v", out, err)
		}
	}
	set("v")
	for _, down := range []Action{Pause, Kill, Stop, Cut, Reject} {
		up := map[Action]Action{Pause: Resume, Kill: Start, Stop: Start, Cut: Heal, Reject: Heal}[down]
		t.Run(down.String(), func(t *testing.T) {
			s.try(t, down)
			silent(t, s)
			s.try(t, up)
			s.WaitReady(t)
		})
		t.Run(down.String()+" undone at the end", func(t *testing.T) {
			t.Run("", func(t *testing.T) { s.try(t, down); silent(t, s) })
			if err := s.answers(); err != nil {
				t.Fatal(err)
			}
		})
	}
	s.Cut(t)
	s.Reject(t) // replaces it
	start := time.Now()
	if err := s.answers(); err == nil || time.Since(start) > time.Second {
		t.Fatalf("%v after %s, want a reset at once", err, time.Since(start))
	}
	s.Pause(t)
	s.Kill(t) // although it is paused
	s.Start(t)
	s.Restart(t)
	s.Heal(t)
	if out, err := s.Exec(ctx, "redis-cli", "get", "k"); err != nil || out != "v" {
		t.Fatalf("after restarts with an append-only file: %q, %v", out, err)
	}
}

func TestPrivateIsRemoved(t *testing.T) {
	if DockerMissing() != nil {
		unavailable(t, Redis, DockerMissing())
	}
	var name string
	t.Run("use", func(t *testing.T) {
		s := Private(t, Redis, nil)
		s.Pause(t) // no hindrance
		name = s.host.(*container).name
	})
	out, err := docker(t.Context(), "ps", "--all", "--quiet", "--filter", "name="+name)
	if err != nil || out != "" {
		t.Fatalf("%s is still there: %q, %v", name, out, err)
	}
}

// TestSweep leaves a container as if its process had been killed.
func TestSweep(t *testing.T) {
	if DockerMissing() != nil {
		unavailable(t, Redis, DockerMissing())
	}
	c := Private(t, Redis, nil).host.(*container)
	image, err := imageFor("redis")
	if err != nil {
		t.Fatal(err)
	}
	// A process of that number exists, but it is another one: it started at another time.
	orphan, err := docker(t.Context(), "create", "--label", labelTest+"=private", "--label", labelOwner+"=1 1", image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { docker(context.Background(), "rm", "--force", orphan) })
	if err := Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := docker(t.Context(), "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, orphan) {
		t.Error("the container of a process that is gone was not removed")
	}
	if !strings.Contains(out, c.name) {
		t.Error("the container of a process that lives was removed")
	}
}

// TestCatalogue compares the commands and environments of private servers with the compose file's.
func TestCatalogue(t *testing.T) {
	text := composeConfig(t)
	for name, sp := range servers {
		block, ok := text[string(name)]
		if !ok {
			t.Errorf("%s is not in docker-compose.yml", name)
			continue
		}
		for _, word := range slices.Concat(sp.command, sp.env) {
			_, value, _ := strings.Cut(word, "=")
			for _, w := range []string{word, value} {
				w = strings.TrimSuffix(w, "{port}")
				if strings.Contains(block, flat(w)) {
					word = ""
				}
			}
			if word != "" && sp.command != nil {
				t.Errorf("%s: not in docker-compose.yml: %s", name, word)
			}
		}
	}
}
