package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasekit/locker/driver"
)

func TestURL(t *testing.T) {
	for _, c := range []struct {
		url, prefix string
		endpoints   []string
	}{
		{"etcd://h", "/locks/", []string{"h:2379"}},
		{"etcd://h/", "/locks/", []string{"h:2379"}},
		{"etcd://h1,h2:1,[::1]:2/app/a%20b", "/app/a b/", []string{"h1:2379", "h2:1", "[::1]:2"}},
		{"etcd://h/app/", "/app/", []string{"h:2379"}},
		{"etcd://u:p%40+@h?prefix=", "", []string{"h:2379"}},
		{"etcds://h?prefix=app", "app/", []string{"h:2379"}},
	} {
		cn, err := driver.Parse(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		got := cn.(*connector)
		if got.prefix != c.prefix || !slices.Equal(got.endpoints, c.endpoints) {
			t.Errorf("%s: prefix %q, endpoints %q", c.url, got.prefix, got.endpoints)
		}
	}
	cn, err := driver.Parse("etcd://u:p%40+@h")
	if err != nil {
		t.Fatal(err)
	}
	if user, password, err := cn.(*connector).credentials(t.Context()); user != "u" || password != "p@+" || err != nil {
		t.Errorf("credentials %q, %q, %v", user, password, err)
	}
	if i := cn.Info(); !i.Correctness || i.Granularity != time.Second || !i.SharedSession || i.Backend != "etcd" {
		t.Errorf("Info() = %+v", i)
	}
}

func TestBadURL(t *testing.T) {
	for url, names := range map[string]string{
		"etcd://":                          "host",
		"etcd://h/app?prefix=x":            "prefix",
		"etcd://h?ttl=5":                   "ttl",
		"etcd://h?ca=/x":                   "ca",
		"etcds://h?cert=/x":                "key",
		"etcd://secretuser@h":              "password",
		"etcd://h:99999":                   "port",
		"etcds://h?ca=/does-not-exist.pem": "does-not-exist",
	} {
		cn, err := driver.Parse(url)
		if err == nil {
			_, err = cn.Connect(t.Context(), driver.Config{})
		}
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v; want ErrConfig that names %q", url, err, names)
		}
	}
}

func TestDialOptions(t *testing.T) {
	login := func(context.Context) (string, string, error) { return "u", "p", nil }
	cn, err := Dial("etcd://h", &Options{Prefix: new(""), Credentials: login})
	if err != nil || cn.(*connector).prefix != "" || cn.(*connector).credentials == nil {
		t.Errorf("%+v, %v", cn, err)
	}
	for url, opts := range map[string]*Options{
		"etcd://h/app":  {Prefix: new("x")},
		"etcd://a:b@h":  {Credentials: login},
		"etcd://h?x=1":  nil,
		"not a url":     nil,
		"etcd://h:port": nil,
	} {
		if _, err := Dial(url, opts); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if got := New(nil, &Options{Prefix: new("/app")}).(*connector).prefix; got != "/app/" {
		t.Errorf("prefix %q", got)
	}
	if _, err := New(clientv3.NewCtxClient(t.Context()), nil).Connect(t.Context(), driver.Config{}); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("a client without a connection: %v", err)
	}
}
