package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// primary finds the server that Sentinel calls a master's, and follows a failover: connections to any other server are
// closed. It is asked for when there is no connection, when something went wrong on one, and from time to time while
// there are calls, since a primary that was cut off from the sentinels may go on to answer.
type primary struct {
	name      string
	sentinels []*links
	closing   context.Context

	mu        sync.Mutex
	addr      string
	stale     bool // addr may not be the primary's any more
	due       bool // it is time to ask again
	timer     *time.Timer
	search    *search          // under way
	connected map[*link]string // where links lead to
}

// search is one question to the sentinels.
type search struct {
	done chan struct{} // closed when the fields below are set
	addr string
	err  error
}

const (
	recheck    = time.Second            // how old an answer of the sentinels may be while there are calls
	searchTime = 2 * time.Second        // how long a search lasts at most
	grace      = 200 * time.Millisecond // how long others are waited for once one sentinel has answered
)

// errNotPrimary says that nothing was sent to a server but its role asked for.
var errNotPrimary = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the server isn't the primary (any more)")}

func newPrimary(t *target, closing context.Context) *primary {
	p := &primary{name: t.master, closing: closing, connected: make(map[*link]string)}
	for _, addr := range t.addrs {
		p.sentinels = append(p.sentinels, newLinks(&target{
			network: t.network, addr: addr, credentials: t.sentinelCredentials, tls: t.tls, dial: t.dial,
		}))
	}
	p.timer = time.AfterFunc(time.Hour, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.due = true
	})
	return p
}

// find returns the primary's address.
func (p *primary) find(ctx context.Context) (string, error) {
	p.mu.Lock()
	if p.addr != "" && !p.stale {
		defer p.mu.Unlock()
		return p.addr, nil
	}
	s := p.begin()
	p.mu.Unlock()
	select {
	case <-s.done:
		return s.addr, s.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// suspect says that something went wrong, so that the next connection isn't made without asking.
func (p *primary) suspect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale = true
}

// touch asks again if it is time to.
func (p *primary) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due && p.addr != "" {
		p.begin()
	}
}

// begin starts a search or finds the one under way. It needs the mutex.
func (p *primary) begin() *search {
	if p.search != nil {
		return p.search
	}
	s := &search{done: make(chan struct{})}
	p.search, p.stale, p.due = s, false, false
	go func() {
		ctx, cancel := context.WithTimeout(p.closing, searchTime)
		defer cancel()
		s.addr, s.err = p.ask(ctx)
		p.finish(s)
	}()
	return s
}

// finish takes what a search has found.
func (p *primary) finish(s *search) {
	var elsewhere []*link
	p.mu.Lock()
	p.search = nil
	if p.closing.Err() == nil {
		p.timer.Reset(recheck)
	}
	if s.err != nil {
		p.stale = true
	} else {
		p.addr = s.addr
		for l, addr := range p.connected {
			if addr != s.addr {
				elsewhere = append(elsewhere, l)
			}
		}
	}
	p.mu.Unlock()
	close(s.done)
	for _, l := range elsewhere {
		l.cut()
	}
}

// answer is what one sentinel says. A failover raises the epoch, so the highest one is the newest.
type answer struct {
	addr  string
	epoch uint64
	err   error
}

// ask asks all sentinels at once. It doesn't wait for silent ones when a majority has answered, nor for long when one has.
func (p *primary) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(p.sentinels))
	for _, ls := range p.sentinels {
		go func() { answers <- p.askOne(ctx, ls) }()
	}
	majority := len(p.sentinels)/2 + 1
	var best answer
	var patient <-chan time.Time
	good, final := 0, 0
	var errs []error
	for good < majority && good+len(errs) < len(p.sentinels) {
		select {
		case a := <-answers:
			switch {
			case a.err != nil:
				errs = append(errs, a.err)
				if driver.IsAnswer(a.err) {
					final++
				}
			case good == 0 || a.epoch > best.epoch:
				best = a
				fallthrough
			default:
				good++
			}
		case <-patient:
			return best.addr, nil
		}
		if good > 0 && patient == nil {
			patient = time.After(grace)
		}
	}
	switch {
	case good > 0:
		return best.addr, nil
	case final >= majority:
		for _, err := range errs {
			if driver.IsAnswer(err) {
				return "", err
			}
		}
	}
	// Not as answers: a majority might say something else.
	return "", fmt.Errorf("no sentinel names the primary of %q: %w", p.name, opaque{errors.Join(errs...)})
}

// opaque hides what an error wraps and keeps its text.
type opaque struct{ error }

// askOne asks one sentinel.
func (p *primary) askOne(ctx context.Context, ls *links) answer {
	what := "sentinel " + ls.target.addr
	reply, err := exchange(ctx, p.closing, ls, func(ctx context.Context, client redis.UniversalClient) ([]string, error) {
		cmd := redis.NewStringSliceCmd(ctx, "SENTINEL", "MASTER", p.name)
		err := client.Process(ctx, cmd)
		return cmd.Val(), err
	})
	switch {
	case err == nil:
	case isReply(err) && strings.Contains(err.Error(), "No such master"):
		return answer{err: fmt.Errorf("%w: redis: %s watches no master called %q", driver.ErrConfig, what, p.name)}
	case isReply(err) && strings.Contains(strings.ToLower(err.Error()), "unknown command"):
		return answer{err: fmt.Errorf("%w: redis: %s is no sentinel: %w", driver.ErrConfig, ls.target.addr, err)}
	default:
		return answer{err: explain(what, err)}
	}
	fields := make(map[string]string)
	for i := 0; i+1 < len(reply); i += 2 {
		fields[reply[i]] = reply[i+1]
	}
	epoch, _ := strconv.ParseUint(fields["config-epoch"], 10, 64)
	if fields["ip"] == "" || fields["port"] == "" {
		return answer{err: fmt.Errorf("redis: %s names no address", what)}
	}
	return answer{addr: net.JoinHostPort(fields["ip"], fields["port"]), epoch: epoch}
}

// joined notes where a link leads to.
func (p *primary) joined(l *link, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connected[l] = addr
}

// left forgets a link that was cut.
func (p *primary) left(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connected, l)
}

// verify asks a new connection for the server's role. What Sentinel says may be older than a failover.
func (p *primary) verify(ctx context.Context, conn *redis.Conn) error {
	cmd := redis.NewSliceCmd(ctx, "ROLE")
	if err := conn.Process(ctx, cmd); err != nil {
		return err
	}
	if role := cmd.Val(); len(role) == 0 || role[0] != "master" {
		p.suspect()
		return errNotPrimary
	}
	return nil
}

// close closes the connections to the sentinels.
func (p *primary) close() {
	p.mu.Lock()
	p.timer.Stop()
	p.mu.Unlock()
	for _, ls := range p.sentinels {
		ls.close()
	}
}
