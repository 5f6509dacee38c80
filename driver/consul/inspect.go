package consul

import (
	"context"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

var _ driver.Inspector = (*conn)(nil)

// Inspect reads a name's entry. How long it may stay isn't known: sessions don't tell when they were renewed.
func (c *conn) Inspect(ctx context.Context, name string) (driver.Entry, error) {
	key := c.key(name)
	e, offset, err := c.look(ctx, c.upkeep, key)
	if err != nil {
		return driver.Entry{}, c.explain(err, "key:read on "+key)
	}
	return describe(name, e, offset), nil
}

// List reads all keys under the prefix.
func (c *conn) List(ctx context.Context, yield func(driver.Entry) bool) error {
	under := c.under()
	request, leave, err := c.enter(ctx, c.upkeep)
	if err != nil {
		return c.explain(err, "")
	}
	all, _, err := c.api.KV().List(under, c.query(request))
	leave()
	if err != nil {
		return c.explain(err, "key:read on "+under)
	}
	var offset *api.KVPair
	for _, e := range all {
		if e.Key == c.offsetKey() {
			offset = e
		}
	}
	for _, e := range all {
		name, ok := decodeName(strings.TrimPrefix(e.Key, under))
		if !ok || e.Session == "" {
			continue
		}
		if !yield(describe(name, e, offset)) {
			return nil
		}
	}
	return nil
}

// describe says what an entry tells; nil is a free name.
func describe(name string, e, offset *api.KVPair) driver.Entry {
	d := driver.Entry{Name: name, Waiters: -1}
	if e == nil || e.Session == "" {
		return d
	}
	d.Held = true
	if id, since, owner, ok := parseValue(e.Value); ok {
		d.ID, d.Since, d.Owner = id, since, owner
		if token, err := addOffset(e.ModifyIndex, offset); err == nil {
			d.Token = token
		}
	}
	return d
}
