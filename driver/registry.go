package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

var registry = struct {
	sync.RWMutex
	parse map[string]func(*URL) (Connector, error)
}{parse: make(map[string]func(*URL) (Connector, error))}

// Register makes parse the reader of URLs with the given scheme. A driver calls it from an init function; its import
// then makes the scheme known. parse causes no traffic and reads no environment variables; it takes what it knows out of
// the URL, and what it leaves is refused as unknown. Register panics if parse is nil or the scheme is registered already.
func Register(scheme string, parse func(*URL) (Connector, error)) {
	registry.Lock()
	defer registry.Unlock()
	if parse == nil {
		panic("driver: Register with a nil parse function for scheme " + scheme)
	}
	if !validScheme(scheme) {
		panic("driver: Register with an invalid scheme " + scheme)
	}
	if _, dup := registry.parse[scheme]; dup {
		panic("driver: Register called twice for scheme " + scheme)
	}
	registry.parse[scheme] = parse
}

// Schemes returns the registered schemes, sorted.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Sorted(maps.Keys(registry.parse))
}

// Parse parses a URL that names a backend and has no parameters beyond the driver's own. Every error matches ErrConfig
// and names what is wrong; none holds a password. It causes no traffic.
func Parse(rawURL string) (Connector, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return u.Connector()
}

// Connector hands u to the driver that registered its scheme, and fails if the driver does, or if parameters are left
// that nobody took.
func (u *URL) Connector() (Connector, error) {
	registry.RLock()
	parse := registry.parse[u.Scheme]
	registry.RUnlock()
	if parse == nil {
		return nil, fmt.Errorf("%w: unknown scheme %q: %s", ErrConfig, u.Scheme, missing(u.Scheme))
	}
	c, err := parse(u)
	if urlErr := u.Err(); urlErr != nil {
		return nil, urlErr // it names the parameter; what the driver made of the rest doesn't matter
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// missing says what to do about a scheme that isn't registered.
func missing(scheme string) string {
	have := Schemes()
	family, _, _ := strings.Cut(scheme, "+")
	for _, name := range []string{family, strings.TrimSuffix(family, "s")} {
		if pkg, ok := packages[name]; ok && !slices.Contains(have, name) {
			return fmt.Sprintf("forgotten import of %q?", pkg)
		}
	}
	if len(have) == 0 {
		return "no driver is imported"
	}
	return "imported drivers know " + strings.Join(have, ", ")
}

// packages says which import brings a scheme, so that the message can name it. It decides nothing else: a driver that
// isn't listed works just as well.
var packages = map[string]string{
	"memory":    "github.com/leasekit/locker/driver/memory",
	"file":      "github.com/leasekit/locker/driver/file",
	"redis":     "github.com/leasekit/locker/driver/redis",
	"redlock":   "github.com/leasekit/locker/driver/redlock",
	"etcd":      "github.com/leasekit/locker/driver/etcd",
	"zk":        "github.com/leasekit/locker/driver/zookeeper",
	"zookeeper": "github.com/leasekit/locker/driver/zookeeper",
	"consul":    "github.com/leasekit/locker/driver/consul",
	"migrate":   "github.com/leasekit/locker/driver/migrate",
}
