package driver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// URL is a URL that names a backend:
//
//	scheme://user:password@host:port,[::1]:port/path?key=value&key=value
//	scheme:?key=value
//
// It isn't a net/url.URL, which knows no list of hosts and reads a plus sign in a query as a space. Here percent-encoding
// is decoded once, as in RFC 3986, and every other character stands for itself. A driver reads the exported fields and
// takes parameters with the methods; what is wrong is collected and reported together by [URL.Connector].
type URL struct {
	Scheme      string
	User        string // decoded
	Password    string // decoded
	HasUser     bool   // there is an "@", though User may be empty
	HasPassword bool
	Hosts       []string // as written, each with or without a port: "h1:6379", "[::1]"; nil if there is none
	Path        string   // decoded, with its leading slash; "" if there is none
	Opaque      bool     // there is no "//"

	params []param
	errs   []error
}

type param struct {
	key, value string
	taken      bool
}

// ParseURL splits a URL. Its errors match ErrConfig and quote nothing that could be part of a password.
func ParseURL(raw string) (*URL, error) {
	fail := func(what string) (*URL, error) { return nil, fmt.Errorf("%w: URL: %s", ErrConfig, what) }
	for _, c := range []byte(raw) {
		if c <= ' ' || c == 0x7f {
			return fail("a space or control character has to be percent-encoded")
		}
	}
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok || !validScheme(scheme) {
		return fail("it has to begin with a scheme in lower case, such as file:// or redis://")
	}
	if strings.Contains(rest, "#") {
		return fail(`"#" has to be written %23`)
	}
	u := &URL{Scheme: scheme, Opaque: true}
	rest, query, hasQuery := strings.Cut(rest, "?")
	if strings.Contains(query, "@") {
		return fail(atSign)
	}
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		u.Opaque = false
		authority, path := after, ""
		if i := strings.IndexByte(after, '/'); i >= 0 {
			authority, path = after[:i], after[i:]
		}
		if u.Path, ok = percentDecode(path); !ok {
			return fail("the path has an invalid percent-encoding")
		}
		if authority != "" && strings.Contains(path, "@") {
			return fail(atSign)
		}
		if err := u.parseAuthority(authority); err != nil {
			return nil, fmt.Errorf("%w: URL: %w", ErrConfig, err)
		}
	} else if rest != "" {
		return fail(`"//" has to follow the scheme`)
	}
	if hasQuery {
		if err := u.parseQuery(query); err != nil {
			return nil, fmt.Errorf("%w: URL: %w", ErrConfig, err)
		}
	}
	return u, nil
}

// atSign refuses an "@" where it may be the end of a password with a "/", "?" or "&" in it: what comes before would be
// taken for something that messages may quote. The path of a URL without a host, as in file:///a@b, can't be that.
const atSign = `"@" in a parameter, or after the hosts, has to be written %40, and in a password "/" %2F, "?" %3F, "&" %26`

func validScheme(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || !('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.')) {
			return false
		}
	}
	return s != ""
}

func (u *URL) parseAuthority(s string) error {
	user, hosts, ok := strings.Cut(s, "@")
	if !ok {
		user, hosts = "", s
	}
	if strings.Contains(hosts, "@") {
		return errors.New(`"@" in a user name or password has to be written %40`)
	}
	if ok {
		u.HasUser = true
		var password string
		user, password, u.HasPassword = strings.Cut(user, ":")
		var okUser, okPassword bool
		u.User, okUser = percentDecode(user)
		u.Password, okPassword = percentDecode(password)
		if !okUser || !okPassword {
			return errors.New(`the user name or password has an invalid percent-encoding ("%" is written %25)`)
		}
	}
	if hosts == "" {
		return nil
	}
	u.Hosts = strings.Split(hosts, ",")
	for i, h := range u.Hosts {
		if err := checkHost(h); err != nil {
			return fmt.Errorf("host %d of %d: %w", i+1, len(u.Hosts), err)
		}
	}
	return nil
}

// checkHost accepts name, name:port, IPv4, IPv4:port, [IPv6] and [IPv6]:port. Its errors don't quote the host: what looks
// like one may be the first half of a password with a "/" in it.
func checkHost(h string) error {
	host, port, hasPort := h, "", false
	if strings.HasPrefix(h, "[") {
		end := strings.IndexByte(h, ']')
		if end < 0 {
			return errors.New(`"]" is missing`)
		}
		addr, err := netip.ParseAddr(h[1:end])
		if err != nil || !addr.Is6() {
			return errors.New("there is no IPv6 address between the brackets")
		}
		host = "ipv6"
		switch after := h[end+1:]; {
		case after == "":
		case after[0] == ':':
			port, hasPort = after[1:], true
		default:
			return errors.New(`only ":" and a port may follow "]"`)
		}
	} else {
		host, port, hasPort = strings.Cut(h, ":")
	}
	if strings.Contains(port, ":") {
		return errors.New(`an IPv6 address has to stand in brackets, and ":" in a password has to follow the user's`)
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '+' {
			return errors.New(`the port isn't a number from 1 to 65535 ("/" and "?" in a password have to be percent-encoded)`)
		}
	}
	if host == "" {
		return errors.New("it is empty")
	}
	for _, c := range []byte(host) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_') {
			return errors.New("a host name consists of letters, digits, dots and hyphens")
		}
	}
	return nil
}

