package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// folder is what the Conn remembers of a lock's folder, to save requests. What is wrong shows at the next one.
type folder struct {
	plain     bool // it holds no data, so that writing none into it changes nothing
	contended bool // somebody held the name when it was last looked at
}

const maxFolders = 4096

// maxTries bounds how often a folder is made again that somebody keeps deleting.
const maxTries = 50

// remembered returns what is known of a name's folder; ok is false for nothing.
func (c *conn) remembered(name string) (f folder, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.folders[name]; f != nil {
		return *f, true
	}
	return folder{}, false
}

func (c *conn) remember(name string, change func(*folder)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.folders[name]
	if f == nil {
		if len(c.folders) >= maxFolders {
			clear(c.folders)
		}
		f = &folder{}
		c.folders[name] = f
	}
	change(f)
}

func (c *conn) forgetFolder(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.folders, name)
}

// create queues the request with a node of its own. In the usual case that is one request: the transaction checks the
// offset, creates the node, and writes nothing into the folder, which answers with the folder's state after it: its last
// change is the node's creation, and the count of children says whether somebody else is there.
func (s *session) create(ctx context.Context, p *place) error {
	c := s.c
	for try := 0; ; try++ {
		off, err := s.anyOffset(ctx)
		if err != nil {
			return err
		}
		f, known := c.remembered(p.req.Name)
		if !known {
			if f, err = s.inspectFolder(ctx, p); err != nil {
				return err
			}
		}
		p.offset = off.value
		ops := []any{
			&zk.CheckVersionRequest{Path: c.offsetPath(), Version: off.version},
			&zk.CreateRequest{Path: newNode(p.folder, p.req.ID), Data: value(p.req), Acl: c.acl(), Flags: zk.FlagEphemeralSequential},
		}
		if f.plain {
			ops = append(ops, &zk.SetDataRequest{Path: p.folder, Data: []byte{}, Version: -1})
		}
		failed, err := s.send(ctx, p, ops)
		if err == nil {
			return nil
		}
		switch {
		case failed < 0 || try == maxTries:
			return answer(err, "lock", p.folder)
		case failed == 0 && gone(err):
			s.forgetOffset()
		case failed == 1 && errors.Is(err, zk.ErrNoNode):
			if err := s.makeFolder(ctx, p); err != nil {
				return err
			}
		case failed == 2 && errors.Is(err, zk.ErrNoAuth):
			c.remember(p.req.Name, func(f *folder) { f.plain = false })
		case failed == 0:
			return answer(err, "read (right READ)", c.offsetPath())
		default:
			return answer(err, "create nodes (right CREATE)", p.folder)
		}
	}
}

// send sends the transaction that creates the node, and keeps it in the place until its answer is known.
func (s *session) send(ctx context.Context, p *place, ops []any) (failed int, err error) {
	m, err := s.sending()
	if err != nil {
		return -1, err
	}
	p.sent = s.startMulti(m, ops)
	r, err := p.sent.wait(ctx, s)
	select {
	case <-p.sent.done:
	default:
		s.overdue(m)
		return -1, err // Undo, or the next attempt, waits for the rest
	}
	return p.settled(r, err)
}

// settled takes over the answer of the request that was sent.
func (p *place) settled(r multi, err error) (failed int, _ error) {
	p.sent = nil
	if err != nil {
		if len(r.results) > 0 {
			return r.failed, err // nothing was created
		}
		if !errors.Is(err, zk.ErrNoServer) { // that one was never sent
			p.doubt = true
		}
		return -1, err
	}
	p.forget()
	p.path = r.results[1].String
	if len(r.results) > 2 {
		st := r.results[2].Stat
		p.czxid, p.alone = uint64(st.Mzxid), st.NumChildren == 1
	}
	return -1, nil
}

