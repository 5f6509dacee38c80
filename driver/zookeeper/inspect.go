package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

var (
	_ driver.Inspector = (*conn)(nil)
	_ driver.Checker   = (*conn)(nil)
)

// Inspect lists a name's contenders and reads the first. How long it may stay isn't known: sessions don't tell when they
// were heard of.
func (c *conn) Inspect(ctx context.Context, name string) (driver.Entry, error) {
	s, err := c.enter(ctx)
	if err != nil {
		return driver.Entry{}, err
	}
	defer s.leave()
	offset, err := s.peekOffset(ctx)
	if err != nil {
		return driver.Entry{}, err
	}
	return s.describe(ctx, name, offset)
}

// List looks at all folders under the prefix.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	s, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer s.leave()
	offset, err := s.peekOffset(ctx)
	if err != nil {
		return err
	}
	top := c.prefix
	if top == "" {
		top = "/"
	}
	names, err := s.names(ctx, top)
	if err != nil {
		return err
	}
	for _, element := range names {
		name, ok := decode(element)
		if !ok {
			continue
		}
		e, err := s.describe(ctx, name, offset)
		if err != nil {
			return err
		}
		if e.Held && !yield(e) {
			return nil
		}
	}
	return nil
}

// describe says what a folder tells. The first contender may go between the listing and the look at it: then the next one
// is the first.
func (s *session) describe(ctx context.Context, name string, offset uint64) (driver.Entry, error) {
	folder := s.c.folderPath(name)
	e := driver.Entry{Name: name}
	nodes, err := s.children(ctx, folder)
	if err != nil {
		return e, err
	}
	for i, n := range nodes {
		path := folder + "/" + n.name
		type got struct {
			data []byte
			stat *zk.Stat
		}
		g, err := request(ctx, s, func(c *zk.Conn) (got, error) {
			data, stat, err := c.Get(path)
			return got{data, stat}, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		e.Held, e.Waiters = true, len(nodes)-i-1
		if errors.Is(err, zk.ErrNoAuth) {
			return e, nil // held by somebody who doesn't say who it is
		}
		if err != nil {
			return driver.Entry{Name: name}, err
		}
		if t, err := token(offset, uint64(g.stat.Czxid)); err == nil {
			e.Token = t
		}
		if id, since, owner, ok := parseValue(g.data); ok {
			e.ID, e.Since, e.Owner = id, since, owner
		}
		return e, nil
	}
	return e, nil
}

// peekOffset reads the offset without making its node.
func (s *session) peekOffset(ctx context.Context) (uint64, error) {
	path := s.c.offsetPath()
	off, err := s.getOffset(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		return 0, nil
	}
	return off.value, answer(err, "read (right READ)", path)
}
