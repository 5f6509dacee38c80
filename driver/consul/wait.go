package consul

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

// Watching a name costs a connection, since a blocking query occupies one, and an agent allows few. So the first
// maxFollowed names have a blocking query each, and if there are more, the others are looked at in turn, many in a
// request. (One blocking query for all keys under the prefix would need one connection too, but return, with the whole
// list, at every change of any lock of any process.)
const (
	waitTime  = 15 * time.Second // of a blocking query; a lost answer costs hints, which the engine can do without
	waitSlack = 5 * time.Second  // the server adds up to a sixteenth, and may be slow
	roundTime = time.Second      // between two looks at a name that has no blocking query
	failPause = time.Second      // after a failed one
	linger    = time.Second      // that a blocking query goes on when nobody waits any more
)

// watchers are the names that somebody waits for.
type watchers struct {
	c       *conn
	mu      sync.Mutex
	names   map[string]*watch
	polling bool
}

// watch is a name that somebody waits for, or has waited for until a moment ago. It is guarded by the watchers' mutex.
type watch struct {
	name, key string
	hints     map[chan struct{}]struct{}
	missed    int                // times that others have taken it since somebody waits for it
	stop      context.CancelFunc // ends the blocking queries; nil if there are none
	lingers   *time.Timer        // will end the watch; nil if there never was nobody who waits
}

func (w *watchers) init(c *conn) {
	w.c = c
	w.names = make(map[string]*watch)
}

// Watch returns at once. The first look that it starts sees whatever has changed before.
func (c *conn) Watch(_ context.Context, name string) (<-chan struct{}, func(), error) {
	hints := make(chan struct{}, 1)
	w := &c.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, nil, errClosed
	}
	n := w.names[name]
	if n == nil {
		n = &watch{name: name, key: c.key(name), hints: make(map[chan struct{}]struct{})}
		w.names[name] = n
		w.assign()
	}
	if len(n.hints) == 0 {
		n.missed = 0
	}
	n.hints[hints] = struct{}{}
	return hints, func() { w.unwatch(n, hints) }, nil
}

// unwatch ends a subscription. The blocking query is left to end by itself: mostly because the waiter takes the name. To
// cut it short would cost a connection.
func (w *watchers) unwatch(n *watch, hints chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(n.hints, hints)
	switch {
	case len(n.hints) > 0:
	case n.stop == nil || len(w.names) > maxFollowed: // others wait for its place
		w.end(n)
	case n.lingers == nil:
		n.lingers = time.AfterFunc(linger, func() { w.endIfIdle(n) })
	default:
		n.lingers.Reset(linger)
	}
}

func (w *watchers) endIfIdle(n *watch) (ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(n.hints) > 0 {
		return false
	}
	w.end(n)
	return true
}

// end ends a watch that nobody waits for. The mutex is held.
func (w *watchers) end(n *watch) {
	if w.names[n.name] != n {
		return
	}
	delete(w.names, n.name)
	if n.lingers != nil {
		n.lingers.Stop()
	}
	if n.stop != nil {
		n.stop()
		w.assign()
	}
}

// assign gives blocking queries to names that have none as long as there are few, and starts the rounds for the rest.
func (w *watchers) assign() {
	followed := 0
	for _, n := range w.names {
		if n.stop != nil {
			followed++
		}
	}
	for _, n := range w.names {
		if n.stop != nil {
			continue
		}
		if followed == maxFollowed {
			if !w.polling {
				w.polling = w.run(w.rounds)
			}
			return
		}
		followed++
		ctx, stop := context.WithCancel(w.c.ctx)
		n.stop = stop
		w.run(func() { w.follow(ctx, n) })
	}
}

// run starts a goroutine that Close waits for, and reports false if the Conn is closed.
func (w *watchers) run(f func()) bool {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.closed {
		return false
	}
	w.c.work.Go(f)
	return true
}

// hint says that a name may be free.
func (w *watchers) hint(n *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(n.hints) == 0 {
		return
	}
	w.c.manners.hinted(w.c.cfg.Now(), n.name)
	for h := range n.hints {
		select {
		case h <- struct{}{}:
		default:
		}
	}
}

