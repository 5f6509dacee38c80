package fence

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/leasekit/locker"
)

// Header is the HTTP header that carries a token together with the name that it belongs to:
//
//	Locker-Fence: 1733022000000000; name=orders%2F42
const Header = "Locker-Fence"

// SetHeader puts a lease's name and token into a request, for the service that checks them. It replaces what is there.
func SetHeader(h http.Header, lease locker.Lease) {
	h.Set(Header, strconv.FormatUint(uint64(lease.Token()), 10)+"; name="+url.QueryEscape(lease.Name()))
}

// FromHeader returns the token that a request carries for a name. It fails with an error matching ErrNoToken if there is
// none, or more than one, if it is malformed or can't be a lease's, or if it belongs to another name. The service knows
// which name guards what it is asked to change; the caller doesn't decide that.
func FromHeader(h http.Header, name string) (locker.Token, error) {
	fail := func(what string) (locker.Token, error) {
		return 0, fmt.Errorf("%w: header %s %s", ErrNoToken, Header, what)
	}
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return fail("is missing")
	case 1:
	default:
		return fail("is there more than once")
	}
	number, parameter, _ := strings.Cut(values[0], ";")
	escaped, ok := strings.CutPrefix(strings.TrimSpace(parameter), "name=")
	if !ok {
		return fail("has no name")
	}
	got, err := url.QueryUnescape(escaped)
	if err != nil {
		return fail("has a malformed name")
	}
	number = strings.TrimSpace(number)
	token, err := strconv.ParseUint(number, 10, 63)
	if err != nil || token == 0 || number[0] == '0' || number[0] == '+' {
		return fail("holds no token")
	}
	if got != name {
		return fail(fmt.Sprintf("belongs to the name %q and not to %q", got, name))
	}
	return locker.Token(token), nil
}
