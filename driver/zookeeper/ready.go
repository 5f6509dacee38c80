package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// ready waits until the session is connected and logged in. It fails when each server has refused since it began to wait.
func (s *session) ready(ctx context.Context) error {
	for first, rounds := true, 0; ; first = false {
		s.c.mu.Lock()
		state, changed := s.state, s.changed
		if first {
			rounds = s.rounds
		}
		err := s.cause
		if state == connecting && s.rounds > rounds {
			err = s.unavailable()
		}
		loggedIn := s.loggedIn
		s.c.mu.Unlock()
		if err != nil {
			return err
		}
		if state == up {
			if loggedIn {
				return nil
			}
			return s.logIn(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			s.c.mu.Lock()
			defer s.c.mu.Unlock()
			return fmt.Errorf("%w (%w)", s.unavailable(), ctx.Err())
		}
	}
}

// unavailable says that there is no connection, and why. It needs the Conn's mutex.
func (s *session) unavailable() error {
	if s.why != nil {
		return fmt.Errorf("zookeeper: no connection: %w", s.why)
	}
	return errors.New("zookeeper: no connection")
}

// logIn gives the credentials to the server, once per session: the library repeats them on each new connection.
func (s *session) logIn(ctx context.Context) error {
	select {
	case <-s.login:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return s.ended()
	}
	defer func() { s.login <- struct{}{} }()
	s.c.mu.Lock()
	done := s.loggedIn
	s.c.mu.Unlock()
	if done {
		return nil
	}
	user, password, err := s.c.o.credentials(ctx)
	if err != nil {
		return err
	}
	if user != "" {
		_, err = request(ctx, s, func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.AddAuth("digest", []byte(user+":"+password))
		})
		if err != nil {
			return answer(err, "log in", "/")
		}
	}
	s.c.mu.Lock()
	s.loggedIn = true
	s.c.mu.Unlock()
	return nil
}
