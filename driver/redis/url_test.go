package redis

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		url       string
		network   string
		addr      string
		db        int
		user      string
		password  string
		prefix    string
		retention time.Duration
		addrs     string
		master    string
		sentinel  string // its user and password
	}{
		{url: "redis://h"},
		{url: "redis://h:1/"},
		{url: "redis://h:1/0"},
		{url: "redis://h:1/15", db: 15},
		{url: "redis://[::1]:1", addr: "[::1]:1"},
		{url: "redis://[::1]", addr: "[::1]:6379"},
		{url: "redis://:p@h:1", password: "p"},
		{url: "redis://u:p@h:1", user: "u", password: "p"},
		{url: "redis://u:a+b%3Dc%2F%40%23%25%3A%C3%BC@h:1", user: "u", password: "a+b=c/@#%:ü"},
		{url: "redis://h:1?prefix=", prefix: "-"},
		{url: "redis://h:1?prefix=a/b:&retention=90s", prefix: "a/b:", retention: 90 * time.Second},
		{url: "redis://h:1?prefix={app}:", prefix: "{app}:"},
		{url: "redis+unix:///run/r.sock", network: "unix", addr: "/run/r.sock"},
		{url: "redis+unix://u:p@/run/r%20.sock", network: "unix", addr: "/run/r .sock", user: "u", password: "p"},
		{url: "rediss://h:1?server-name=x"},
		{url: "redis+sentinel://u:p@h:1,i/main/2?sentinel-user=a&sentinel-password=b%40", addr: "-", addrs: "h:1 i:26379", master: "main", db: 2,
			user: "u", password: "p", sentinel: "a b@"},
		{url: "rediss+sentinel://[::1],i:2/m%20x?sentinel-password=b&prefix=x:", addr: "-", addrs: "[::1]:26379 i:2", master: "m x", sentinel: " b", prefix: "x:"},
		{url: "redis+cluster://:p@h,i:1", addr: "-", addrs: "h:6379 i:1", password: "p"},
		{url: "rediss+cluster://h/0?retention=2s", addr: "-", addrs: "h:6379", retention: 2 * time.Second},
	} {
		got, err := driver.Parse(test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		c := got.(*connector)
		if test.network == "" {
			test.network = "tcp"
		}
		if test.addr == "-" {
			test.addr = ""
		} else if test.addr == "" {
			test.addr = "h:1"
			if !strings.Contains(test.url, ":1") {
				test.addr = "h:6379"
			}
		}
		switch test.prefix {
		case "":
			test.prefix = "lock:"
		case "-":
			test.prefix = ""
		}
		if test.retention == 0 {
			test.retention = time.Hour
		}
		var user, password string
		if c.target.credentials != nil {
			user, password, _ = c.target.credentials(t.Context())
		}
		if c.target.network != test.network || c.target.addr != test.addr || c.target.db != test.db || user != test.user ||
			password != test.password || c.layout.prefix != test.prefix || c.retention != test.retention {
			t.Errorf("%s: %+v %+v user %q password %q", test.url, c, c.target, user, password)
		}
		var sentinel string
		if c.target.sentinelCredentials != nil {
			user, password, _ := c.target.sentinelCredentials(t.Context())
			sentinel = user + " " + password
		}
		if addrs := strings.Join(c.target.addrs, " "); addrs != test.addrs || c.target.master != test.master || sentinel != test.sentinel {
			t.Errorf("%s: %q, master %q, credentials %q", test.url, addrs, c.target.master, sentinel)
		}
		if got.Info().Backend != "redis" || got.Info().Correctness {
			t.Errorf("%s: %+v", test.url, got.Info())
		}
	}
}

