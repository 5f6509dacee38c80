//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// Renew implements driver.Conn. The kernel keeps a lock until it is released; what is proved is that the file is still
// the one which others would lock.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(i int, r driver.Renewal)) int {
	var (
		mu   sync.Mutex
		next int // of holds: the first that wasn't reported
	)
	err := c.do(ctx, func() error {
		for i, h := range holds {
			sent := c.cfg.Now()
			err := h.(*hold).prove()
			mu.Lock()
			if next == len(holds) {
				mu.Unlock()
				return nil // the call has ended
			}
			next = i + 1
			report(i, driver.Renewal{Sent: sent, TTL: c.cfg.TTL, Err: err})
			mu.Unlock()
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for ; next < len(holds); next++ {
		report(next, driver.Renewal{Err: err})
	}
	return 0
}

// prove returns an error that matches ErrNotHeld if the lock was released, or if the path doesn't lead to the locked
// file any more.
func (e *entry) prove() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.released {
		return driver.ErrNotHeld
	}
	return e.proveLocked()
}

func (e *entry) proveLocked() error {
	ok, err := e.dir.current()
	if err != nil {
		return err
	}
	if !ok {
		return errReplaced
	}
	err = e.dir.walk(e.dirs, false, e.same)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return errReplaced // one of the directories in between
	}
	return err
}
