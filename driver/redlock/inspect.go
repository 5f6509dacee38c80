package redlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Inspect implements driver.Inspector. The holder is the one whose value stands on a majority of the nodes, or may: one
// that doesn't answer counts for it. What an attempt under way has set on a minority is none.
func (c *conn) Inspect(ctx context.Context, name string) (driver.Entry, error) {
	entries, err := c.entries(ctx, []string{name})
	if err != nil {
		return driver.Entry{Name: name, Waiters: -1}, err
	}
	return entries[0].Entry, entries[0].err
}

// List implements driver.Inspector. It goes through all keys of the database on every node that answers, and reports every
// string under the prefix that a majority has, whoever wrote it.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	replies := ask(c, attempts, time.Minute, c.nodes, func(ctx context.Context, n *node, client *redis.Client) ([]string, error) {
		return c.scan(ctx, n, client)
	})
	seen := make(map[string]bool)
	var names []string
	answered := 0
	var errs []error
	for range c.nodes {
		select {
		case r := <-replies:
			if r.err != nil {
				errs = append(errs, r.err)
				continue
			}
			answered++
			for _, name := range r.value {
				if !seen[name] {
					seen[name] = true
					names = append(names, name)
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if answered < c.quorum {
		return c.unanswered("list", errs)
	}
	for page := range slices.Chunk(names, 1000) {
		entries, err := c.entries(ctx, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.err == nil && e.Held && !yield(e.Entry) {
				return nil
			}
		}
	}
	return nil
}

// unanswered is the error of a question that no majority has answered.
func (c *conn) unanswered(what string, errs []error) error {
	permanent := 0
	for _, err := range errs {
		if driver.IsPermanent(err) {
			permanent++
		}
	}
	if permanent > len(c.nodes)-c.quorum {
		return errors.Join(errs...)
	}
	return undecided(what, errs)
}

// scan returns the names under the prefix that a node has.
func (c *conn) scan(ctx context.Context, n *node, client *redis.Client) (names []string, err error) {
	pattern := globEscaper.Replace(c.layout.prefix) + "*"
	for cursor := uint64(0); ; {
		var keys []string
		keys, cursor, err = client.ScanType(ctx, cursor, pattern, 1000, "string").Result()
		if err != nil {
			return nil, n.explain("list", err)
		}
		for _, key := range keys {
			if name, ok := driver.DecodeName(strings.TrimPrefix(key, c.layout.prefix), safe); ok {
				names = append(names, name)
			}
		}
		if cursor == 0 {
			return names, nil
		}
	}
}

var globEscaper = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`, "-", `\-`)

// described is what is known about a name, or why it isn't.
type described struct {
	driver.Entry
	err error
}

// sight is what one node says about a name.
type sight struct {
	value string
	there bool
	left  time.Duration
	token uint64
	err   error
}

// entries describes names. Their keys are read one after the other, so an entry may be a little older than its token.
func (c *conn) entries(ctx context.Context, names []string) ([]described, error) {
	if len(names) == 0 {
		return nil, nil
	}
	replies := ask(c, attempts, c.limit, c.nodes, func(ctx context.Context, n *node, client *redis.Client) ([]sight, error) {
		return c.look(ctx, n, client, names)
	})
	var answers [][]sight
	var errs []error
	if err := count(ctx, c, replies, func(r reply[[]sight]) bool {
		if r.err != nil {
			errs = append(errs, r.err)
		} else {
			answers = append(answers, r.value)
		}
		return false
	}); err != nil {
		return nil, err
	}
	if len(answers) < c.quorum {
		return nil, c.unanswered("inspect", errs)
	}
	entries := make([]described, len(names))
	for i, name := range names {
		sights := make([]sight, len(answers))
		for j := range answers {
			sights[j] = answers[j][i]
		}
		entries[i] = c.describe(name, sights)
	}
	return entries, nil
}

// look reads names on one node.
func (c *conn) look(ctx context.Context, n *node, client *redis.Client, names []string) ([]sight, error) {
	pipe := client.Pipeline()
	values, left, tokens := make([]*redis.StringCmd, len(names)), make([]*redis.DurationCmd, len(names)), make([]*redis.StringCmd, len(names))
	for i, name := range names {
		key := c.layout.key(name)
		tokens[i] = pipe.Get(ctx, c.layout.counter(key))
		values[i], left[i] = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	}
	if _, err := pipe.Exec(ctx); err != nil && !isReply(err) {
		return nil, n.explain("inspect", err)
	}
	sights := make([]sight, len(names))
	for i, name := range names {
		s := &sights[i]
		value, err := values[i].Result()
		switch {
		case err == redis.Nil:
			continue
		case err != nil:
			s.err = n.explain("inspect "+c.layout.key(name), err)
			continue
		}
		s.value, s.there, s.left = value, true, max(left[i].Val(), 0)
		s.token, _ = strconv.ParseUint(tokens[i].Val(), 10, 63)
	}
	return sights, nil
}

// describe makes one entry of what the nodes say.
func (c *conn) describe(name string, sights []sight) described {
	e := described{Entry: driver.Entry{Name: name, Waiters: -1}}
	silent := len(c.nodes) - len(sights)
	var errs []error
	byID := make(map[string][]sight)
	for _, s := range sights {
		switch {
		case s.err != nil:
			errs = append(errs, s.err)
		case s.there:
			id := s.value
			if known, _, _, ok := parseValue(s.value); ok {
				id = known
			}
			byID[id] = append(byID[id], s)
		}
	}
	if len(errs) > len(c.nodes)-c.quorum {
		e.err = c.unanswered("inspect", errs)
		return e
	}
	for _, same := range byID {
		if len(same)+silent < c.quorum {
			continue
		}
		e.Held = true
		if id, since, owner, ok := parseValue(same[0].value); ok {
			e.ID, e.Since, e.Owner = id, since, owner
			for _, s := range same {
				e.Token = max(e.Token, s.token)
			}
		}
		// The lock is held as long as a majority has it.
		slices.SortFunc(same, func(a, b sight) int { return int(b.left - a.left) })
		e.Remaining = same[min(c.quorum, len(same))-1].left
		break
	}
	return e
}

// parseValue reads the value of a lock that a program of ours has taken.
func parseValue(value string) (id string, since time.Time, owner string, ok bool) {
	id, rest, ok1 := strings.Cut(value, " ")
	at, owner, ok2 := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if !ok1 || !ok2 || err != nil || len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return "", time.Time{}, "", false
	}
	return id, time.UnixMilli(ms), owner, true
}
