package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// offset is a session's copy of the prefix's token offset: what every token of the prefix is above the number that the
// servers gave to its node. It is 0 until a migration has raised it, and kept in a node beside the locks' folders.
//
// A creation checks the copy in its transaction. Where there is none, the copy is as good as a look at the node: it comes
// with a watch, and the event of a change arrives before any answer that was given after the change.
type offset struct {
	known   bool
	value   uint64
	version int32
	changes int // counts what has made a copy worthless
}

func (o *offset) forget() { o.known, o.changes = false, o.changes+1 }

func (s *session) forgetOffset() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.offset.forget()
	s.c.offset.forget()
}

// anyOffset returns a copy of the offset for a transaction that checks it: an old one will do, also of a session before.
func (s *session) anyOffset(ctx context.Context) (offset, error) {
	s.c.mu.Lock()
	last := s.c.offset
	s.c.mu.Unlock()
	if last.known {
		return last, nil
	}
	return s.readOffset(ctx)
}

// readOffset returns the offset, from the copy if that is good, and makes the node if there is none.
func (s *session) readOffset(ctx context.Context) (offset, error) {
	c := s.c
	path := c.offsetPath()
	for try := 0; ; try++ {
		c.mu.Lock()
		known, changes := s.offset, s.offset.changes
		c.mu.Unlock()
		if known.known {
			return known, nil
		}
		read, err := s.getOffset(ctx, path)
		switch {
		case err == nil:
			c.mu.Lock()
			if s.offset.changes == changes {
				s.offset.known, s.offset.value, s.offset.version = true, read.value, read.version
			}
			c.offset = read
			c.advanced = max(c.advanced, read.value)
			c.mu.Unlock()
			return read, nil
		case !errors.Is(err, zk.ErrNoNode) || try == maxTries:
			return offset{}, answer(err, "read (right READ)", path)
		}
		if err := s.makeOffset(ctx, path); err != nil {
			return offset{}, err
		}
	}
}

func (s *session) getOffset(ctx context.Context, path string) (offset, error) {
	watched := s.watching(path)
	type got struct {
		data []byte
		stat *zk.Stat
	}
	g, err := request(ctx, s, func(c *zk.Conn) (got, error) {
		if watched {
			data, stat, err := c.Get(path)
			return got{data, stat}, err
		}
		data, stat, _, err := c.GetW(path)
		return got{data, stat}, err
	})
	if err != nil {
		s.unwatched(path)
		return offset{}, err
	}
	value, err := strconv.ParseUint(string(g.data), 10, 63)
	if err != nil {
		return offset{}, fmt.Errorf("%w: zookeeper: %s holds no token offset", driver.ErrConflict, path)
	}
	return offset{known: true, value: value, version: g.stat.Version}, nil
}

// makeOffset makes the node. If somebody has deleted it, it begins with the largest offset that this Conn has seen.
func (s *session) makeOffset(ctx context.Context, path string) error {
	s.c.mu.Lock()
	value := s.c.advanced
	s.c.mu.Unlock()
	_, err := request(ctx, s, func(c *zk.Conn) (string, error) {
		return c.Create(path, strconv.AppendUint(nil, value, 10), zk.FlagPersistent, s.c.acl())
	})
	switch {
	case err == nil, errors.Is(err, zk.ErrNodeExists):
		return nil
	case errors.Is(err, zk.ErrNoNode):
		if err := s.makeContainer(ctx, parent(path), func() {}); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		return nil
	}
	return answer(err, "create nodes (right CREATE)", parent(path))
}

// Advance raises the offset so that the next number which the servers give to a node makes a token above floor. The
// transaction fails if the hold's node is gone.
func (c *conn) Advance(ctx context.Context, hd driver.Hold, floor uint64) error {
	h, ok := hd.(*hold)
	if !ok {
		return fmt.Errorf("zookeeper: a hold of another driver: %T", hd)
	}
	if floor > maxToken-1 {
		return fmt.Errorf("%w: zookeeper: no token can be above %d", driver.ErrConfig, floor)
	}
	s := h.s
	for try := 0; ; try++ {
		if err := h.lost(); err != nil {
			return err
		}
		if err := s.ready(ctx); err != nil {
			if errors.Is(err, errEnded) {
				return fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
			}
			return err
		}
		off, err := s.readOffset(ctx)
		if err != nil {
			return err
		}
		ops := []any{&zk.CheckVersionRequest{Path: h.path, Version: 0}}
		if floor > h.czxid && floor-h.czxid > off.value {
			// Every later node has a number above czxid.
			data := strconv.AppendUint(nil, floor-h.czxid, 10)
			ops = append(ops, &zk.SetDataRequest{Path: c.offsetPath(), Data: data, Version: off.version})
		} else {
			ops = append(ops, &zk.CheckVersionRequest{Path: c.offsetPath(), Version: off.version})
		}
		failed, err := s.transact(ctx, ops)
		switch {
		case err == nil:
			s.forgetOffset()
			return nil
		case failed == 0 && gone(err):
			return fmt.Errorf("%w: zookeeper: %w", driver.ErrNotHeld, err)
		case failed == 1 && gone(err) && try < maxTries:
			s.forgetOffset()
		default:
			return answer(err, "write (right WRITE)", c.offsetPath())
		}
	}
}
