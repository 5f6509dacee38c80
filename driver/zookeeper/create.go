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

// created is a node that was made.
type created struct {
	path   string
	czxid  uint64 // 0: not known
	alone  bool   // it is the folder's only child
	offset uint64 // of tokens, checked by the transaction
}

// create queues the request with a node of its own. In the usual case that is one request: the transaction checks the
// offset, creates the node, and writes nothing into the folder, which answers with the folder's state after it: its last
// change is the node's creation, and the count of children says whether somebody else is there.
func (s *session) create(ctx context.Context, p *place) (created, error) {
	c := s.c
	for try := 0; ; try++ {
		off, err := s.readOffset(ctx)
		if err != nil {
			return created{}, err
		}
		f, known := c.remembered(p.req.Name)
		if !known {
			if f, err = s.inspectFolder(ctx, p); err != nil {
				return created{}, err
			}
		}
		ops := []any{
			&zk.CheckVersionRequest{Path: c.offsetPath(), Version: off.version},
			&zk.CreateRequest{Path: newNode(p.folder, p.req.ID), Data: value(p.req), Acl: c.acl(), Flags: zk.FlagEphemeralSequential},
		}
		if f.plain {
			ops = append(ops, &zk.SetDataRequest{Path: p.folder, Data: []byte{}, Version: -1})
		}
		failed, made, err := s.send(ctx, p, ops)
		if err == nil {
			made.offset = off.value
			return made, nil
		}
		switch {
		case failed < 0 || try == maxTries:
			return created{}, answer(err, "lock", p.folder)
		case failed == 0 && gone(err):
			s.forgetOffset()
		case failed == 1 && errors.Is(err, zk.ErrNoNode):
			if err := s.makeFolder(ctx, p); err != nil {
				return created{}, err
			}
		case failed == 2 && errors.Is(err, zk.ErrNoAuth):
			c.remember(p.req.Name, func(f *folder) { f.plain = false })
		case failed == 0:
			return created{}, answer(err, "read (right READ)", c.offsetPath())
		default:
			return created{}, answer(err, "create nodes (right CREATE)", p.folder)
		}
	}
}

// send sends the transaction that creates the node, and keeps it in the place until its answer is known.
func (s *session) send(ctx context.Context, p *place, ops []any) (failed int, made created, err error) {
	m, err := s.sending()
	if err != nil {
		return -1, created{}, err
	}
	p.sent = s.startMulti(m, ops)
	r, err := p.sent.wait(ctx, s)
	select {
	case <-p.sent.done:
	default:
		s.overdue(m)
		return -1, created{}, err // Undo, or the next attempt, waits for the rest
	}
	made, failed, err = p.settled(r, err)
	return failed, made, err
}

// settled takes over the answer of the request that was sent.
func (p *place) settled(r multi, err error) (made created, failed int, _ error) {
	p.sent = nil
	if err != nil {
		if len(r.results) > 0 {
			return created{}, r.failed, err // nothing was created
		}
		if !errors.Is(err, zk.ErrNoServer) { // that one was never sent
			p.doubt = true
		}
		return created{}, -1, err
	}
	made.path = r.results[1].String
	if len(r.results) > 2 {
		st := r.results[2].Stat
		made.czxid, made.alone = uint64(st.Mzxid), st.NumChildren == 1
	}
	p.path, p.czxid = made.path, made.czxid
	return made, -1, nil
}

// inspectFolder looks at a folder that isn't known yet. One that holds data is not ours to write: its locks then cost a
// request or two more.
func (s *session) inspectFolder(ctx context.Context, p *place) (folder, error) {
	stat, err := s.stat(ctx, p.folder)
	if errors.Is(err, zk.ErrNoNode) {
		if err := s.makeFolder(ctx, p); err != nil {
			return folder{}, err
		}
	} else if err != nil {
		return folder{}, err
	}
	f, known := s.c.remembered(p.req.Name)
	if !known {
		f = folder{plain: stat != nil && stat.DataLength == 0}
		s.c.remember(p.req.Name, func(to *folder) { *to = f })
	}
	return f, nil
}

// stat returns the state of a node. Anyone may ask for it.
func (s *session) stat(ctx context.Context, path string) (*zk.Stat, error) {
	return request(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		exists, stat, err := c.Exists(path)
		if err == nil && !exists {
			err = zk.ErrNoNode
		}
		return stat, err
	})
}

// makeFolder makes a lock's folder, which the server removes again when it has been empty for a while.
func (s *session) makeFolder(ctx context.Context, p *place) error {
	switch err := s.makeContainer(ctx, p.folder); {
	case err == nil:
		s.c.remember(p.req.Name, func(f *folder) { f.plain = true })
		return nil
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	default:
		return err
	}
}

// makeContainer makes a container node, and before it what is missing above it.
func (s *session) makeContainer(ctx context.Context, path string) error {
	for try := 0; ; try++ {
		err := s.makeOne(ctx, path)
		if !errors.Is(err, zk.ErrNoNode) || try == maxTries {
			return answer(err, "create nodes (right CREATE)", parent(path))
		}
		if err := s.makeContainer(ctx, parent(path)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
}

func (s *session) makeOne(ctx context.Context, path string) error {
	s.c.mu.Lock()
	old := s.c.plainOld
	s.c.mu.Unlock()
	acl := s.c.acl()
	if !old {
		_, err := request(ctx, s, func(c *zk.Conn) (string, error) {
			return c.CreateContainer(path, []byte{}, zk.FlagContainer, acl)
		})
		if err == nil || err.Error() != unimplemented {
			return err
		}
		s.c.mu.Lock()
		s.c.plainOld = true // before 3.5.3
		s.c.mu.Unlock()
	}
	_, err := request(ctx, s, func(c *zk.Conn) (string, error) {
		return c.Create(path, []byte{}, zk.FlagPersistent, acl)
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
