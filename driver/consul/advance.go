package consul

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

// A token is the index of the grant's log entry plus an offset, which only ever rises. It is a decimal number in a key of
// its own, read in the grant's own transaction.

// offsetOp reads the offset where its result may be missing: the verb get would fail the transaction. No other key
// begins like it.
func (c *conn) offsetOp() *api.KVTxnOp { return &api.KVTxnOp{Verb: api.KVGetTree, Key: c.offsetKey()} }

// checkOffset makes sure that the offset may be read: transactions leave out silently what they may not show.
func (c *conn) checkOffset(ctx context.Context) error {
	_, no, err := c.txn(ctx, c.grants, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: c.offsetKey()})
	if err == nil && no != nil && no.says(saysDenied) {
		err = no.err()
	}
	if err = c.explain(err, "key:read on "+c.offsetKey()); driver.IsPermanent(err) {
		return err
	}
	return nil // what else can go wrong shows elsewhere
}

func parseOffset(e *api.KVPair) (uint64, error) {
	if e == nil {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(e.Value), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%w: consul: the key %q holds no number", driver.ErrConflict, e.Key)
	}
	return n, nil
}

// addOffset makes a token out of a log index and the offset's entry, nil if there is none.
func addOffset(index uint64, e *api.KVPair) (uint64, error) {
	n, err := parseOffset(e)
	if err == nil && n > math.MaxInt64-index {
		err = fmt.Errorf("%w: consul: the key %q holds a number too large for tokens", driver.ErrConflict, e.Key)
	}
	return n + index, err
}

// Advance raises the offset by compare-and-set, in a transaction that fails if the hold is lost. Later grants have
// greater indexes than the hold has, so that floor less the hold's index is enough.
func (c *conn) Advance(ctx context.Context, h driver.Hold, floor uint64) error {
	mine := h.(*hold)
	if floor > math.MaxInt64-1 {
		return fmt.Errorf("%w: consul: no token is above %d", driver.ErrConfig, floor)
	}
	key := c.offsetKey()
	for ctx.Err() == nil {
		held := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: mine.key, Index: mine.index}
		results, no, err := c.txn(ctx, c.upkeep, held, c.offsetOp())
		switch {
		case err != nil:
			return c.explain(err, "key:read on "+key)
		case no != nil:
			return c.lost(*no, 0, mine)
		}
		var entry *api.KVPair
		for _, r := range results {
			if r.KV.Key == key {
				entry = r.KV
			}
		}
		offset, err := parseOffset(entry)
		if err != nil {
			return err
		}
		if floor <= mine.index || offset >= floor-mine.index {
			return nil
		}
		set := &api.KVTxnOp{Verb: api.KVCAS, Key: key, Value: strconv.AppendUint(nil, floor-mine.index, 10)}
		if entry != nil {
			set.Index = entry.ModifyIndex
		}
		_, no, err = c.txn(ctx, c.upkeep, held, set)
		switch {
		case err != nil:
			return c.explain(err, "key:write on "+key)
		case no == nil:
			return nil
		case no.denied(1):
			return c.explain(no.err(), "key:write on "+key)
		case no.of(0) != "":
			return c.lost(*no, 0, mine)
		}
		// Somebody else has raised it.
	}
	return ctx.Err()
}
