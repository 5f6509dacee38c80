package migrate

import (
	"context"
	"fmt"

	"github.com/leasekit/locker/driver"
)

// Inspect implements driver.Inspector. A name is held if it is on either side.
func (c *conn) Inspect(ctx context.Context, name string) (driver.Entry, error) {
	var entries [2]driver.Entry
	for i, s := range c.sides {
		look, err := s.inspector()
		if err != nil {
			return driver.Entry{}, err
		}
		if entries[i], err = look.Inspect(ctx, name); err != nil {
			return driver.Entry{}, s.said(err)
		}
	}
	return together(entries[from], entries[to]), nil
}

// together describes a name by what both sides know of it; the new one's word counts where both have one.
func together(old, new driver.Entry) driver.Entry {
	e, other := new, old
	if !new.Held && old.Held {
		e, other = old, new
	}
	e.Token = max(e.Token, other.Token)
	if other.Held {
		e.Remaining = smaller(e.Remaining, other.Remaining)
	}
	if e.Waiters >= 0 && other.Waiters >= 0 {
		e.Waiters += other.Waiters
	} else {
		e.Waiters = max(e.Waiters, other.Waiters)
	}
	return e
}

// List implements driver.Inspector.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	var names []string
	seen := make(map[string][2]driver.Entry)
	for i, s := range c.sides {
		look, err := s.inspector()
		if err != nil {
			return err
		}
		err = look.List(ctx, func(e driver.Entry) bool {
			entries, known := seen[e.Name]
			if !known {
				names = append(names, e.Name)
			}
			entries[i] = e
			seen[e.Name] = entries
			return true
		})
		if err != nil {
			return s.said(err)
		}
	}
	for _, name := range names {
		entries := seen[name]
		if !yield(together(entries[from], entries[to])) {
			break
		}
	}
	return nil
}

func (s *side) inspector() (driver.Inspector, error) {
	look, ok := s.conn.(driver.Inspector)
	if !ok {
		return nil, fmt.Errorf("%w: %s: %s can't be inspected", driver.ErrConfig, s.role, s.info.Backend)
	}
	return look, nil
}
