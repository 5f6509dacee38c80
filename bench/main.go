// Command bench measures locks beside each other: the raw client doing the least that a correct lock needs, other
// libraries as their documentation says, and locker. Everything is measured in one run, on the same server, in
// interleaved rounds, so that what the machine does besides meets all subjects alike; only the ratios mean anything.
//
//	cd bench && go run . -backend redis        (or etcd, zookeeper, consul)
//
// It needs a server, such as those of the docker-compose.yml at the root of the repository, and exits with 1 if a
// subject of ours fails. What another library can't do is shown.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

// backends says how to prepare the subjects of a backend. Each adds itself in its own file.
var backends = map[string]func(ctx context.Context, o options) (*setup, error){}

// options are what the command line says.
type options struct {
	addr      string
	ttl       time.Duration
	warmup    time.Duration
	round     time.Duration
	contended time.Duration
	rounds    int
	clients   int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	names := slices.Sorted(maps.Keys(backends))
	backend := flag.String("backend", "redis", "one of "+strings.Join(names, ", "))
	flag.StringVar(&o.addr, "addr", "", "host:port of the server; default: that of docker-compose.yml")
	flag.DurationVar(&o.ttl, "ttl", 30*time.Second, "TTL of the locks")
	flag.DurationVar(&o.warmup, "warmup", 100*time.Millisecond, "how long each subject runs unmeasured at first")
	flag.DurationVar(&o.round, "round", 200*time.Millisecond, "how long a subject runs in each round")
	flag.DurationVar(&o.contended, "contended-round", time.Second, "the same under contention")
	flag.IntVar(&o.rounds, "rounds", 15, "how many rounds")
	flag.IntVar(&o.clients, "clients", 16, "how many clients contend for one name; 0: none")
	goroutines := flag.String("goroutines", "1,8,64", `how many goroutines, each with names of its own; a list, or "" for none`)
	only := flag.String("only", "", "measure only these subjects, separated by commas; the first one is always measured")
	asJSON := flag.Bool("json", false, "print every round as JSON instead of tables")
	flag.Parse()

	prepare := backends[*backend]
	if prepare == nil || flag.NArg() > 0 || o.rounds < 1 {
		flag.Usage()
		return fmt.Errorf("there is no backend %q, or too much was said", *backend)
	}
	s, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	defer s.close()
	if *only != "" {
		wanted := strings.Split(*only, ",")
		s.subjects = slices.DeleteFunc(s.subjects, func(x subject) bool {
			return x.name != s.subjects[0].name && !slices.Contains(wanted, x.name)
		})
	}

	var results []result
	for n := range strings.SplitSeq(*goroutines, ",") {
		if n == "" {
			continue
		}
		count, err := strconv.Atoi(n)
		if err != nil || count < 1 {
			return fmt.Errorf("-goroutines: %q isn't a number", n)
		}
		r, err := uncontended(ctx, s.subjects, count, o)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	var c *contention
	if o.clients > 0 {
		if c, err = contended(ctx, s, o); err != nil {
			return err
		}
	}
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"server": s.server, "settings": s.settings(), "results": results, "contended": c,
		})
	}
	fmt.Printf("%s, %d rounds of %v, interleaved; cycles are acquire + release\n", s.server, o.rounds, o.round)
	for _, r := range results {
		r.print(os.Stdout)
	}
	if c != nil {
		c.print(os.Stdout)
	}
	fmt.Println()
	for _, x := range s.subjects {
		fmt.Printf("%-22s %s\n", x.name, x.settings)
	}
	return nil
}
