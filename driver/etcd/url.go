package etcd

import (
	"context"
	"unicode"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// parse reads a URL. What is wrong is left with u.
func parse(u *driver.URL) *connector {
	secure := u.Scheme == "etcds"
	c := &connector{prefix: DefaultPrefix, endpoints: u.Addrs("2379"), tls: tlsfiles.FromURL(u, secure)}
	p, ok := u.Param("prefix")
	inPath := u.Path != "" && u.Path != "/"
	switch {
	case ok && inPath:
		u.Errorf("the prefix is given both as the path and as parameter %q", "prefix")
	case ok:
		c.prefix, c.prefixSet = withSlash(p), true
	case inPath:
		c.prefix, c.prefixSet = withSlash(u.Path), true
	}
	if u.HasUser {
		if u.User == "" || u.Password == "" {
			u.Errorf("a user and a password go together")
		}
		user, password := u.User, u.Password
		c.credentials = func(context.Context) (string, string, error) { return user, password, nil }
	}
	return c
}

// safe reports which runes of a name stand for themselves in a key.
func safe(_ int, r rune) bool { return r != '/' && !unicode.IsControl(r) }

// folder is what the keys of all who hold or want a name begin with.
func (c *conn) folder(name string) string { return c.prefix + driver.EncodeName(name, safe) + "/" }

// key is the entry of one acquisition.
func (c *conn) key(req driver.Request) string { return c.folder(req.Name) + req.ID }

// offsetKey holds what is added to create revisions. It lies beside the folders of names: an encoded name has no percent
// sign that isn't followed by hexadecimal digits, and no key of a lock lies at this depth.
func (c *conn) offsetKey() string { return c.prefix + "%token-offset" }
