package migrate

import (
	"github.com/leasekit/locker/driver"
)

func init() { driver.Register("migrate", parse) }

// parse reads migrate:?from=<url>&to=<url>&phase=old|both|new.
func parse(u *driver.URL) (driver.Connector, error) {
	if !u.Opaque || u.HasUser || len(u.Hosts) > 0 || u.Path != "" {
		u.Errorf("it has no host and no path: migrate:?from=<url>&to=<url>&phase=both")
	}
	from, fromURL := nested(u, "from")
	to, toURL := nested(u, "to")
	if fromURL != "" && fromURL == toURL {
		u.Errorf("parameters %q and %q are the same", "from", "to")
	}
	phase, ok := u.Param("phase")
	if !ok {
		u.Errorf("parameter %q is missing: old, both or new", "phase")
	}
	if err := u.Err(); err != nil {
		return nil, err
	}
	return Connect(from, to, Phase(phase))
}

// nested reads the URL of one side.
func nested(u *driver.URL, key string) (driver.Connector, string) {
	raw, ok := u.Param(key)
	if !ok || raw == "" {
		u.Errorf("parameter %q is missing: a URL, percent-encoded as a whole", key)
		return nil, ""
	}
	inner, err := driver.ParseURL(raw)
	if err != nil {
		u.Errorf("parameter %q: %w", key, err)
		return nil, raw
	}
	if inner.Scheme == "migrate" {
		u.Errorf("parameter %q: one migration can't be part of another", key)
		return nil, raw
	}
	for _, shared := range []string{"ttl", "require", "max-hold", "owner"} {
		if _, ok := inner.Param(shared); ok {
			u.Errorf("parameter %q: %q belongs to the outer URL", key, shared)
		}
	}
	c, err := inner.Connector()
	if err != nil {
		u.Errorf("parameter %q: %w", key, err)
	}
	return c, raw
}
