package zookeeper

import (
	"strings"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// parse reads zk://user:password@host:port,…/prefix and its like.
func parse(u *driver.URL) (driver.Connector, error) {
	secure := u.Scheme == "zks" || u.Scheme == "zookeepers"
	c := &connector{servers: u.Addrs("2181"), prefix: defaultPrefix}
	if u.Opaque {
		u.Errorf(`"//" has to follow the scheme`)
	}
	if u.HasUser {
		if u.User == "" || strings.Contains(u.User, ":") {
			u.Errorf("the user is empty or has a colon in it")
		}
		if !u.HasPassword {
			u.Errorf("the user's password is missing")
		}
		c.o.User, c.o.Password = u.User, u.Password
	}
	prefix, ok := u.Param("prefix")
	switch {
	case ok && u.Path != "":
		u.Errorf(`the path and parameter "prefix" say the same; one of them is enough`)
	case ok && prefix == "":
		prefix = "/"
	case !ok && u.Path != "/": // a slash too many at the end of a URL must not lead elsewhere
		prefix = u.Path
	}
	if prefix != "" {
		var err error
		if c.prefix, err = checkPrefix(prefix); err != nil {
			u.Errorf("prefix: %w", err)
		}
	}
	c.files = tlsfiles.FromURL(u, secure)
	return c, u.Err()
}
