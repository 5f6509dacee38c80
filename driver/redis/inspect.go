package redis

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Inspect implements driver.Inspector.
func (c *conn) Inspect(ctx context.Context, name string) (driver.Entry, error) {
	entries, err := c.entries(ctx, []string{name})
	if err != nil {
		return driver.Entry{Name: name, Waiters: -1}, explain("inspect "+c.layout.key(name), err)
	}
	if entries[0].err != nil {
		return entries[0].Entry, explain("inspect "+c.layout.key(name), entries[0].err)
	}
	return entries[0].Entry, nil
}

// List implements driver.Inspector. It goes through all keys of the database, and reports every string under the prefix,
// whoever wrote it.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	seen := make(map[string]bool) // SCAN may return a key twice
	return c.scan(ctx, func(keys []string) (more bool, err error) {
		var names []string
		for _, key := range keys {
			name, ok := driver.DecodeName(strings.TrimPrefix(key, c.layout.prefix), safe)
			if ok && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
		entries, err := c.entries(ctx, names)
		if err != nil {
			return false, explain("list", err)
		}
		for _, e := range entries {
			if e.err == nil && e.Held && !yield(e.Entry) {
				return false, nil
			}
		}
		return true, nil
	})
}

// scan calls page with the keys under the prefix, on every server that has some, until it returns false.
func (c *conn) scan(ctx context.Context, page func(keys []string) (more bool, err error)) error {
	pattern := globEscaper.Replace(c.layout.prefix) + "*"
	type result struct {
		keys   []string
		cursor uint64
	}
	stopped := false
	one := func(next func(cursor uint64) (result, error)) error {
		for cursor := uint64(0); !stopped; {
			r, err := next(cursor)
			if err != nil {
				return explain("list", err)
			}
			more, err := page(r.keys)
			if err != nil {
				return err
			}
			stopped = !more
			if cursor = r.cursor; cursor == 0 {
				break
			}
		}
		return nil
	}
	scan := func(ctx context.Context, client redis.Cmdable, cursor uint64) (r result, err error) {
		r.keys, r.cursor, err = client.ScanType(ctx, cursor, pattern, 1000, "string").Result()
		return r, err
	}
	servers, err := c.client.servers(ctx)
	if err != nil {
		return explain("list", err)
	}
	for _, s := range servers {
		err := one(func(cursor uint64) (result, error) {
			return callServer(ctx, s, func(ctx context.Context, client redis.UniversalClient) (result, error) {
				return scan(ctx, client, cursor)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var globEscaper = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`, "-", `\-`)

// described is what is known about a name, or why it isn't.
type described struct {
	driver.Entry
	err error
}

// entries describes names. Their keys are read one after the other, so an entry may be a little older than its token.
func (c *conn) entries(ctx context.Context, names []string) ([]described, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return call(ctx, c.client, attempts, "", func(ctx context.Context, client redis.UniversalClient) ([]described, error) {
		pipe := client.Pipeline()
		values, left, tokens := make([]*redis.StringCmd, len(names)), make([]*redis.DurationCmd, len(names)), make([]*redis.StringCmd, len(names))
		for i, name := range names {
			key := c.layout.key(name)
			tokens[i] = pipe.Get(ctx, c.layout.companion(key, "t"))
			values[i], left[i] = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
		}
		if _, err := pipe.Exec(ctx); err != nil && !isReply(err) {
			return nil, err
		}
		entries := make([]described, len(names))
		for i, name := range names {
			e := &entries[i]
			e.Name, e.Waiters = name, -1
			value, err := values[i].Result()
			switch {
			case err == redis.Nil:
				continue
			case err != nil:
				e.err = err
				continue
			}
			e.Held = true
			if d := left[i].Val(); d > 0 {
				e.Remaining = d
			}
			if id, since, owner, ok := parseValue(value); ok {
				e.ID, e.Since, e.Owner = id, since, owner
				e.Token, _ = strconv.ParseUint(tokens[i].Val(), 10, 63)
			}
		}
		return entries, nil
	})
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
