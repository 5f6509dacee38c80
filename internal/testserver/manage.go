package testserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/leasekit/locker/internal/testserver/images"
)

// This file is for the command that runs the tests; tests themselves have no use for it.

// LockImages keeps other processes from making images at the same time.
func LockImages(ctx context.Context) (unlock func(), err error) {
	f, err := lockFile(ctx, "images", true)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// UpReady starts those of the services that do not run, and waits until all of them answer. It pulls
// or loads images, and builds none.
func UpReady(ctx context.Context, profile string, services []Name) error {
	state, err := states(ctx)
	if err != nil {
		return err
	}
	set, err := imageSet()
	if err != nil {
		return err
	}
	b := &images.Builder{Set: set, NoBuild: true, Log: os.Stderr}
	var missing []Name
	for _, n := range services {
		if state[n] == "running" {
			continue
		}
		missing = append(missing, n)
		if sp := servers[n]; sp != nil {
			if err := b.Ensure(ctx, images.ByName(sp.image)); err != nil {
				return err
			}
		}
	}
	if len(missing) > 0 {
		if err := removeServices(ctx, missing); err != nil { // dead ones, of whatever configuration
			return err
		}
		if err := Up(ctx, profile, missing); err != nil {
			return err
		}
	}
	for _, n := range services {
		if servers[n] == nil { // it only lends its network namespace
			continue
		}
		s, err := newServer(n, "")
		if err != nil {
			return err
		}
		ready, cancel := context.WithTimeout(ctx, readyTimeout)
		err = s.Ready(ready)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// Running returns the services that run.
func Running(ctx context.Context) ([]Name, error) {
	state, err := states(ctx)
	if err != nil {
		return nil, err
	}
	var names []Name
	for n, st := range state {
		if st == "running" {
			names = append(names, n)
		}
	}
	return names, nil
}

// StopSince removes what runs and is not among before, except for groups that the tests of another
// process, of another clone, use at the moment.
func StopSince(ctx context.Context, before []Name) error {
	state, err := states(ctx)
	if err != nil {
		return err
	}
	keep := slices.Clone(before)
	for name := range groups {
		if pid, services := readStarted(name); len(services) > 0 && startTime(pid) != "" {
			keep = append(keep, services...)
		}
	}
	if len(keep) == 0 {
		return Down(ctx)
	}
	var since []Name
	for n := range state {
		if !slices.Contains(keep, n) {
			since = append(since, n)
		}
	}
	return errors.Join(removeServices(ctx, since), Sweep(ctx))
}

// Down removes all servers of the project, its networks, and private servers of processes that are gone.
func Down(ctx context.Context) error {
	if err := DockerMissing(); err != nil {
		return err
	}
	err := compose(ctx, "--profile", "all", "down", "--volumes", "--remove-orphans")
	if e := clearStarted(); e != nil {
		err = errors.Join(err, e)
	}
	return errors.Join(err, Sweep(ctx))
}

// clearStarted forgets which groups tests have started.
func clearStarted() error {
	for name := range groups {
		if err := os.Remove(startedPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("testserver: %s: %w", filepath.Base(startedPath(name)), err)
		}
	}
	return nil
}
