//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasekit/locker/driver"
)

// Connect opens the directory. One that isn't fit for locks is an answer; one that is missing is created by the first
// TryLock, and one that can't be opened for a reason that may pass, such as too many open files, is opened then.
func (c *connector) Connect(ctx context.Context, cfg driver.Config) (driver.Conn, error) {
	conn := &conn{
		path:     c.dir,
		cfg:      cfg,
		statfs:   statfs,
		wall:     time.Now,
		attempts: make(map[string]*attempt),
		closing:  make(chan struct{}),
	}
	err := c.err
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", driver.ErrConfig, err)
	case c.dir == "":
		err = fmt.Errorf("%w: the directory of the locks is missing", driver.ErrConfig)
	default:
		err = conn.do(ctx, func() error { _, err := conn.directory(false); return err })
	}
	if driver.IsPermanent(err) {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// conn implements driver.Conn. File systems know no contexts, so that everything that touches one runs in a goroutine
// of its own, which a call leaves behind when its context ends before.
type conn struct {
	path   string // of the directory
	cfg    driver.Config
	statfs func(fd int) (fileSystem, error) // replaced in tests
	wall   func() time.Time                 // for tokens and the holder's line; replaced in tests

	opening sync.Mutex // held while the directory is looked at

	mu       sync.Mutex
	dir      *directory   // where the path led last; nil before the first time
	former   []*directory // where it led before
	attempts map[string]*attempt
	running  int           // calls of do under way
	closing  chan struct{} // closed by Close
	closed   bool
	drained  chan struct{} // made by Close, closed when the last call under way has ended
}

var (
	_ driver.Conn      = (*conn)(nil)
	_ driver.Inspector = (*conn)(nil)
	_ driver.Checker   = (*conn)(nil)
)

// attempt is a TryLock under way, or the entry that it got. It stays until the entry is released, so that the same ID
// finds it again.
type attempt struct {
	done  chan struct{} // closed when the outcome is known
	entry *entry
	err   error
}

var errClosed = errors.New("the connection is closed")

// do runs f and returns its error, or ctx's when that ends before: f then goes on by itself.
func (c *conn) do(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	if !c.start(func() { done <- f() }) {
		return errClosed
	}
	return await(ctx, c, done)
}

func await(ctx context.Context, c *conn, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closing:
		return errClosed
	}
}

// start runs f in a goroutine that Close waits for. It reports false when the Conn is closed.
func (c *conn) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.startLocked(f)
	return true
}

func (c *conn) startLocked(f func()) {
	c.running++
	go func() {
		defer c.finish()
		f()
	}()
}

func (c *conn) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 && c.closed {
		for _, d := range append(c.former, c.dir) {
			if d != nil {
				d.file.Close()
			}
		}
		close(c.drained)
	}
}

// directory returns the directory that the path leads to now, opened and found fit for locks. Unless it may create the
// directory, it fails with an error that matches fs.ErrNotExist where there is none.
func (c *conn) directory(create bool) (*directory, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	c.mu.Lock()
	d := c.dir
	c.mu.Unlock()
	if d != nil {
		switch ok, err := d.current(); {
		case err != nil:
			return nil, classify(err)
		case ok:
			return d, nil
		}
	}
	next, err := openDirectory(c.path, create, c.statfs)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d != nil {
		c.former = append(c.former, d)
	}
	c.dir = next
	return next, nil
}

// Close unlocks what is still held and closes the directory. It doesn't wait for a file system that hangs: what is
// under way there ends by itself.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.drained = make(chan struct{})
	close(c.closing)
	c.startLocked(func() { c.releaseAll() })
	c.mu.Unlock()
	select {
	case <-c.drained:
	case <-time.After(900 * time.Millisecond):
	}
	return nil
}

// releaseAll unlocks every entry, and those that attempts under way are still granted.
func (c *conn) releaseAll() {
	c.mu.Lock()
	var all []*attempt
	for _, a := range c.attempts {
		all = append(all, a)
	}
	c.mu.Unlock()
	for _, a := range all {
		<-a.done
		if a.err == nil {
			a.entry.release()
		}
	}
}
