package conformance

import (
	"context"
	"sync"
	"time"
)

// machine notes how long the process stood still, for lack of a processor: a goroutine that asks to be woken every few
// milliseconds sees by how much it was late. No lease can be kept, and no bound met, by a process that isn't run.
type machine struct {
	done  chan struct{}
	wg    sync.WaitGroup
	worst time.Duration
}

const heartbeat = 5 * time.Millisecond

func watchMachine(virtual bool) *machine {
	m := &machine{done: make(chan struct{})}
	if virtual {
		return m // it never stalls
	}
	m.wg.Go(func() {
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		last := time.Now()
		for {
			select {
			case <-t.C:
			case <-m.done:
				m.worst = max(m.worst, time.Since(last)-heartbeat)
				return
			}
			now := time.Now()
			m.worst = max(m.worst, now.Sub(last)-heartbeat)
			last = now
		}
	})
	return m
}

// stop ends the watch and returns the longest time that the process stood still.
func (m *machine) stop() time.Duration {
	close(m.done)
	m.wg.Wait()
	return m.worst
}

// pulse notes how long the server took to answer somebody who has nothing to do with the library under test. Where it
// shares a busy machine with the suite, or writes to a busy disk, that can be longer than a lease lives.
type pulse struct {
	end  context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex
	beats []beat
	asked time.Time // of the request under way; zero if there is none
}

type beat struct{ asked, answered time.Time }

// watchServer asks now and then, where there is a server and somebody to ask it. The result may be nil.
func (s *suite) watchServer() *pulse {
	if len(s.b.Addrs) == 0 || s.b.Admin.Entry == nil {
		return nil
	}
	p := &pulse{}
	ctx, stop := context.WithCancel(context.Background())
	p.end = stop
	name := "conformance-" + newTag()
	p.done.Go(func() {
		for ctx.Err() == nil {
			p.ask(ctx, func(ctx context.Context) error {
				_, err := s.b.Admin.Entry(ctx, name)
				return err
			})
			select {
			case <-time.After(max(s.b.TTL/10, 50*time.Millisecond)):
			case <-ctx.Done():
			}
		}
	})
	return p
}

func (p *pulse) ask(ctx context.Context, do func(context.Context) error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	asked := time.Now()
	p.mu.Lock()
	p.asked = asked
	p.mu.Unlock()
	err := do(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = time.Time{}
	if err == nil || ctx.Err() != nil { // otherwise a case has stopped the server
		p.beats = append(p.beats, beat{asked, time.Now()})
	}
}

// worst returns the longest time that an answer took since a moment.
func (p *pulse) worst(since time.Time) (d time.Duration) {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.beats {
		if b.answered.After(since) {
			d = max(d, b.answered.Sub(b.asked))
		}
	}
	if !p.asked.IsZero() {
		d = max(d, time.Since(p.asked))
	}
	return d
}

func (p *pulse) stop() {
	if p == nil {
		return
	}
	p.end()
	p.done.Wait()
}
