package proxy_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasekit/locker/conformance/proxy"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is an upper bound for what happens at once on a quiet machine.
const patience = 20 * time.Second

// server answers each line with the same line, and records what it got.
type server struct {
	addr string
	n    atomic.Int64 // lines received
}

func newServer(t *testing.T) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{addr: l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadBytes('\n')
					if err != nil {
						return
					}
					s.n.Add(1)
					if _, err := c.Write(line); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

func newProxy(t *testing.T, target string) *proxy.Proxy {
	p, err := proxy.New(target)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *proxy.Proxy) *client {
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return &client{c, bufio.NewReader(c)}
}

func (c *client) send(t *testing.T, line string) {
	_, err := io.WriteString(c, line+"\n")
	require.NoError(t, err)
}

func (c *client) ask(line string) (string, error) {
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	return c.answer()
}

func (c *client) answer() (string, error) {
	line, err := c.r.ReadString('\n')
	return string(bytes.TrimSuffix([]byte(line), []byte("\n"))), err
}

func (c *client) works(t *testing.T) {
	t.Helper()
	got, err := c.ask("works?")
	require.NoError(t, err)
	require.Equal(t, "works?", got)
}

// quiet sees that nothing arrives for d.
func (c *client) quiet(t *testing.T, d time.Duration) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(d)))
	_, err := c.r.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "%s: not within %v", what, patience)
	}
}

func has(s string) func([]byte) bool {
	return func(b []byte) bool { return bytes.Contains(b, []byte(s)) }
}

func TestForward(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	big := string(bytes.Repeat([]byte("x"), 1<<20))
	got, err := c.ask(big)
	require.NoError(t, err)
	require.Equal(t, big, got)
	require.Equal(t, 1, p.Conns())
	c.Close()
	eventually(t, "the end is passed on", func() bool { return p.Conns() == 0 })
	require.Equal(t, 1, p.Accepted())
}

func TestCutResets(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	c.works(t)
	p.Cut()
	_, err := c.answer()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	dial(t, p).works(t)
	eventually(t, "one connection is left", func() bool { return p.Conns() == 1 })
}

func TestRefuseKeepsPortAndConnections(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	old := dial(t, p)
	old.works(t)
	p.Refuse()
	for range 100 {
		_, err := net.Dial("tcp", p.Addr())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	old.works(t)
	require.NoError(t, p.Heal())
	dial(t, p).works(t)
	require.NoError(t, p.Heal(), "healing twice")
}

func TestServerAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	p := newProxy(t, l.Addr().String())
	if c, err := net.Dial("tcp", p.Addr()); err == nil { // or it was reset at once
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	s := newServer(t)
	p.SetTarget(s.addr)
	dial(t, p).works(t)
}

func TestBlackHole(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	old := dial(t, p)
	old.works(t)
	p.BlackHole()
	fresh := dial(t, p) // accepted all the same
	old.send(t, "one")
	fresh.send(t, "two")
	old.quiet(t, 50*time.Millisecond)
	fresh.quiet(t, 50*time.Millisecond)
	require.EqualValues(t, 1, s.n.Load())
	require.NoError(t, p.Heal())
	for c, want := range map[*client]string{old: "one", fresh: "two"} {
		got, err := c.answer()
		require.NoError(t, err)
		require.Equal(t, want, got, "what was sent meanwhile arrives")
	}
}

func TestBlackHoleCutLosesWhatWasSent(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	c.works(t)
	p.BlackHole()
	c.send(t, "lost")
	p.Cut()
	require.NoError(t, p.Heal())
	_, err := c.answer()
	require.Error(t, err)
	dial(t, p).works(t)
	require.EqualValues(t, 2, s.n.Load())
}

func TestBlackHoleOneDirection(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	c.works(t)
	p.BlackHole(proxy.ToClient)
	c.send(t, "executed")
	eventually(t, "the request is executed", func() bool { return s.n.Load() == 2 })
	c.quiet(t, 50*time.Millisecond)
	require.NoError(t, p.Heal())
	got, err := c.answer()
	require.NoError(t, err)
	require.Equal(t, "executed", got)
}

func TestDropReply(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	dropped := p.DropReply(2, has("take"), proxy.ThenCut)
	for _, line := range []string{"take 1", "other", "another"} {
		got, err := c.ask(line)
		require.NoError(t, err)
		require.Equal(t, line, got)
	}
	_, err := c.ask("take 2")
	require.ErrorIs(t, err, syscall.ECONNRESET)
	<-dropped
	require.EqualValues(t, 4, s.n.Load(), "the request was executed")
	c = dial(t, p)
	got, err := c.ask("take 3")
	require.NoError(t, err, "only one reply is dropped")
	require.Equal(t, "take 3", got)
}

func TestDropReplyThenSilence(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c, other := dial(t, p), dial(t, p)
	other.works(t)
	dropped := p.DropReply(1, has("take"), proxy.ThenSilence)
	c.send(t, "take")
	<-dropped
	c.send(t, "more")
	c.quiet(t, 100*time.Millisecond)
	other.works(t)
	require.EqualValues(t, 4, s.n.Load())
}

func TestHold(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c, other := dial(t, p), dial(t, p)
	held, release := p.Hold(1, has("take"))
	counted := p.Count(nil)
	c.send(t, "take")
	<-held
	other.works(t)
	require.EqualValues(t, 1, s.n.Load())
	require.Equal(t, 1, counted.N())
	release()
	release()
	got, err := c.answer()
	require.NoError(t, err)
	require.Equal(t, "take", got)

	held, _ = p.Hold(1, nil)
	c.send(t, "again")
	<-held
	require.NoError(t, p.Heal())
	got, err = c.answer()
	require.NoError(t, err)
	require.Equal(t, "again", got, "healing lets held requests go")
}

func TestDelay(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	c.works(t)
	p.Delay(func() time.Duration { return 20 * time.Millisecond })
	start := time.Now()
	c.works(t)
	require.GreaterOrEqual(t, time.Since(start), 40*time.Millisecond, "both ways")
	// What follows is delayed as long, and not for longer: twenty lines one by one take far less than twenty delays.
	p.Delay(func() time.Duration { return 200 * time.Millisecond }, proxy.ToServer)
	start = time.Now()
	for range 20 {
		c.send(t, "line")
		time.Sleep(2 * time.Millisecond)
	}
	for range 20 {
		_, err := c.answer()
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, time.Since(start), 220*time.Millisecond)
	require.Less(t, time.Since(start), 2*time.Second)
	p.Delay(func() time.Duration { return 20 * time.Millisecond }, proxy.ToServer)
	p.Delay(nil, proxy.ToClient)
	start = time.Now()
	c.works(t)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
}

func TestJitter(t *testing.T) {
	a, b := proxy.Jitter(7, time.Millisecond, 5*time.Millisecond), proxy.Jitter(7, time.Millisecond, 5*time.Millisecond)
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := a()
		require.Equal(t, d, b(), "the same seed")
		require.GreaterOrEqual(t, d, time.Millisecond)
		require.LessOrEqual(t, d, 5*time.Millisecond)
		seen[d] = true
	}
	require.Greater(t, len(seen), 900)
	require.Equal(t, time.Second, proxy.Jitter(1, time.Second, time.Second)())
}

