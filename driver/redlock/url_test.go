package redlock

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/leasekit/locker/driver"
)

func TestURL(t *testing.T) {
	c, err := driver.Parse("redlock://u:p%40s+@h1,h2:7000,[::1]/3?prefix=a%3A&retention=2m")
	if err != nil {
		t.Fatal(err)
	}
	got := c.(*connector)
	if len(got.targets) != 3 || got.layout.prefix != "a:" || got.retention.String() != "2m0s" {
		t.Fatalf("%+v", got)
	}
	for i, addr := range []string{"h1:6379", "h2:7000", "[::1]:6379"} {
		target := got.targets[i]
		user, password, _ := target.credentials(context.Background())
		if target.addr != addr || target.db != 3 || target.tls != nil || user != "u" || password != "p@s+" {
			t.Errorf("%+v, %s, %s", target, user, password)
		}
	}
	c, err = driver.Parse("redlock:?node=redis%3A%2F%2F%3Asecret%40h1%2F2&node=rediss%3A%2F%2Fh2%3A7000%3Fserver-name%3Dx&node=redis%2Bunix%3A%2F%2F%2Frun%2Fr.sock")
	if err != nil {
		t.Fatal(err)
	}
	got = c.(*connector)
	if a, b, s := got.targets[0], got.targets[1], got.targets[2]; a.addr != "h1:6379" || a.db != 2 || a.credentials == nil ||
		b.addr != "h2:7000" || b.tls == nil || b.tls.ServerName != "x" || s.network != "unix" || s.addr != "/run/r.sock" {
		t.Errorf("%+v, %+v, %+v", a, b, s)
	}
	if info := c.Info(); info.Backend != "redlock" || info.Correctness {
		t.Errorf("%+v", info)
	}
}

// CFG-02 and CFG-01: what is wrong is named, before any traffic, and no password is.
func TestURLErrors(t *testing.T) {
	for url, want := range map[string]string{
		"redlock://h1,h2":                          "2 nodes",
		"redlock://h1":                             "1 nodes",
		"redlock://h1,h2,h3,h4":                    "4 nodes",
		"redlock://":                               "host is missing",
		"redlock://h1,h2,h1":                       "h1:6379 is given twice",
		"redlock://h1,h2,h1:6379":                  "given twice",
		"redlock://h1,h2,h3/x":                     "number of a database",
		"redlock://h1,h2,h3/01":                    "number of a database",
		"redlock://h1,h2,h3:99999":                 "port",
		"redlock://h1,h2,h3?ttll=5s":               `"ttll"`,
		"redlock://h1,h2,h3?db=1":                  `"db"`,
		"redlock://h1,h2,h3?prefix=a&prefix=b":     `"prefix" is given 2 times`,
		"redlock://h1,h2,h3?prefix=%7B":            `"prefix"`,
		"redlock://h1,h2,h3?retention=1ms":         `"retention"`,
		"redlock://h1,h2,h3?retention=5":           `"retention"`,
		"redlock://h1,h2,h3?ca=x":                  `"ca"`,
		"redlock://secret@h1,h2,h3":                "without a password",
		"redlock://h1,h2,h3?node=redis%3A%2F%2Fh4": `"node"`,
		"redlock:?node=redis%3A%2F%2Fh1":           "1 nodes",
		"redlock:":                                 "0 nodes",
		"redlocks:?node=redis%3A%2F%2Fh1":          `"//"`,
		"redlock:?node=h1&node=redis%3A%2F%2Fh2&node=redis%3A%2F%2Fh3":                               `"node", 1 of 3`,
		"redlock:?node=etcd%3A%2F%2Fh1&node=redis%3A%2F%2Fh2&node=redis%3A%2F%2Fh3":                  "scheme of a node",
		"redlock:?node=redis%3A%2F%2Fh1%2Ch4&node=redis%3A%2F%2Fh2&node=redis%3A%2F%2Fh3":            "2 hosts",
		"redlock:?node=redis%3A%2F%2Fh1%3Fprefix%3Dx&node=redis%3A%2F%2Fh2&node=redis%3A%2F%2Fh3":    `"prefix"`,
		"redlock:?node=redis%3A%2F%2F%3Asecret%40h1%2Fx&node=redis%3A%2F%2Fh2&node=redis%3A%2F%2Fh3": "number of a database",
	} {
		_, err := driver.Parse(url)
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
	prefix := "x"
	for url, opts := range map[string]*Options{
		"redlock://h1,h2,h3?prefix=a":     {Prefix: &prefix},
		"redlock://h1,h2,h3?retention=1m": {Retention: 60e9},
		"redlock://:secret@h1,h2,h3":      {Credentials: func(context.Context, string) (string, string, error) { return "", "", nil }},
		"redis://h1":                      nil,
	} {
		if _, err := Dial(url, opts); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%s: %v", url, err)
		}
	}
	asked := ""
	c, err := Dial("redlock://h1,h2,h3", &Options{Prefix: &prefix, Credentials: func(_ context.Context, addr string) (string, string, error) {
		asked = addr
		return "u", "p", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if c.(*connector).targets[1].credentials(t.Context()); asked != "h2:6379" {
		t.Errorf("asked for %q", asked)
	}
}
