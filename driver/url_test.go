package driver_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]driver.URL{
		"memory://":                        {Scheme: "memory"},
		"memory://x":                       {Scheme: "memory", Hosts: []string{"x"}},
		"file:///var/lib/app/locks":        {Scheme: "file", Path: "/var/lib/app/locks"},
		"file:///a+b/c%20d/e@f":            {Scheme: "file", Path: "/a+b/c d/e@f"},
		"redis://h":                        {Scheme: "redis", Hosts: []string{"h"}},
		"redis://h:6379/0":                 {Scheme: "redis", Hosts: []string{"h:6379"}, Path: "/0"},
		"redis://h1:1,h2,[::1]:65535/0":    {Scheme: "redis", Hosts: []string{"h1:1", "h2", "[::1]:65535"}, Path: "/0"},
		"redis://[2001:db8::2],10.0.0.1:7": {Scheme: "redis", Hosts: []string{"[2001:db8::2]", "10.0.0.1:7"}},
		"redis+sentinel://h/master/0":      {Scheme: "redis+sentinel", Hosts: []string{"h"}, Path: "/master/0"},
		"redis+unix:///run/r.sock":         {Scheme: "redis+unix", Path: "/run/r.sock"},
		"redis://user:pass@h":              {Scheme: "redis", User: "user", Password: "pass", HasUser: true, HasPassword: true, Hosts: []string{"h"}},
		"redis://:pass@h":                  {Scheme: "redis", Password: "pass", HasUser: true, HasPassword: true, Hosts: []string{"h"}},
		"redis://user:@h":                  {Scheme: "redis", User: "user", HasUser: true, HasPassword: true, Hosts: []string{"h"}},
		"redis://a+b:c+d:e@h":              {Scheme: "redis", User: "a+b", Password: "c+d:e", HasUser: true, HasPassword: true, Hosts: []string{"h"}},
		"redis://a%40b:%2F%3a%25@h":        {Scheme: "redis", User: "a@b", Password: "/:%", HasUser: true, HasPassword: true, Hosts: []string{"h"}},
		"consul://token@h:8500/p":          {Scheme: "consul", User: "token", HasUser: true, Hosts: []string{"h:8500"}, Path: "/p"},
		"redlock:":                         {Scheme: "redlock", Opaque: true},
		"etcd://my_host-1.example:2379/":   {Scheme: "etcd", Hosts: []string{"my_host-1.example:2379"}, Path: "/"},
	} {
		u, err := driver.ParseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if u.Scheme != want.Scheme || u.User != want.User || u.Password != want.Password || u.HasUser != want.HasUser ||
			u.HasPassword != want.HasPassword || !slices.Equal(u.Hosts, want.Hosts) || u.Path != want.Path || u.Opaque != want.Opaque {
			t.Errorf("%s: %+v, want %+v", raw, *u, want)
		}
		if err := u.Err(); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// Where a part can be a secret, or the rest of one that wasn't encoded, the parts that hold it are given as "s3cr3t".
func TestParseURLRefuses(t *testing.T) {
	for _, c := range []struct{ raw, says string }{
		{"", "scheme"},
		{"redis", "scheme"},
		{"//h", "scheme"},
		{"1redis://h", "scheme"},
		{"REDIS://h", "lower case"},
		{":s3cr3t@h", "scheme"},
		{"user:s3cr3t@h", `"//"`},
		{"redis:h", `"//"`},
		{"redis:/h", `"//"`},
		{"redis://h/0 ", "space"},
		{"redis://h/\n", "control character"},
		{"redis://:s3cr3t\x00@h", "control character"},
		{"redis://:s3cr3t#@h", "%23"},
		{"redis://:s3cr3t%zz@h", "password has an invalid percent-encoding"},
		{"redis://:s3cr3t%4@h", "password has an invalid percent-encoding"},
		{"redis://:s3cr3t@pw@h", "%40"},
		{"redis://:s3cr3t/@h", "%2F"},
		{"redis://u:12/s3cr3t@h", "%2F"},
		{"redis://u:s3cr3t/pw@h", "%2F"},
		{"redis://:s3cr3t?@h", "%3F"},
		{"redis://u:12?s3cr3t=x@h", "%3F"},
		{"redis://u:12?a=b&s3cr3t=x@h", "%26"},
		{"redis://u:pw@h?ttl=5s&x=s3cr3t@h", "%40"},
		{"consul://?s3cr3t&x@h", "%3F"},
		{"file:///a?owner=a@b", "%40"},
		{"redlock:?node=redis://:x&s3cr3t@h", "%40"},
		{"redis://h/%zz", "path"},
		{"redis://h:0", "port"},
		{"redis://h:65536", "port"},
		{"redis://h:+1", "port"},
		{"redis://h:-1", "port"},
		{"redis://h:", "port"},
		{"redis://h:6379x", "port"},
		{"redis://h:s3cr3t", "port"},
		{"redis://h1,h2:99999,h3", "host 2 of 3"},
		{"redis://h1,,h3", "host 2 of 3: it is empty"},
		{"redis://,", "host 1 of 2: it is empty"},
		{"redis://:1", "empty"},
		{"redis://::1", "brackets"},
		{"redis://fe80::1:6379", "brackets"},
		{"redis://[::1", `"]"`},
		{"redis://[::1]6379", "follow"},
		{"redis://[::1]:", "port"},
		{"redis://[1.2.3.4]", "IPv6"},
		{"redis://[zz]", "IPv6"},
		{"redis://h%20x", "host name"},
		{"redis://h;s3cr3t", "host name"},
		{"redis://h?", "parameter 1 has no valid name"},
		{"redis://h?a=1&", "parameter 2 has no valid name"},
		{"redis://h?=1", "parameter 1 has no valid name"},
		{"redis://h?%zz=1", "parameter 1 has no valid name"},
		{"redis://h?password=a&s3cr3t!=x", "parameter 2 has no valid name"},
		{"redis://h?ttl", `"ttl" has no value`},
		{"redis://h?ca=%z", `"ca" has an invalid percent-encoding`},
	} {
		u, err := driver.ParseURL(c.raw)
		if err == nil {
			t.Errorf("%q is accepted as %+v", c.raw, *u)
			continue
		}
		refused(t, c.raw, err, c.says)
	}
}

// refused checks the text of an error about a URL.
func refused(t *testing.T, raw string, err error, says string) {
	t.Helper()
	if !errors.Is(err, driver.ErrConfig) {
		t.Errorf("%q: %v doesn't match ErrConfig", raw, err)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("%q: %q doesn't say %q", raw, err, says)
	}
	if strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("%q: %q quotes the secret", raw, err)
	}
}

