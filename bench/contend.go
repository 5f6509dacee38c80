package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// contention is what several clients have shown that wanted one name all the time.
type contention struct {
	Clients  int          `json:"clients"`
	Ping     float64      `json:"ping_us"` // the median round trip
	Subjects []contenders `json:"subjects"`
}

// contenders are the clients of one subject.
type contenders struct {
	Name     string    `json:"name"`
	Rates    []float64 `json:"rates"`    // grants per second, by round
	Fairness []float64 `json:"fairness"` // the fewest grants of a client / the most, by round
	P50      []float64 `json:"p50_us"`   // from the call of a release to the next grant, by round
	P99      []float64 `json:"p99_us"`
	Failed   string    `json:"failed"` // why it could not be measured
	peer     bool
	clients  []client
}

// contended lets clients of each subject in turn contend for one name, one goroutine each.
func contended(ctx context.Context, s *setup, o options) (*contention, error) {
	c := &contention{Clients: o.clients}
	for _, x := range s.subjects {
		if x.alone {
			continue
		}
		k := contenders{Name: x.name, peer: x.peer}
		for range o.clients {
			cl, err := x.open(ctx, true)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			defer cl.close()
			k.clients = append(k.clients, cl)
		}
		c.Subjects = append(c.Subjects, k)
	}
	var pings []float64
	for round := -1; round < o.rounds; round++ { // the first one warms up
		for _, i := range rand.Perm(len(c.Subjects)) {
			if k := &c.Subjects[i]; k.Failed == "" {
				if err := k.round(ctx, fmt.Sprintf("bench/one/%d", round), o.contended, round >= 0); err != nil {
					return nil, err
				}
			}
		}
		for range 50 {
			start := time.Now()
			if err := s.ping(ctx); err != nil {
				return nil, err
			}
			pings = append(pings, micros(time.Since(start)))
		}
	}
	c.Ping = median(pings)
	return c, nil
}

// round measures for a while. A client that holds the name gives it back at once and wants it again.
func (k *contenders) round(ctx context.Context, name string, d time.Duration, counts bool) error {
	ctx, stop := context.WithTimeout(ctx, d+10*time.Second)
	defer stop()
	var (
		mu       sync.Mutex
		released time.Time // when the newest release was called
		waits    []float64
		failed   error
		wg       sync.WaitGroup
		grants   = make([]int, len(k.clients))
	)
	start := time.Now()
	end := start.Add(d)
	for i, c := range k.clients {
		wg.Go(func() {
			for time.Now().Before(end) {
				release, err := c.acquire(ctx, name)
				now := time.Now()
				mu.Lock()
				if err == nil && now.Before(end) {
					grants[i]++
					if !released.IsZero() {
						waits = append(waits, micros(now.Sub(released)))
					}
				}
				released = time.Now()
				mu.Unlock()
				if err == nil {
					err = release(ctx)
				}
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	switch {
	case failed != nil && k.peer:
		k.Failed = failed.Error()
		return nil
	case failed != nil:
		return fmt.Errorf("%s: %w", k.Name, failed)
	case !counts || len(waits) == 0:
		return nil
	}
	sum := 0
	for _, n := range grants {
		sum += n
	}
	slices.Sort(waits)
	k.Rates = append(k.Rates, float64(sum)/d.Seconds())
	k.Fairness = append(k.Fairness, float64(slices.Min(grants))/float64(slices.Max(grants)))
	k.P50 = append(k.P50, waits[len(waits)/2])
	k.P99 = append(k.P99, waits[len(waits)*99/100])
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// print writes a table of medians.
func (c *contention) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d clients on one name; a round trip takes %.0f µs\n", c.Clients, c.Ping)
	fmt.Fprintf(w, "%-22s %12s %9s  %-24s %s\n", "", "grants/s", "fairness", "hand-over, round trips", "p99 / p50")
	for _, k := range c.Subjects {
		if k.Failed != "" || len(k.Rates) == 0 {
			fmt.Fprintf(w, "%-22s fails: %.90s\n", k.Name, k.Failed)
			continue
		}
		p50, p99 := median(k.P50), median(k.P99)
		fmt.Fprintf(w, "%-22s %12.0f %9.2f  p50 %-7.1f p99 %-8.1f %.1f\n", k.Name, median(k.Rates), median(k.Fairness), p50/c.Ping, p99/c.Ping, p99/p50)
	}
}
