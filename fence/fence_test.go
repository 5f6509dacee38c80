package fence

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/leasekit/locker"
)

type fakeLease struct {
	locker.Lease
	name  string
	token locker.Token
}

func (l fakeLease) Name() string        { return l.name }
func (l fakeLease) Token() locker.Token { return l.token }

func TestHeaderRoundTrip(t *testing.T) {
	for _, name := range []string{"nightly", "orders/42", `a;b="c"`, "é ü", "\x00\r\n", "name=", "a+b %20"} {
		h := make(http.Header)
		for _, token := range []locker.Token{1, 1733022000000000, math.MaxInt64} {
			SetHeader(h, fakeLease{name: name, token: token})
			if strings.ContainsAny(h.Get(Header), "\r\n\x00") {
				t.Errorf("%q: unsafe header %q", name, h.Get(Header))
			}
			got, err := FromHeader(h, name)
			if err != nil || got != token {
				t.Errorf("%q: token %d came back as %d, %v", name, token, got, err)
			}
			if _, err := FromHeader(h, name+"x"); !errors.Is(err, ErrNoToken) {
				t.Errorf("%q: accepted for another name: %v", name, err)
			}
		}
	}
}

func TestHeaderFailsClosed(t *testing.T) {
	for _, value := range []string{
		"", "33", "33;", "; name=a", "0; name=a", "-1; name=a", "+1; name=a", "007; name=a", "1.5; name=a", "0x10; name=a",
		"9223372036854775808; name=a", "18446744073709551616; name=a", "33; name=%zz", "33; nam=a", "a; name=33", "33; name=b", "33; name=",
	} {
		h := http.Header{Header: {value}}
		if token, err := FromHeader(h, "a"); !errors.Is(err, ErrNoToken) || token != 0 {
			t.Errorf("%q: token %d, error %v", value, token, err)
		}
	}
	if _, err := FromHeader(http.Header{}, "a"); !errors.Is(err, ErrNoToken) {
		t.Errorf("no header: %v", err)
	}
	if _, err := FromHeader(http.Header{Header: {"33; name=a", "34; name=a"}}, "a"); !errors.Is(err, ErrNoToken) {
		t.Errorf("two headers: %v", err)
	}
}

func TestNewSQLRefuses(t *testing.T) {
	for _, c := range []struct {
		dialect Dialect
		table   string
		says    string
	}{
		{"oracle", "fences", `"oracle"`}, {"", "fences", "dialect"}, {PostgreSQL, "", "table"}, {MySQL, "a b", `"a b"`},
		{SQLite, `x"; DROP TABLE y; --`, "table"}, {MySQL, "a.b.c", "dot"}, {PostgreSQL, "1a", "table"}, {PostgreSQL, strings.Repeat("a", 64), "table"},
	} {
		s, err := NewSQL(c.dialect, c.table)
		if s != nil || !errors.Is(err, ErrSetup) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("NewSQL(%q, %q) = %v, %v", c.dialect, c.table, s, err)
		}
	}
}

func TestSQLRefusesTokensWithoutAsking(t *testing.T) {
	s, err := NewSQL(PostgreSQL, "app.fences")
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []locker.Token{0, math.MaxInt64 + 1, math.MaxUint64} {
		if err := s.Check(t.Context(), nil, "a", token); !errors.Is(err, ErrNoToken) {
			t.Errorf("token %d: %v", token, err)
		}
	}
	if err := s.Check(t.Context(), nil, "", 1); !errors.Is(err, ErrNoToken) {
		t.Errorf("no name: %v", err)
	}
	if err := s.Check(t.Context(), nil, "a\x00", 1); !errors.Is(err, ErrSetup) {
		t.Errorf("NUL on PostgreSQL: %v", err)
	}
}

func TestRedisError(t *testing.T) {
	other := errors.New("READONLY You can't write against a read only replica.")
	for _, c := range []struct {
		reply, want error
	}{
		{nil, nil}, {other, other},
		{errors.New("STALE 34"), ErrStale},
		{errors.New("STALE 34 script: 0123, on @user_script:1."), ErrStale}, // as old servers decorate it
		{errors.New("NOTOKEN fence: no valid token"), ErrNoToken},
		{errors.New("NOFENCE fence: the key holds something else"), ErrSetup},
	} {
		got := RedisError("a", 33, c.reply)
		if !errors.Is(got, c.want) {
			t.Errorf("%v became %v", c.reply, got)
		}
		if stale, ok := errors.AsType[*StaleError](got); ok && (stale.Seen != 34 || stale.Given != 33 || stale.Name != "a") {
			t.Errorf("%v became %+v", c.reply, stale)
		}
	}
}
