package main

import "context"

// setup is what a backend is measured with. The first subject is the raw client, which the ratios refer to.
type setup struct {
	server   string // what was measured, with its version
	subjects []subject
	close    func()
}

func (s *setup) settings() map[string]string {
	settings := make(map[string]string)
	for _, x := range s.subjects {
		settings[x.name] = x.settings
	}
	return settings
}

// subject is one way to lock.
type subject struct {
	name     string
	settings string // for the reader
	peer     bool   // another library, which we compare ourselves with
	// acquire takes the lock of a name, waiting if need be, and returns the function that releases it.
	acquire func(ctx context.Context, name string) (release func(context.Context) error, err error)
}

func (s subject) cycle(ctx context.Context, name string) error {
	release, err := s.acquire(ctx, name)
	if err != nil {
		return err
	}
	return release(ctx)
}
