package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/testserver"
)

// documented are the rights that the package documentation lists.
var documented = strings.Fields("~lock:* ~{lock:* &{lock:* +eval +evalsha +get +set +del +incr +pexpire +pttl +time +publish " +
	"+subscribe +unsubscribe +select")

// CFG-08: a missing right is final, is named, and leaves nothing behind.
func TestCFG08Rights(t *testing.T) {
	for _, server := range []testserver.Name{testserver.Redis, testserver.Redis8, testserver.Valkey} {
		t.Run(string(server), func(t *testing.T) {
			s := testserver.Private(t, server, nil)
			a := admin(t, s)
			ctx := t.Context()
			setUser := func(rules []string) {
				t.Helper()
				args := []any{"ACL", "SETUSER", "app", "reset", "on", ">secret"}
				for _, r := range rules {
					args = append(args, r)
				}
				if err := a.Do(ctx, args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			without := func(missing string) (rules []string) {
				for _, r := range documented {
					if r != missing {
						rules = append(rules, r)
					}
				}
				return rules
			}
			url := "redis://app:secret@" + s.Addr

			setUser(documented)
			c := connectURL(t, url+"/1", 10*time.Second)
			h := mustLock(t, c, newRequest("all"))
			if _, err := c.TryLock(ctx, newRequest("all")); driver.HeldFor(err) == 0 {
				t.Error(err)
			}
			if r := renew(t, c, h); r.Err != nil {
				t.Error(r.Err)
			}
			watchAndRelease(t, c, "all", h)

			for _, missing := range documented[3:] {
				if missing == "+subscribe" || missing == "+unsubscribe" || missing == "+select" || missing == "+evalsha" {
					continue
				}
				setUser(without(missing))
				d, _ := driver.Parse(url)
				_, err := d.Connect(ctx, config(10*time.Second))
				if err == nil {
					t.Errorf("without %s: connected", missing)
					continue
				}
				wantAnswer(t, err, driver.ErrDenied)
				if !strings.Contains(strings.ToLower(err.Error()), missing[1:]) || strings.Contains(err.Error(), "secret") {
					t.Errorf("without %s: %v", missing, err)
				}
			}

			// What Connect couldn't find out, since the server was away, the first attempt does.
			p := through(t, s)
			for _, missing := range []string{"+eval", "+evalsha", "+get", "+set", "+del", "+incr", "+pexpire", "+pttl", "+time", "+publish", "~lock:*", "~{lock:*", "&{lock:*"} {
				p.Refuse()
				c := connectURL(t, "redis://app:secret@"+p.Addr(), 10*time.Second)
				p.Heal()
				setUser(without(missing))
				name := newName(t)
				_, err := c.TryLock(within(t, patient), newRequest(name))
				wantAnswer(t, err, driver.ErrDenied)
				if got := keysOf(t, a, name); got != "" {
					t.Errorf("without %s, left behind: %s", missing, got)
				}
			}

			// A right for some names only.
			setUser(append(documented[3:], "~lock:mine*", "~{lock:mine*", "&{lock:mine*"))
			c = connectURL(t, url, 10*time.Second)
			mustRelease(t, mustLock(t, c, newRequest("mine")))
			_, err := c.TryLock(ctx, newRequest("yours"))
			wantAnswer(t, err, driver.ErrDenied)

			// A password that isn't right any more.
			setUser([]string{">other"})
			a.Do(ctx, "ACL", "SETUSER", "app", "<secret")
			a.ClientKillByFilter(ctx, "USER", "app")
			eventually(t, patient, "the new password is asked for", func() bool {
				_, err = c.TryLock(ctx, newRequest("mine"))
				return driver.IsAnswer(err)
			})
			wantAnswer(t, err, driver.ErrDenied)
		})
	}
}

// A server on which a command is switched off says so.
func TestRenamedCommand(t *testing.T) {
	s := testserver.Private(t, testserver.Redis, &testserver.Options{Args: []string{"--rename-command", "EVAL", ""}})
	c, _ := driver.Parse(s.URL("redis"))
	_, err := c.Connect(t.Context(), config(time.Second))
	wantAnswer(t, err, driver.ErrConfig)
	if !strings.Contains(err.Error(), "EVAL") {
		t.Error(err)
	}
}
