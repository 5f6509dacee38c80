package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// hold is a node that was granted.
type hold struct {
	s     *session
	req   driver.Request
	path  string
	czxid uint64
	grant driver.Grant

	mu        sync.Mutex
	gone      error // what it was lost for, matching driver.ErrNotHeld
	releasing bool  // its node's deletion is no loss
	doubt     bool  // the answer to a deletion was lost
	freed     bool  // it is no user of the session any more
}

func (h *hold) Grant() driver.Grant { return h.grant }

// lose notes that the node is gone, and tells the engine.
func (h *hold) lose(err error) {
	h.mu.Lock()
	first := h.gone == nil && !h.releasing
	if first {
		h.gone = err
	}
	h.mu.Unlock()
	if first && h.req.Lost != nil {
		h.req.Lost(err)
	}
}

// lost returns why the hold is known to be lost, or nil.
func (h *hold) lost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

func (h *hold) Release(ctx context.Context) error {
	s := h.s
	h.mu.Lock()
	h.releasing = true
	lost := h.gone
	h.mu.Unlock()
	if lost != nil { // what stands there now, if anything, is somebody else's
		h.free()
		return lost
	}
	if err := s.ready(ctx); err != nil {
		if errors.Is(err, errEnded) {
			return fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
		}
		return err
	}
	_, err := request(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(h.path, 0) })
	h.mu.Lock()
	doubt := h.doubt
	h.doubt = doubt || err != nil && !gone(err)
	h.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, zk.ErrNoNode) && doubt: // by the deletion whose answer was lost
	case gone(err):
		h.free()
		return fmt.Errorf("%w: zookeeper: %w", driver.ErrNotHeld, err)
	case errors.Is(err, errEnded):
		return fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
	default:
		return s.stuck(answer(err, "delete nodes (right DELETE)", parent(h.path)))
	}
	h.free()
	return nil
}

// free takes the hold off the session.
func (h *hold) free() {
	h.mu.Lock()
	first := !h.freed
	h.freed = true
	h.mu.Unlock()
	if !first {
		return
	}
	s := h.s
	s.c.mu.Lock()
	if s.holds[h.path] == h {
		delete(s.holds, h.path)
	}
	s.c.mu.Unlock()
	s.leave()
}