// inspectFolder looks at a folder that isn't known yet. One that holds data is not ours to write: its locks then cost a
// request or two more.
func (s *session) inspectFolder(ctx context.Context, p *place) (folder, error) {
	stat, err := request(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		stat, err := stat(c, p.folder)
		if err == nil {
			s.c.remember(p.req.Name, func(f *folder) { f.plain = stat.DataLength == 0 })
		}
		return stat, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		err := s.makeFolder(ctx, p)
		f, _ := s.c.remembered(p.req.Name)
		return f, err
	}
	if err != nil {
		return folder{}, err
	}
	return folder{plain: stat.DataLength == 0}, nil
}

// stat returns the state of a node. Anyone may ask for it.
func (s *session) stat(ctx context.Context, path string) (*zk.Stat, error) {
	return request(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return stat(c, path) })
}

func stat(c *zk.Conn, path string) (*zk.Stat, error) {
	exists, stat, err := c.Exists(path)
	if err == nil && !exists {
		err = zk.ErrNoNode
	}
	return stat, err
}

// makeFolder makes a lock's folder, which the server removes again when it has been empty for a while.
func (s *session) makeFolder(ctx context.Context, p *place) error {
	err := s.makeContainer(ctx, p.folder, func() { s.c.remember(p.req.Name, func(f *folder) { f.plain = true }) })
	if errors.Is(err, zk.ErrNodeExists) {
		s.c.forgetFolder(p.req.Name) // it may hold data
		return nil
	}
	return err
}

// makeContainer makes a container node, and before it what is missing above it. made is called when the node is made, even
// if ctx has ended before.
func (s *session) makeContainer(ctx context.Context, path string, made func()) error {
	for try := 0; ; try++ {
		err := s.makeOne(ctx, path, made)
		if !errors.Is(err, zk.ErrNoNode) || try == maxTries {
			return answer(err, "create nodes (right CREATE)", parent(path))
		}
		if err := s.makeContainer(ctx, parent(path), func() {}); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
}

func (s *session) makeOne(ctx context.Context, path string, made func()) error {
	s.c.mu.Lock()
	old := s.c.plainOld
	s.c.mu.Unlock()
	acl := s.c.acl()
	if !old {
		_, err := request(ctx, s, func(c *zk.Conn) (string, error) {
			p, err := c.CreateContainer(path, []byte{}, zk.FlagContainer, acl)
			if err == nil {
				made()
			}
			return p, err
		})
		if err == nil || err.Error() != unimplemented {
			return err
		}
		s.c.mu.Lock()
		s.c.plainOld = true // before 3.5.3
		s.c.mu.Unlock()
	}
	_, err := request(ctx, s, func(c *zk.Conn) (string, error) {
		p, err := c.Create(path, []byte{}, zk.FlagPersistent, acl)
		if err == nil {
			made()
		}
		return p, err
	})
	return err
}

// children returns a folder's contenders.
func (s *session) children(ctx context.Context, folder string) ([]node, error) {
	names, err := s.names(ctx, folder)
	return contenders(names), err
}

// names returns the children of a node; none if there is no node.
func (s *session) names(ctx context.Context, path string) ([]string, error) {
	names, err := request(ctx, s, func(c *zk.Conn) ([]string, error) {
		names, _, err := c.Children(path)
		return names, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return names, answer(err, "list (right READ)", path)
}

// remove deletes a node that this Conn has made. One that is gone, or was overwritten and so isn't ours any more, is no
// error.
func (s *session) remove(ctx context.Context, path string) error {
	_, err := request(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, 0) })
	if gone(err) {
		return nil
	}
	return answer(err, "delete nodes (right DELETE)", parent(path))
}

// acl is that of what the Conn creates: for the user who logs in alone, or for everybody where nobody does.
func (c *conn) acl() []zk.ACL {
	switch {
	case len(c.o.ACL) > 0:
		return c.o.ACL
	case c.o.User != "" || c.o.Credentials != nil:
		return zk.AuthACL(zk.PermAll)
	}
	return zk.WorldACL(zk.PermAll)
}

// token adds the prefix's offset to a node's creation.
func token(offset, czxid uint64) (uint64, error) {
	t := offset + czxid
	if czxid == 0 || t < offset || t > maxToken {
		return 0, fmt.Errorf("%w: zookeeper: the offset %d of tokens is too large", driver.ErrConfig, offset)
	}
	return t, nil
}
