package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// The library keeps every watch until its node changes, also those that nobody waits for any more, and has no call that
// removes one. So each path is watched once, however many look at it, and those who wait are told by the session.

// subscribe makes ch receive what happens to a path, from now on.
func (s *session) subscribe(path string, ch chan struct{}) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.wakers[path] = append(s.wakers[path], ch)
}

func (s *session) unsubscribe(path string, ch chan struct{}) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	rest := s.wakers[path][:0]
	for _, other := range s.wakers[path] {
		if other != ch {
			rest = append(rest, other)
		}
	}
	if len(rest) == 0 {
		delete(s.wakers, path)
	} else {
		s.wakers[path] = rest
	}
}

// watching reports whether a path is watched already, and notes that it will be.
func (s *session) watching(path string) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.watched[path] {
		return true
	}
	s.watched[path] = true
	return false
}

// unwatched notes that a watch could not be set, and wakes those who trusted in it.
func (s *session) unwatched(path string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	delete(s.watched, path)
	s.wake(path)
}

// watch returns the state of a node, nil if there is none, and makes sure that what happens to it later is told to those
// who have subscribed.
func (s *session) watch(ctx context.Context, path string) (*zk.Stat, error) {
	if s.watching(path) {
		stat, err := s.stat(ctx, path)
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil
		}
		return stat, err
	}
	stat, err := request(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		// Exists would leave a watch for a node that has gone and never comes back. But only it works without any right.
		_, stat, _, err := c.GetW(path)
		if errors.Is(err, zk.ErrNoAuth) {
			var exists bool
			if exists, stat, _, err = c.ExistsW(path); err == nil && !exists {
				err = zk.ErrNoNode
			}
		}
		return stat, err
	})
	if err != nil {
		s.unwatched(path)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return stat, err
}