// follow watches one name by blocking queries: each returns when the key isn't any more what it was at an index.
func (w *watchers) follow(ctx context.Context, n *watch) {
	c := w.c
	index := uint64(0)
	var hint *time.Timer
	free := false
	for ctx.Err() == nil && !w.endIfIdle(n) {
		entry, at, err := c.block(ctx, n.key, index)
		if err != nil {
			index = 0
			c.cfg.Logger.DebugContext(ctx, "watching failed", "name", n.name, "err", c.explain(err, "key:read on "+n.key))
			pause(ctx, failPause)
			continue
		}
		switch {
		case at == index:
			// It took the whole time.
		case entry == nil || entry.Session == "":
			if hint != nil {
				hint.Stop()
			}
			hint = time.AfterFunc(c.manners.turn(c.cfg.Now(), n.name, w.missed(n)), func() { w.hint(n) })
			free = true
		default:
			if hint != nil {
				hint.Stop()
			}
			anew := !c.ours(entry.Session) && c.manners.taken(c.cfg.Now(), n.name, entry.Session, entry.CreateIndex+entry.LockIndex)
			if free || anew && index != 0 { // what comes and goes between two queries shows by the next grant
				w.miss(n)
			}
			free = false
		}
		if at < index {
			at = 0 // the servers' log was set back, and blocking on the old index might last for ever
		}
		index = at
	}
}

// miss counts a release after which another has taken the name.
func (w *watchers) miss(n *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n.missed++
}

// missed returns how many releases those who wait for the name now have missed.
func (w *watchers) missed(n *watch) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return n.missed
}

// ofName is missed by name: -1 if nobody waits.
func (w *watchers) ofName(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.names[name]; n != nil && len(n.hints) > 0 {
		return n.missed
	}
	return -1
}

// block reads a key once it has changed since index, or when waitTime is over.
func (c *conn) block(ctx context.Context, key string, index uint64) (*api.KVPair, uint64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, waitTime+waitSlack, errSilent)
	defer stop()
	q := c.query(ctx)
	q.WaitIndex, q.WaitTime = index, waitTime
	entry, meta, err := c.api.KV().Get(key, q)
	if err != nil {
		return nil, 0, err
	}
	return entry, max(meta.LastIndex, 1), nil // blocking on 0 doesn't block
}

// rounds looks at the names without blocking queries as long as there are some.
func (w *watchers) rounds() {
	ctx := w.c.ctx
	for pause(ctx, roundTime) {
		w.mu.Lock()
		var names []*watch
		for _, n := range w.names {
			if n.stop == nil {
				names = append(names, n)
			}
		}
		if len(names) == 0 {
			w.polling = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		for chunk := range slices.Chunk(names, maxOps) {
			w.round(ctx, chunk)
		}
	}
}

// round looks at names and hints at those that are free. A look that finds a key missing tells nothing about the others'
// sessions, so it is repeated without the missing ones.
func (w *watchers) round(ctx context.Context, names []*watch) {
	c := w.c
	ctx, stop := context.WithTimeoutCause(ctx, c.silence(), errSilent)
	defer stop()
	for range 2 {
		if len(names) == 0 {
			return
		}
		ops := make([]*api.KVTxnOp, len(names))
		for i, n := range names {
			ops[i] = &api.KVTxnOp{Verb: api.KVGet, Key: n.key}
		}
		results, no, err := c.txn(ctx, c.upkeep, ops...)
		if err != nil {
			c.cfg.Logger.DebugContext(ctx, "watching failed", "names", len(names), "err", c.explain(err, "key:read"))
			return
		}
		if no == nil {
			byKey := make(map[string]*watch, len(names))
			for _, n := range names {
				byKey[n.key] = n
			}
			for _, r := range results {
				if n := byKey[r.KV.Key]; n != nil && r.KV.Session == "" {
					w.hint(n)
				}
			}
			return
		}
		present := names[:0:0]
		for i, n := range names {
			if no.of(i) == "" {
				present = append(present, n)
				continue
			}
			w.hint(n)
		}
		names = present
	}
}

// pause sleeps for about d. It reports false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
