package conformance

import (
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