func TestURLParameters(t *testing.T) {
	u, err := driver.ParseURL("redlock://u:pw@h1:1,[::1],h3/0?ttl=1m30s&n=-7&yes=true&no=false&name=a+b%2B%20c&empty=&node=x&node=y")
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := u.Duration("ttl"); d != 90*time.Second || !ok {
		t.Error(d, ok)
	}
	if n, ok := u.Int("n", -7, 7); n != -7 || !ok {
		t.Error(n, ok)
	}
	if b, ok := u.Bool("yes"); !b || !ok {
		t.Error(b, ok)
	}
	if b, ok := u.Bool("no"); b || !ok {
		t.Error(b, ok)
	}
	if s, ok := u.Param("name"); s != "a+b+ c" || !ok {
		t.Errorf("%q %v", s, ok)
	}
	if s, ok := u.Param("empty"); s != "" || !ok {
		t.Errorf("%q %v", s, ok)
	}
	if s, ok := u.Param("missing"); s != "" || ok {
		t.Errorf("%q %v", s, ok)
	}
	if s := u.Params("node"); !slices.Equal(s, []string{"x", "y"}) {
		t.Error(s)
	}
	if a := u.Addrs("6379"); !slices.Equal(a, []string{"h1:1", "[::1]:6379", "h3:6379"}) {
		t.Error(a)
	}
	if err := u.Err(); err != nil {
		t.Error(err)
	}
	if s := u.String(); s != "redlock://h1:1,[::1],h3" {
		t.Error(s)
	}
}

func TestURLParametersRefused(t *testing.T) {
	duration := func(u *driver.URL) { u.Duration("p") }
	number := func(u *driver.URL) { u.Int("p", 1, 10) }
	for _, c := range []struct {
		query string
		take  func(*driver.URL)
		says  []string
	}{
		{"p=15", duration, []string{`"p"`, `"15"`, "unit"}},
		{"p=0", duration, []string{`"p"`, "unit"}},
		{"p=1.5", duration, []string{`"p"`, "unit"}},
		{"p=", duration, []string{`"p"`, "unit"}},
		{"p=fast", duration, []string{`"p"`, "unit"}},
		{"p=15s+", duration, []string{`"p"`, "unit"}},
		{"p=1s&p=2s", duration, []string{`"p" is given 2 times`}},
		{"p=1s&p=1s", duration, []string{`"p" is given 2 times`}},
		{"p=0", number, []string{`"p"`, "from 1 to 10"}},
		{"p=11", number, []string{`"p"`, "from 1 to 10"}},
		{"p=+5", number, []string{`"p"`, "whole number"}},
		{"p=5.0", number, []string{`"p"`, "whole number"}},
		{"p=", number, []string{`"p"`, "whole number"}},
		{"p=99999999999999999999", number, []string{`"p"`, "whole number"}},
		{"p=1", func(u *driver.URL) { u.Bool("p") }, []string{`"p"`, "neither true nor false"}},
		{"p=TRUE", func(u *driver.URL) { u.Bool("p") }, []string{`"p"`, "neither true nor false"}},
		{"p=x", func(*driver.URL) {}, []string{`unknown parameter "p"`}},
		{"p=x&q=7", number, []string{`"p"`, "whole number", `unknown parameter "q"`}},
		{"p=x&P=y", func(u *driver.URL) { u.Param("p") }, []string{`unknown parameter "P"`}},
		{"p=x", func(u *driver.URL) { u.Param("p"); u.Addrs("1") }, []string{"the host is missing"}},
	} {
		host := "h"
		if c.says[0] == "the host is missing" {
			host = ""
		}
		raw := "redis://" + host + "/0?" + c.query
		u, err := driver.ParseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		c.take(u)
		err = u.Err()
		if err == nil {
			t.Errorf("%s is accepted", raw)
			continue
		}
		for _, says := range c.says {
			refused(t, raw, err, says)
		}
		if again := u.Err(); again.Error() != err.Error() {
			t.Errorf("%s: Err says %q, and when asked again %q", raw, err, again)
		}
	}
}

