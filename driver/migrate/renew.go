package migrate

import (
	"context"
	"errors"
	"sync"

	"github.com/leasekit/locker/driver"
)

// Renew implements driver.Conn. A hold is renewed once both sides have said so, and lost as soon as one says so.
func (c *conn) Renew(ctx context.Context, holds []driver.Hold, report func(int, driver.Renewal)) (unresolved int) {
	c.mu.Lock()
	kept := make([]*waiting, 0, len(c.waiting))
	for w := range c.waiting {
		kept = append(kept, w)
	}
	c.mu.Unlock()

	results := make([]result, len(holds))
	var wg sync.WaitGroup
	var counts [2]int
	for i, s := range c.sides {
		parts := make([]driver.Hold, len(holds), len(holds)+len(kept))
		for j, h := range holds {
			parts[j] = h.(*hold).parts[i]
		}
		if i == from {
			for _, w := range kept {
				parts = append(parts, w.hold)
			}
		}
		wg.Go(func() {
			counts[i] = s.conn.Renew(ctx, parts, func(j int, r driver.Renewal) {
				if r.Err != nil {
					r.Err = s.said(r.Err)
				}
				if j >= len(holds) {
					kept[j-len(holds)].report(r)
				} else if r, known := results[j].add(i, r); known {
					report(j, r)
				}
			})
		})
	}
	wg.Wait()
	return counts[from] + counts[to]
}

// result collects what both sides say about one hold.
type result struct {
	mu    sync.Mutex
	parts [2]*driver.Renewal
	known bool
}

// add notes what one side says. known reports, once, that the result of both is r.
func (r *result) add(i int, part driver.Renewal) (both driver.Renewal, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known || r.parts[i] != nil {
		return driver.Renewal{}, false
	}
	r.parts[i] = &part
	other := r.parts[1-i]
	switch {
	case errors.Is(part.Err, driver.ErrNotHeld):
		r.known = true
		return part, true
	case other == nil:
		return driver.Renewal{}, false
	}
	r.known = true
	switch {
	case part.Err != nil:
		return part, true
	case other.Err != nil:
		return *other, true
	}
	return earlier(part, *other), true
}
