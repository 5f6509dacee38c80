package consul

import (
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

// offsetName stands beside the locks. No name encodes to it, since "%of" isn't a percent-encoding.
const offsetName = "%offset"

// key returns the key of a name.
func (s *settings) key(name string) string { return s.under() + encodeName(name) }

// offsetKey returns the key of the number that is added to tokens.
func (s *settings) offsetKey() string { return s.under() + offsetName }

// under returns what all keys begin with.
func (s *settings) under() string {
	if s.prefix == "" {
		return ""
	}
	return s.prefix + "/"
}

// encodeName makes a name fit for a key that can be read with GET /v1/kv/KEY: Consul's server refuses paths with
// characters that can't be printed, and cleans away empty and dot elements.
func encodeName(name string) string {
	return driver.EncodeName(name, func(i int, r rune) bool {
		switch r {
		case '/':
			return i > 0 && name[i-1] != '/'
		case '.':
			start := strings.LastIndexByte(name[:i], '/') + 1
			element, _, _ := strings.Cut(name[start:], "/")
			return element != "." && element != ".."
		}
		return unicode.IsPrint(r)
	})
}

// decodeName reverses encodeName. It reports false for keys that no name has.
func decodeName(encoded string) (string, bool) {
	name, err := url.PathUnescape(encoded)
	if err != nil || driver.CheckName(name) != nil || encodeName(name) != encoded {
		return "", false
	}
	return name, true
}

// value returns what an entry holds, for people and for recognising it.
func value(req driver.Request, now time.Time) []byte {
	return []byte(req.ID + " " + strconv.FormatInt(now.UnixMilli(), 10) + " " + req.Owner)
}

// parseValue reverses value. It reports false for what somebody else wrote.
func parseValue(v []byte) (id string, since time.Time, owner string, ok bool) {
	id, rest, ok1 := strings.Cut(string(v), " ")
	ms, owner, ok2 := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(ms, 10, 64)
	if !ok1 || !ok2 || err != nil || len(id) != 32 {
		return "", time.Time{}, "", false
	}
	return id, time.UnixMilli(n), owner, true
}

// carries reports whether an entry was made for a request's ID.
func carries(e *api.KVPair, id string) bool {
	got, _, _, ok := parseValue(e.Value)
	return ok && got == id
}
