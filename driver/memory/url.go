package memory

import (
	"strings"
	"sync"

	"github.com/leasekit/locker/driver"
)

// named holds the stores that URLs have named.
var named = struct {
	sync.Mutex
	stores map[string]*Store
}{stores: make(map[string]*Store)}

func parse(u *driver.URL) (driver.Connector, error) {
	switch {
	case u.Opaque:
		u.Errorf(`"//" has to follow the scheme`)
	case u.HasUser:
		u.Errorf("a user or password has no meaning here")
	case u.Path != "":
		u.Errorf("a path has no meaning here; memory://NAME names a store")
	case len(u.Hosts) > 1:
		u.Errorf("one store can be named, not %d", len(u.Hosts))
	case len(u.Hosts) == 1 && strings.Contains(u.Hosts[0], ":"):
		u.Errorf("a port or an address has no meaning here; memory://NAME names a store")
	}
	if err := u.Err(); err != nil || len(u.Hosts) == 0 {
		return New(), err
	}
	named.Lock()
	defer named.Unlock()
	s := named.stores[u.Hosts[0]]
	if s == nil {
		s = New()
		named.stores[u.Hosts[0]] = s
	}
	return s, nil
}
