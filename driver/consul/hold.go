package consul

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

// hold is a driver.Hold. The index is that of the log entry that made it; as long as the key has it, nobody has touched
// the entry since.
type hold struct {
	c             *conn
	s             *session
	name, id, key string
	index         uint64
	grant         driver.Grant
	lost          func(error) // nil if nobody listens

	doubt atomic.Bool // a release may have been applied
	gone  atomic.Bool // the session has one user fewer
}

func (h *hold) Grant() driver.Grant { return h.grant }

// removal deletes a key that still has an index. The verb delete-cas alone would also succeed where there is no key.
func removal(key string, index uint64) []*api.KVTxnOp {
	return []*api.KVTxnOp{
		{Verb: api.KVCheckIndex, Key: key, Index: index},
		{Verb: api.KVDelete, Key: key},
	}
}

// Release deletes the entry if it has the grant's index.
func (h *hold) Release(ctx context.Context) error {
	c := h.c
	_, no, err := c.txn(ctx, c.upkeep, removal(h.key, h.index)...)
	switch {
	case err != nil:
		if !unsent(err) {
			h.doubt.Store(true)
		}
		return c.explain(err, "key:write on "+h.key)
	case no == nil:
		c.manners.released(c.cfg.Now(), h.name)
		h.over()
		return nil
	case no.says(saysDenied):
		return c.explain(no.err(), "key:write on "+h.key)
	case !no.says(saysMissing):
		if err := h.disown(ctx); err != nil {
			return err
		}
	}
	h.over()
	if h.doubt.Load() {
		return nil
	}
	return fmt.Errorf("%w: consul: %s", driver.ErrNotHeld, c.redact(no.errs[0].What))
}

// over ends the hold's use of the session.
func (h *hold) over() {
	if !h.gone.CompareAndSwap(false, true) {
		return
	}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.s.users--
	if h.s.live[h.id] == h {
		delete(h.s.live, h.id)
	}
}

// disown lets go of an entry that somebody has changed while it was locked by the session: it would stay locked as long
// as the session is needed for other locks. What the changed entry holds is left as it is.
func (h *hold) disown(ctx context.Context) error {
	c := h.c
	entry, _, err := c.look(ctx, c.upkeep, h.key)
	if err != nil {
		return c.explain(err, "key:write on "+h.key)
	}
	if entry == nil || entry.Session != h.s.id {
		return nil
	}
	ops := []*api.KVTxnOp{
		{Verb: api.KVCheckIndex, Key: h.key, Index: entry.ModifyIndex},
		{Verb: api.KVUnlock, Key: h.key, Value: entry.Value, Flags: entry.Flags, Session: h.s.id},
	}
	if id, _, _, ok := parseValue(entry.Value); ok {
		c.mu.Lock()
		_, live := h.s.live[id]
		_, asked := c.asks[id]
		c.mu.Unlock()
		switch {
		case id == h.id:
			ops = removal(h.key, entry.ModifyIndex)
		case live || asked: // the next local holder's
			return nil
		}
	}
	_, no, err := c.txn(ctx, c.upkeep, ops...)
	if err == nil && no != nil {
		err = no.err()
	}
	return c.explain(err, "key:write on "+h.key)
}

// discard removes an entry whose index isn't known, or whose grant is of no use.
func (h *hold) discard(ctx context.Context) error {
	_, no, err := h.c.txn(ctx, h.c.upkeep,
		&api.KVTxnOp{Verb: api.KVCheckSession, Key: h.key, Session: h.s.id},
		&api.KVTxnOp{Verb: api.KVDelete, Key: h.key})
	if err == nil && no != nil {
		err = no.err()
	}
	return err
}
