//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// errReplaced says that the file isn't the path's any more: others lock another one.
var errReplaced = fmt.Errorf("%w: the locked file was removed or replaced", driver.ErrNotHeld)

// TryLock implements driver.Conn. Its attempt goes on when ctx ends before; the same ID then finds it, or Undo.
func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		a, mine, err := c.attempt(req)
		if err != nil {
			return nil, err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.closing:
			return nil, errClosed
		}
		switch {
		case mine && a.err != nil:
			return nil, a.err
		case mine:
			return &hold{a.entry, a.entry.grant}, nil
		case a.err != nil:
			continue // somebody else's failure
		}
		grant := a.entry.grant
		grant.Sent = c.cfg.Now()
		switch err := c.do(ctx, a.entry.prove); {
		case err == nil:
			return &hold{a.entry, grant}, nil
		case !errors.Is(err, driver.ErrNotHeld):
			return nil, err
		}
		if err := c.do(ctx, a.entry.release); err != nil && !errors.Is(err, driver.ErrNotHeld) {
			return nil, err
		}
	}
}

// attempt returns the attempt of the request's ID, and starts it if there is none.
func (c *conn) attempt(req driver.Request) (a *attempt, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errClosed
	}
	if a := c.attempts[req.ID]; a != nil {
		return a, false, nil
	}
	a = &attempt{done: make(chan struct{})}
	c.attempts[req.ID] = a
	c.startLocked(func() {
		a.entry, a.err = c.lock(req)
		if a.err != nil {
			c.forget(req.ID)
		}
		close(a.done)
	})
	return a, true, nil
}

func (c *conn) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attempts, id)
}

// lock makes one attempt: lock the file, mint the token, and see that the file is still the path's. In this order tokens
// rise even while somebody replaces the file: whoever locks the next one reads the counter after this grant wrote it.
func (c *conn) lock(req driver.Request) (*entry, error) {
	for range 10 {
		sent := c.cfg.Now()
		dir, err := c.directory(true)
		if err != nil {
			return nil, err
		}
		e := &entry{conn: c, dir: dir, id: req.ID}
		e.dirs, e.base = dir.encode(req.Name)
		err = dir.walk(e.dirs, true, func(dirfd int) error { return e.lock(dirfd, req) })
		if err == nil {
			e.grant = driver.Grant{Token: e.token, Renewal: driver.Renewal{Sent: sent, TTL: c.cfg.TTL}}
			if err = e.prove(); err == nil {
				return e, nil
			}
			e.unlock()
		}
		if !errors.Is(err, driver.ErrNotHeld) && !errors.Is(err, unix.ENOENT) {
			return nil, classify(err)
		}
	}
	return nil, errors.New("the file of the lock is replaced again and again")
}

// Undo implements driver.Conn.
func (c *conn) Undo(ctx context.Context, req driver.Request) error {
	c.mu.Lock()
	a := c.attempts[req.ID]
	c.mu.Unlock()
	if a == nil {
		return nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closing:
		return nil // Close releases it
	}
	if a.err != nil {
		return nil
	}
	if err := c.do(ctx, a.entry.release); err != nil && !errors.Is(err, driver.ErrNotHeld) {
		return err
	}
	return nil
}