func TestCFG02BadURLs(t *testing.T) {
	for _, test := range []struct{ url, says string }{
		{"redis://h?ttll=5s", `"ttll"`},
		{"redis://h?db=0", `"db"`},
		{"redis://h?db=x", `"db"`},
		{"redis://h/x", `"/x"`},
		{"redis://h/-1", `"/-1"`},
		{"redis://h/+1", `"/+1"`},
		{"redis://h/01", `"/01"`},
		{"redis://h/0/", `"/0/"`},
		{"redis://h/0x1", `"/0x1"`},
		{"redis://h/99999999999", `"/99999999999"`},
		{"redis://h?prefix=a&prefix=b", `"prefix"`},
		{"redis://h?prefix=a{b", "hash tag"},
		{"redis://h?prefix=a}b", "hash tag"},
		{"redis://h?prefix={}b", "hash tag"},
		{"redis://h?prefix=a%0Ab", "control character"},
		{"redis://h?retention=1", `"retention"`},
		{"redis://h?retention=1ms", `"retention"`},
		{"redis://h?retention=-1h", `"retention"`},
		{"redis://h?ca=x", `"ca"`},
		{"rediss://h?cert=x", `"cert" and "key"`},
		{"redis://h:99999", "port"},
		{"redis://h:0", "port"},
		{"redis://h:1:2", "IPv6"},
		{"redis://h1,h2", "2 hosts"},
		{"redis://", "host"},
		{"redis:", `"//"`},
		{"redis:///0", "host"},
		{"redis://h#x", "#"},
		{"redis://h/0 ", "space"},
		{"redis://u@h", "password"},
		{"redis://u:@h", "password"},
		{"redis://@h", "password"},
		{"redis://:secret@h@i", "%40"},
		{"redis://:sec/ret@h", ""},
		{"redis+unix://", "path"},
		{"redis+unix://h/run/x", "path"},
		{"redis+unix:///run/x?ca=y", `"ca"`},
		{"redis+tcp://h", "unknown scheme"},
		{"redis+sentinel://h", "name of the master"},
		{"redis+sentinel://h/", "name of the master"},
		{"redis+sentinel:///main", "host"},
		{"redis+sentinel://h,h/main", "twice"},
		{"redis+sentinel://h,h:26379/main", "twice"},
		{"redis+sentinel://h/main/x", `"/main/x"`},
		{"redis+sentinel://h/main/0/1", `"/main/0/1"`},
		{"redis+sentinel://h/main?sentinel-user=u", `"sentinel-password"`},
		{"redis+sentinel://h/main?sentinel-password=", `"sentinel-password"`},
		{"redis+sentinel://h/main?ca=x", `"ca"`},
		{"redis+sentinel://u:secret@h/main?sentinel-password=secret&sentinel-password=secret", "2 times"},
		{"redis://h?sentinel-password=secret", `"sentinel-password"`},
		{"redis+cluster://", "host"},
		{"redis+cluster://h,h", "twice"},
		{"redis+cluster://h/1", "database"},
		{"redis+cluster://h/x", `"/x"`},
		{"redis+cluster://h?sentinel-user=u", `"sentinel-user"`},
		{"redis+cluster://h?cert=x", `"cert"`},
	} {
		c, err := driver.Parse(test.url)
		if err == nil {
			t.Errorf("%s: accepted as %+v", test.url, c)
			continue
		}
		wantAnswer(t, err, driver.ErrConfig)
		if !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec/") {
			t.Errorf("%s: %v", test.url, err)
		}
	}
	if _, err := driver.Parse("rediss://h?ca=/nowhere.pem"); err != nil {
		t.Errorf("files are read by Connect: %v", err)
	}
}

func TestDialOptions(t *testing.T) {
	prefix, credentials := "x:", func(context.Context) (string, string, error) { return "u", "p", nil }
	c, err := Dial("redis://h", &Options{Prefix: &prefix, Retention: time.Minute, Credentials: credentials})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.(*connector); got.layout.prefix != prefix || got.retention != time.Minute || got.target.credentials == nil {
		t.Errorf("%+v", got)
	}
	for _, test := range []struct {
		url  string
		opts *Options
		says string
	}{
		{"redis://h?prefix=x:", &Options{Prefix: &prefix}, "prefix"},
		{"redis://h?retention=1m", &Options{Retention: time.Minute}, "retention"},
		{"redis://:p@h", &Options{Credentials: credentials}, "credentials"},
		{"redis://h", &Options{Retention: time.Millisecond}, "1s"},
		{"redis://h?ttll=1s", nil, "ttll"},
		{"etcd://h", nil, "scheme"},
		{"h", nil, "scheme"},
	} {
		_, err := Dial(test.url, test.opts)
		wantAnswer(t, err, driver.ErrConfig)
		if !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.url, err)
		}
	}
	for _, c := range []driver.Connector{
		New(nil, nil),
		New(goredis.NewClient(&goredis.Options{}), &Options{Credentials: credentials}),
		New(goredis.NewClient(&goredis.Options{}), &Options{Retention: -1}),
	} {
		_, err := c.Connect(t.Context(), config(time.Second))
		wantAnswer(t, err, driver.ErrConfig)
	}
}

// No name's key is another name's, or another name's companion, and all keys of a name have one hash tag.
func TestLayout(t *testing.T) {
	seen := map[string]string{}
	for _, prefix := range []string{"lock:", "", "{app}:", "a{b}c"} {
		l := layout{prefix}
		clear(seen)
		for _, name := range []string{"x", "x:t", "{x}:t", "{lock:x}:t", "x{t}", "x{free}", "lock:x", "%7Bx", "{x", "x}", "a b", "ä", "a\nb", "a/b", "+", "X"} {
			key := l.key(name)
			for what, k := range map[string]string{"key": key, "token": l.companion(key, "t"), "probe": l.companion(key, "p")} {
				if other, dup := seen[k]; dup {
					t.Errorf("prefix %q: %q is the %s of %q and of %s", prefix, k, what, name, other)
				}
				seen[k] = name
				if tag(k) != tag(key) {
					t.Errorf("prefix %q: %q and %q are in different slots", prefix, key, k)
				}
			}
			if decoded, ok := driver.DecodeName(strings.TrimPrefix(key, prefix), safe); !ok || decoded != name {
				t.Errorf("%q is read back as %q", key, decoded)
			}
		}
	}
	if got := (layout{""}).key("some:key/ä +"); got != "some:key/ä +" {
		t.Errorf("a hand-written lock's key became %q", got)
	}
}

