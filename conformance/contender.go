package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker"
)

// contend is the main function of a contender's process. It reads orders from its standard input and reports events on
// file 3, since package testing writes to the standard output.
func contend(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	w := &witness{}
	if t.Witness != "" {
		var err error
		if w, err = newWitnessFile(t.Witness); err != nil {
			return err
		}
	}
	out := os.NewFile(3, "events")
	var mu sync.Mutex
	report := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
	}
	ctx := context.Background()
	l, err := locker.Open(ctx, t.URL, &locker.Options{TTL: t.TTL, Owner: t.Owner})
	if err != nil {
		return err
	}
	c := &holder{l: l, w: w, who: t.Who, report: report}
	report("ready")
	for orders := json.NewDecoder(os.Stdin); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil // the suite has ended
		} else if err != nil {
			return err
		}
		c.do(ctx, o)
	}
}

type holder struct {
	l      locker.Locker
	w      *witness
	who    string
	report func(string, ...any)

	lease locker.Lease
	visit *visit
	stop  context.CancelFunc
	stay  sync.WaitGroup
}

func (c *holder) do(ctx context.Context, o order) {
	switch o.Do {
	case "acquire":
		c.got(c.l.Acquire(ctx, o.Name))
	case "try":
		c.got(c.l.TryAcquire(ctx, o.Name))
	case "remaining":
		c.report("remaining %d", c.lease.Remaining())
	case "release":
		c.stop()
		c.stay.Wait()
		c.visit.leave()
		if err := c.lease.Release(ctx); err != nil {
			c.failed(err)
			return
		}
		c.report("released")
	case "loop":
		for range o.Rounds {
			l, err := c.l.Acquire(ctx, o.Name)
			if err != nil {
				c.failed(err)
				return
			}
			v := c.w.enter(c.who, l)
			v.write()
			time.Sleep(time.Millisecond)
			v.leave()
			l.Release(ctx)
		}
		c.report("looped")
	}
}

// got enters the critical section and writes until the lease ends.
func (c *holder) got(l locker.Lease, err error) {
	if err != nil {
		c.failed(err)
		return
	}
	c.lease, c.visit = l, c.w.enter(c.who, l)
	c.report("held %d", l.Token())
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.stay.Go(func() {
		if !c.visit.stay(ctx, 2*time.Millisecond) {
			c.report("lost %v", context.Cause(l.Context()))
		}
	})
}

func (c *holder) failed(err error) {
	kind := "failed"
	for text, target := range map[string]error{"refused": locker.ErrHeld, "lost": locker.ErrLost, "unavailable": locker.ErrUnavailable} {
		if errors.Is(err, target) {
			kind = text
		}
	}
	c.report("%s %v", kind, err)
}
