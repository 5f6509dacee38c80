package consul

import (
	"strings"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// parse reads consul://token@host:port,host:port/prefix and consuls:// likewise.
func parse(u *driver.URL) (driver.Connector, error) {
	c := &connector{secure: u.Scheme == "consuls"}
	if u.Opaque {
		u.Errorf(`"//" and a host have to follow %s:`, u.Scheme)
	}
	if u.HasPassword {
		u.Errorf(`the ACL token stands alone before the "@", without ":"`)
	}
	if u.HasUser && u.User == "" {
		u.Errorf(`the ACL token before the "@" is empty`)
	}
	for _, r := range u.User {
		if r <= ' ' || r > '~' {
			u.Errorf("the ACL token has a character that an HTTP header can't carry")
			break
		}
	}
	token := u.User
	c.token = func() string { return token }

	port := "8500"
	if c.secure {
		port = "8501"
	}
	c.addrs = u.Addrs(port)
	c.tls = tlsfiles.FromURL(u, c.secure)

	c.prefix = strings.Trim(u.Path, "/")
	prefix, ok := u.Param("prefix")
	switch {
	case ok && c.prefix != "":
		u.Errorf(`the path and parameter "prefix" are both the prefix: give one of them`)
	case ok:
		c.prefix = prefix
	case c.prefix == "":
		c.prefix = defaultPrefix
	}
	if err := checkPrefix(c.prefix); err != nil {
		u.Errorf("%w", err)
	}

	c.lockDelay = defaultLockDelay
	if d, ok := u.Duration("lockdelay"); ok {
		if d < 0 || d > maxLockDelay {
			u.Errorf("parameter %q: %v isn't between 0s and %v", "lockdelay", d, maxLockDelay)
		}
		c.lockDelay = d
	}
	for _, p := range []struct {
		key   string
		value *string
	}{{"dc", &c.dc}, {"namespace", &c.namespace}, {"partition", &c.partition}} {
		v, ok := u.Param(p.key)
		if ok && v == "" {
			u.Errorf("parameter %q is empty", p.key)
		}
		*p.value = v
	}
	return c, nil
}