func TestURLsNest(t *testing.T) {
	inner := "redis://u:p%40%2F+w@h1:1,[::1]/0?ttl=5s&name=a%26b"
	middle := "redlock:?node=" + encodeAll(inner)
	outer := "migrate:?to=etcd%3A%2F%2Fh&from=" + encodeAll(middle)
	u, err := driver.ParseURL(outer)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := u.Param("from"); got != middle {
		t.Fatalf("%q, want %q", got, middle)
	}
	if u, err = driver.ParseURL(middle); err != nil {
		t.Fatal(err)
	}
	if got, _ := u.Param("node"); got != inner {
		t.Fatalf("%q, want %q", got, inner)
	}
	if u, err = driver.ParseURL(inner); err != nil {
		t.Fatal(err)
	}
	name, _ := u.Param("name")
	if u.Password != "p@/+w" || name != "a&b" {
		t.Errorf("password %q, name %q", u.Password, name)
	}
}

// encodeAll percent-encodes every byte that isn't a letter or a digit.
func encodeAll(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}

// FuzzParseURL checks that whatever is accepted keeps its parts, and that whatever is refused doesn't say the password.
func FuzzParseURL(f *testing.F) {
	f.Add("redis", "user", "pass", uint(2), "h1:6379,[::1]", "/0", "ttl", "5s")
	f.Add("redis", "", "12?=x&y", uint(3), "h", "", "", "")
	f.Add("redis", "", "12/", uint(9), "h", "?", "a", "b@c")
	f.Add("file", "", "", uint(0), "", "/a b", "owner", "x@y")
	f.Add("consul", "", "?&y", uint(1), "", "/a@b", "", "")
	f.Add("redlock", "a:b", "p/w#%41", uint(5), ",", "//", "&", "=")
	f.Fuzz(func(t *testing.T, scheme, user, password string, at uint, hosts, path, key, value string) {
		after := hosts + path
		if key != "" {
			after += "?" + key + "=" + value
		}

		// A secret anywhere in a password that isn't encoded.
		at %= uint(len(password)) + 1
		secret := password[:at] + "s3cr3t" + password[at:]
		for _, raw := range []string{
			scheme + "://" + after,
			"redis://u:" + secret + "@" + after,
			"redis://:" + secret + "@h/0?ttl=1s&x=y",
			"consul://" + secret + "@h/0",
			"redlock:?node=redis://u:" + secret + "@h/0&ttl=1",
		} {
			u, err := driver.ParseURL(raw)
			if err == nil {
				sameAgain(t, raw, u)
				u.Duration("ttl")
				err = u.Err()
			}
			if err == nil {
				continue
			}
			if !errors.Is(err, driver.ErrConfig) {
				t.Errorf("%q: %v doesn't match ErrConfig", raw, err)
			}
			if strings.Contains(err.Error(), "s3cr3t") && !strings.Contains(after, "s3cr3t") {
				t.Errorf("%q: %q quotes the password", raw, err)
			}
		}

		raw := "redis://" + encodeAll(user) + ":" + encodeAll(password) + "@h/" + encodeAll(path) + "?k=" + encodeAll(value)
		u, err := driver.ParseURL(raw)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if got, _ := u.Param("k"); u.User != user || u.Password != password || u.Path != "/"+path || got != value {
			t.Errorf("%q: %+v, value %q", raw, *u, got)
		}
	})
}

// sameAgain writes a URL out of what was read of another, and expects to read the same.
func sameAgain(t *testing.T, raw string, u *driver.URL) {
	t.Helper()
	again := u.Scheme + ":"
	if !u.Opaque {
		again += "//"
		if u.HasUser {
			again += encodeAll(u.User)
			if u.HasPassword {
				again += ":" + encodeAll(u.Password)
			}
			again += "@"
		}
		again += strings.Join(u.Hosts, ",")
		if u.Path != "" {
			again += "/" + encodeAll(u.Path[1:])
		}
	}
	v, err := driver.ParseURL(again)
	if err != nil {
		t.Fatalf("%q is accepted, and %q is not: %v", raw, again, err)
	}
	if v.Scheme != u.Scheme || v.User != u.User || v.Password != u.Password || v.HasUser != u.HasUser || v.Path != u.Path ||
		v.HasPassword != u.HasPassword || v.Opaque != u.Opaque || !slices.Equal(v.Hosts, u.Hosts) {
		t.Errorf("%q reads as %+v, and %q as %+v", raw, *u, again, *v)
	}
	for _, a := range u.Hosts {
		if a == "" || strings.ContainsAny(a, "@/?#, ") {
			t.Errorf("%q: host %q", raw, a)
		}
	}
}