func (u *URL) parseQuery(s string) error {
	for i, pair := range strings.Split(s, "&") {
		key, value, ok := strings.Cut(pair, "=")
		key, okKey := percentDecode(key)
		if !okKey || !validKey(key) {
			return fmt.Errorf(`parameter %d has no valid name ("&" in a value has to be written %%26)`, i+1)
		}
		if !ok {
			return fmt.Errorf(`parameter %q has no value ("&" in a value has to be written %%26)`, key)
		}
		value, okValue := percentDecode(value)
		if !okValue {
			return fmt.Errorf("parameter %q has an invalid percent-encoding", key)
		}
		u.params = append(u.params, param{key: key, value: value})
	}
	return nil
}

// validKey keeps out of messages what isn't the name of a parameter but the rest of a value with an "&" in it.
func validKey(s string) bool {
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// Errorf records that something is wrong, to be reported with ErrConfig. The text names the parameter or part of the URL.
func (u *URL) Errorf(format string, args ...any) {
	u.errs = append(u.errs, fmt.Errorf(format, args...))
}

// Params takes all values of a parameter, in order.
func (u *URL) Params(key string) []string {
	var values []string
	for i := range u.params {
		if p := &u.params[i]; p.key == key {
			p.taken = true
			values = append(values, p.value)
		}
	}
	return values
}

// Param takes the value of a parameter and reports whether it is there. Giving it twice is an error.
func (u *URL) Param(key string) (value string, ok bool) {
	values := u.Params(key)
	switch len(values) {
	case 0:
		return "", false
	case 1:
		return values[0], true
	}
	u.Errorf("parameter %q is given %d times", key, len(values))
	return values[0], true
}

// Duration takes a parameter that is a duration with a unit, such as 1m30s. It returns 0 and false if the parameter
// isn't there or isn't valid.
func (u *URL) Duration(key string) (d time.Duration, ok bool) {
	s, ok := u.Param(key)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	if _, numErr := strconv.ParseFloat(s, 64); err != nil || numErr == nil {
		u.Errorf("parameter %q: %q isn't a duration with a unit, such as 15s or 500ms", key, s)
		return 0, false
	}
	return d, true
}

// Int takes a parameter that is a whole number from lo to hi. It returns 0 and false if the parameter isn't there or
// isn't valid.
func (u *URL) Int(key string, lo, hi int) (n int, ok bool) {
	s, ok := u.Param(key)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi || s[0] == '+' {
		u.Errorf("parameter %q: %q isn't a whole number from %d to %d", key, s, lo, hi)
		return 0, false
	}
	return n, true
}

// Bool takes a parameter that is "true" or "false".
func (u *URL) Bool(key string) (b, ok bool) {
	s, ok := u.Param(key)
	if ok && s != "true" && s != "false" {
		u.Errorf("parameter %q: %q is neither true nor false", key, s)
		return false, false
	}
	return s == "true", ok
}

// Addrs returns the hosts, each with a port: its own or the given one. No host at all is an error.
func (u *URL) Addrs(defaultPort string) []string {
	if len(u.Hosts) == 0 {
		u.Errorf("the host is missing, as in %s://HOST", u.Scheme)
	}
	addrs := make([]string, len(u.Hosts))
	for i, h := range u.Hosts {
		if _, port, ok := strings.Cut(h[strings.LastIndexByte(h, ']')+1:], ":"); ok && port != "" {
			addrs[i] = h
		} else {
			addrs[i] = h + ":" + defaultPort
		}
	}
	return addrs
}

// Err returns all that is wrong so far, parameters that nobody took included. The error matches ErrConfig.
func (u *URL) Err() error {
	errs := slices.Clip(u.errs)
	for _, p := range u.params {
		if !p.taken {
			errs = append(errs, fmt.Errorf("unknown parameter %q", p.key))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s URL: %w", ErrConfig, u.Scheme, errors.Join(errs...))
}

// String returns the scheme and the hosts, and nothing that could be a secret.
func (u *URL) String() string { return u.Scheme + "://" + strings.Join(u.Hosts, ",") }