func TestRewrite(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c := dial(t, p)
	p.Rewrite(proxy.ToClient, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("true"), []byte("no")) })
	p.Rewrite(proxy.ToServer, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("one"), []byte("eleven")) })
	got, err := c.ask("one is true")
	require.NoError(t, err)
	require.Equal(t, "eleven is no", got)
	p.Rewrite(proxy.ToClient, nil)
	got, err = c.ask("true")
	require.NoError(t, err)
	require.Equal(t, "true", got)
}

func TestCountAndSplit(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	p.Split(bufio.ScanLines)
	c := dial(t, p)
	all, takes := p.Count(nil), p.Count(has("take"))
	// Three requests in one write, and one in two.
	c.send(t, "take 1\nlook 1\ntake 2")
	_, err := io.WriteString(c, "ta")
	require.NoError(t, err)
	for range 3 {
		_, err := c.answer()
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, s.n.Load(), "half a request isn't forwarded")
	c.send(t, "ke 3")
	got, err := c.answer()
	require.NoError(t, err)
	require.Equal(t, "take 3", got)
	require.Equal(t, 4, all.N())
	require.Equal(t, 3, takes.N())
}

func TestCloseEndsAll(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	c, stuck := dial(t, p), dial(t, p)
	c.works(t)
	stuck.works(t)
	held, _ := p.Hold(1, nil)
	stuck.send(t, "x")
	<-held
	p.BlackHole()
	hole := dial(t, p)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.Zero(t, p.Conns())
	for _, c := range []*client{c, stuck, hole} {
		_, err := c.answer()
		require.Error(t, err)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded))
	}
	_, err := net.Dial("tcp", p.Addr())
	require.Error(t, err)
}

// TestChaos sets and heals faults while clients ask. What an answered client reads is always what it asked.
func TestChaos(t *testing.T) {
	s := newServer(t)
	p := newProxy(t, s.addr)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var answered atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.DialTimeout("tcp", p.Addr(), time.Second)
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				c.SetDeadline(time.Now().Add(50 * time.Millisecond))
				k := &client{c, bufio.NewReader(c)}
				for range 20 {
					want := fmt.Sprint(i, " ", n)
					got, err := k.ask(want)
					if err != nil {
						break
					}
					answered.Add(1)
					if got != want {
						t.Errorf("asked %q, got %q", want, got)
					}
				}
				c.Close()
			}
		})
	}
	for round := range 30 {
		p.Cut()
		p.BlackHole(proxy.Direction(round % 2))
		p.Delay(proxy.Jitter(uint64(round), 0, time.Millisecond))
		p.DropReply(1+round%3, nil, proxy.Then(round%2))
		p.Hold(2, has("1"))
		p.Count(nil)
		time.Sleep(2 * time.Millisecond)
		p.Refuse()
		if err := p.Heal(); err != nil {
			t.Error(err)
		}
		before := answered.Load()
		eventually(t, "clients are served again", func() bool { return answered.Load() > before })
	}
	close(stop)
	wg.Wait()
	require.NoError(t, p.Close())
}
