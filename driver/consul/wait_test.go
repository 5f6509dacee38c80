package consul

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/internal/testserver"
)

func hinted(hints <-chan struct{}) bool {
	select {
	case <-hints:
		return true
	default:
		return false
	}
}

func TestWatchHintsAtARelease(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	url := prefix(t)
	c, b := connect(t, "consul://"+s.Addr+"/"+url, 15*time.Second), connect(t, "consul://"+p.addr()+"/"+url, 15*time.Second)
	h := lock(t, c, "a")
	p.requests()
	hints, stop, err := b.Watch(t.Context(), "a")
	require.NoError(t, err)
	eventually(t, 5*time.Second, "a blocking query", func() bool {
		n := 0
		for _, r := range b.inspectLog(p) {
			if r.isWatch() && r.query != "" {
				n++
			}
		}
		return n >= 1
	})
	time.Sleep(1500 * time.Millisecond)
	require.False(t, hinted(hints))
	require.LessOrEqual(t, len(p.requests()), 2, "idle")
	release(t, h)
	eventually(t, 5*time.Second, "a hint", func() bool { return hinted(hints) })
	stop()

	// A release between Watch's return and its first look.
	h = lock(t, c, "a")
	hints, stop, err = b.Watch(t.Context(), "a")
	require.NoError(t, err)
	release(t, h)
	eventually(t, 5*time.Second, "a hint", func() bool { return hinted(hints) })
	stop()
	_, stop, err = b.Watch(t.Context(), "b")
	require.NoError(t, err)
	stop()
	eventually(t, 5*time.Second, "the end of all watches", func() bool {
		b.watchers.mu.Lock()
		defer b.watchers.mu.Unlock()
		return len(b.watchers.names) == 0
	})
}

// inspectLog returns what was seen and leaves it there.
func (c *conn) inspectLog(p *proxy) []seenRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]seenRequest(nil), p.log...)
}

func TestThousandWaitersNeedFewConnections(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	url := prefix(t)
	c, b := connect(t, "consul://"+s.Addr+"/"+url, time.Minute), connect(t, "consul://"+p.addr()+"/"+url, time.Minute)
	const names = 1000
	var holds []*hold
	var hints []<-chan struct{}
	for i := range names {
		holds = append(holds, lock(t, c, fmt.Sprint(i)))
	}
	for i := range names {
		h, stop, err := b.Watch(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		defer stop()
		hints = append(hints, h)
	}
	for i := range names {
		go func() { b.TryLock(within(t, 30*time.Second), request(fmt.Sprint(i))) }()
	}
	time.Sleep(3 * time.Second)
	for i, h := range hints {
		require.False(t, hinted(h), i)
	}
	for _, h := range holds {
		release(t, h)
	}
	eventually(t, 20*time.Second, "all hints", func() bool {
		for i, h := range hints {
			if h != nil && hinted(h) {
				hints[i] = nil
			}
		}
		for _, h := range hints {
			if h != nil {
				return false
			}
		}
		return true
	})
	require.Less(t, int(p.most.Load()), maxGrants+maxUpkeep+2*maxFollowed, "connections, some of which the client has closed")
}

func TestWAIT24WatchSurvivesErrors(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	p := newProxy(t, s.Addr)
	url := prefix(t)
	c, b := connect(t, "consul://"+s.Addr+"/"+url, 15*time.Second), connect(t, "consul://"+p.addr()+"/"+url, 15*time.Second)
	h := lock(t, c, "a")
	p.set(func(seenRequest) action { return action{status: http.StatusInternalServerError} })
	p.requests()
	hints, stop, err := b.Watch(t.Context(), "a")
	require.NoError(t, err)
	defer stop()
	time.Sleep(3 * time.Second)
	require.LessOrEqual(t, len(p.requests()), 6+1, "at most 2 requests per second")
	p.set(nil)
	release(t, h)
	eventually(t, 10*time.Second, "a hint", func() bool { return hinted(hints) })
}

// The releaser doesn't win again at once: others, who have to hear of the release, try first.
func TestWAIT18TheReleaserGivesWay(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	url := "consul://" + s.Addr + "/" + prefix(t)
	const contenders, grants = 4, 200
	counts := make([]int, contenders)
	var conns []*conn
	for range contenders {
		conns = append(conns, connect(t, url, 15*time.Second))
	}
	order := make(chan int, grants+contenders)
	end := make(chan struct{})
	done := make(chan struct{})
	for i, c := range conns {
		go func() {
			defer func() { done <- struct{}{} }()
			hints, stop, err := c.Watch(t.Context(), "a")
			if err != nil {
				return
			}
			defer stop()
			for {
				select {
				case <-end:
					return
				default:
				}
				h, err := c.TryLock(t.Context(), request("a"))
				if err != nil {
					select {
					case <-hints:
					case <-time.After(time.Second):
					case <-end:
						return
					}
					continue
				}
				order <- i
				_ = h.Release(t.Context())
			}
		}()
	}
	for range grants {
		select {
		case i := <-order:
			counts[i]++
		case <-time.After(30 * time.Second):
			t.Fatal("no grants")
		}
	}
	close(end)
	for range contenders {
		<-done
	}
	t.Log("grants", counts)
	for _, n := range counts {
		require.Greater(t, n, grants/contenders/4)
	}
}

func TestReleaserAloneIsHardlyDelayed(t *testing.T) {
	s := testserver.Need(t, testserver.Consul)
	c := connect(t, "consul://"+s.Addr+"/"+prefix(t), 15*time.Second)
	given := 0
	now := c.cfg.Now()
	for i := range 1000 {
		at := now.Add(time.Duration(i) * 2 * time.Millisecond)
		c.manners.released(at, "a")
		if c.manners.way(at, "a") > 0 {
			given++
		}
	}
	require.LessOrEqual(t, given, int(2*time.Second/(idleShare*grantsAway*minGrant))+1)
	require.Positive(t, given)
}