// tag returns what decides the slot of a key, as the cluster specification says.
func tag(key string) string {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if i := strings.IndexByte(after, '}'); i > 0 {
			return after[:i]
		}
	}
	return key
}

func TestCFG01Passwords(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	for _, password := range []string{"a+b=c", "p@ss", "p/w", "p#w", "p%w", ":", "pässwörd", "a b?&c"} {
		if err := a.Do(ctx, "ACL", "SETUSER", "app", "reset", "on", ">"+password, "~*", "&*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		for _, encoded := range []string{strings.ReplaceAll(url.QueryEscape(password), "+", "%20"), password} {
			if encoded == password && password != "a+b=c" && password != ":" {
				continue // it has to be encoded
			}
			c := connectURL(t, "redis://app:"+encoded+"@"+s.Addr, time.Second)
			mustRelease(t, mustLock(t, c, newRequest(newName(t))))
		}
		wrong, err := driver.Parse("redis://app:wrong%2B@" + s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = wrong.Connect(ctx, config(time.Second))
		wantAnswer(t, err, driver.ErrDenied)
		if strings.Contains(err.Error(), "wrong+") || strings.Contains(err.Error(), "wrong%2B") {
			t.Errorf("the password is in %q", err)
		}
	}
}

// The password of a user without a name is that of the default user.
func TestRequirePass(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	if err := a.ConfigSet(t.Context(), "requirepass", "p+w").Err(); err != nil {
		t.Fatal(err)
	}
	defer a.ConfigSet(context.WithoutCancel(t.Context()), "requirepass", "")
	c := connectURL(t, "redis://:p+w@"+s.Addr, time.Second)
	mustRelease(t, mustLock(t, c, newRequest(newName(t))))
	for _, url := range []string{"redis://" + s.Addr, "redis://:other@" + s.Addr} {
		c, _ := driver.Parse(url)
		_, err := c.Connect(t.Context(), config(time.Second))
		wantAnswer(t, err, driver.ErrDenied)
	}
}

func TestDatabase(t *testing.T) {
	s := testserver.Need(t, testserver.Redis)
	one, zero := connectURL(t, s.URL("redis")+"/1", 5*time.Second), connectURL(t, s.URL("redis")+"/0", 5*time.Second)
	name := newName(t)
	h := mustLock(t, one, newRequest(name))
	mustRelease(t, mustLock(t, zero, newRequest(name)))
	mustRelease(t, h)
	c, _ := driver.Parse(s.URL("redis") + "/9999")
	_, err := c.Connect(t.Context(), config(time.Second))
	wantAnswer(t, err, driver.ErrConfig)
}

func TestTLS(t *testing.T) {
	s := testserver.Need(t, testserver.RedisMTLS)
	files := "ca=" + s.TLS.CA + "&cert=" + s.TLS.Cert + "&key=" + s.TLS.Key
	login := ""
	if s.Password != "" {
		login = s.Username + ":" + s.Password + "@"
	}
	c := connectURL(t, "rediss://"+login+s.Addr+"?"+files, 5*time.Second)
	name := newName(t)
	h := mustLock(t, c, newRequest(name))
	watchAndRelease(t, c, name, h)
	// Without the client's certificate the server hangs up; with the wrong roots, or no name that fits, we do.
	for what, query := range map[string]string{
		"no client certificate": "ca=" + s.TLS.CA,
		"system roots":          "cert=" + s.TLS.Cert + "&key=" + s.TLS.Key,
		"another name":          files + "&server-name=elsewhere.example",
	} {
		c := connectURL(t, "rediss://"+login+s.Addr+"?"+query, 5*time.Second)
		_, err := c.TryLock(within(t, patient), newRequest(name))
		if err == nil || driver.IsAnswer(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	missing, _ := driver.Parse("rediss://" + s.Addr + "?ca=/nowhere.pem")
	_, err := missing.Connect(t.Context(), config(time.Second))
	wantAnswer(t, err, driver.ErrConfig)
}

func TestUnixSocket(t *testing.T) {
	s := testserver.Need(t, testserver.RedisUnix)
	login := ""
	if s.Password != "" {
		login = s.Username + ":" + s.Password + "@"
	}
	c := connectURL(t, "redis+unix://"+login+s.Addr, 5*time.Second)
	name := newName(t)
	watchAndRelease(t, c, name, mustLock(t, c, newRequest(name)))
}

// Credentials are asked for at each connection.
func TestRotatingCredentials(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, nil)
	a := admin(t, s)
	ctx := t.Context()
	password := make(chan string, 1)
	set := func(p string) {
		if err := a.Do(ctx, "ACL", "SETUSER", "app", "reset", "on", ">"+p, "~*", "&*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		password <- p
	}
	set("first")
	d, err := Dial("redis://"+s.Addr, &Options{Credentials: func(context.Context) (string, string, error) {
		p := <-password
		password <- p
		return "app", p, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, d, 30*time.Second)
	name := newName(t)
	h := mustLock(t, c, newRequest(name))
	<-password
	set("second")
	a.ClientKillByFilter(ctx, "USER", "app")
	eventually(t, patient, "the new password", func() bool { return renew(t, c, h).Err == nil })
	mustRelease(t, h)
}
