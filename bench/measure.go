package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// result is what one mode has shown: for each subject its cycles per second in each round.
type result struct {
	Mode     string      `json:"mode"`
	Subjects []string    `json:"subjects"`
	Rates    [][]float64 `json:"rates"`  // by subject, then by round
	Stuck    []int       `json:"stuck"`  // by subject: rounds in which it didn't come back
	Failed   []string    `json:"failed"` // by subject: why it could not be measured
	peers    []bool
}

// patience is how long a cycle may take before its subject counts as stuck in that round.
const patience = time.Second

// uncontended measures cycles by a number of goroutines, each of which has names of its own. In each round the subjects
// come in another order.
func uncontended(ctx context.Context, subjects []subject, goroutines int, o options) (result, error) {
	r := result{
		Mode:  fmt.Sprintf("%d goroutines, own names", goroutines),
		Rates: make([][]float64, len(subjects)), Stuck: make([]int, len(subjects)), Failed: make([]string, len(subjects)),
	}
	clients := make([]client, len(subjects))
	measure := func(i int, d time.Duration) (float64, error) {
		s := subjects[i]
		round, stop := context.WithTimeout(ctx, d+patience)
		defer stop()
		perSecond, err := rate(round, clients[i], goroutines, d)
		switch {
		case err == nil:
		case ctx.Err() != nil || !s.peer: // a fault of another library's is shown, and doesn't end the run
			return 0, fmt.Errorf("%s: %w", s.name, err)
		case round.Err() != nil:
			r.Stuck[i]++
		default:
			r.Failed[i] = err.Error()
		}
		return perSecond, nil
	}
	for i, s := range subjects {
		c, err := s.open(ctx, false)
		if err != nil {
			return r, fmt.Errorf("%s: %w", s.name, err)
		}
		defer c.close()
		clients[i] = c
		r.Subjects, r.peers = append(r.Subjects, s.name), append(r.peers, s.peer)
		if _, err := measure(i, o.warmup); err != nil {
			return r, err
		}
	}
	for range o.rounds {
		for _, i := range rand.Perm(len(subjects)) {
			if r.Failed[i] != "" {
				continue
			}
			perSecond, err := measure(i, o.round)
			if err != nil {
				return r, err
			}
			r.Rates[i] = append(r.Rates[i], perSecond)
		}
	}
	return r, nil
}

// rate runs cycles for a while and returns how many there were per second.
func rate(ctx context.Context, s client, goroutines int, d time.Duration) (float64, error) {
	var (
		wg    sync.WaitGroup
		count atomic.Int64
		once  sync.Once
		first error
	)
	start := time.Now()
	end := start.Add(d)
	for g := range goroutines {
		wg.Go(func() {
			// A few names for each, as programs have: what is kept for a name is found again.
			var names [8]string
			for i := range names {
				names[i] = fmt.Sprintf("bench/%d/%d", g, i)
			}
			n := 0
			defer func() { count.Add(int64(n)) }()
			for ; time.Now().Before(end); n++ {
				if err := s.cycle(ctx, names[n%len(names)]); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(count.Load()) / time.Since(start).Seconds(), first
}

// print writes a table: the median of the rounds, their middle half, and the median of each round's ratio to the raw
// client and to the best peer of that mode.
func (r result) print(w io.Writer) {
	best := -1
	for i := range r.Rates {
		if r.peers[i] && r.Failed[i] == "" && (best < 0 || median(r.Rates[i]) > median(r.Rates[best])) {
			best = i
		}
	}
	fmt.Fprintf(w, "\n%s\n%-22s %12s  %-19s %8s", r.Mode, "", "cycles/s", "(middle half)", "/ raw")
	if best >= 0 {
		fmt.Fprintf(w, "  / %s", r.Subjects[best])
	}
	fmt.Fprintln(w)
	for i, rates := range r.Rates {
		if r.Failed[i] != "" {
			fmt.Fprintf(w, "%-22s fails: %.90s\n", r.Subjects[i], r.Failed[i])
			continue
		}
		sorted := slices.Sorted(slices.Values(rates))
		fmt.Fprintf(w, "%-22s %12.0f  %8.0f - %-8.0f %8.2f", r.Subjects[i], median(rates), sorted[len(sorted)/4],
			sorted[len(sorted)*3/4], median(ratios(rates, r.Rates[0])))
		if best >= 0 {
			fmt.Fprintf(w, "  %.2f", median(ratios(rates, r.Rates[best])))
		}
		if r.Stuck[i] > 0 {
			fmt.Fprintf(w, "  stuck in %d rounds", r.Stuck[i])
		}
		fmt.Fprintln(w)
	}
}

// ratios divides round by round, so that what slowed a round down counts on both sides.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
