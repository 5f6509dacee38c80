package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasekit/locker/driver"
)

// lookFlags are the flags of commands that only look.
type lookFlags struct {
	url     *urlFlag
	timeout durationFlag
	json    bool
}

func (l *lookFlags) register(flags *pflag.FlagSet) {
	flags.Var(&l.timeout, "timeout", "wait no longer than this for the backend; default 10s")
	flags.BoolVar(&l.json, "json", false, "print JSON")
}

const entryHelp = `What is not known is "-" in the table and left out of the JSON: the label of a holder that is not locker, the TTL left of a
lock whose backend does not tell it, the number of waiters where there is no queue.`

func newInspect(url *urlFlag) *cobra.Command {
	l := &lookFlags{url: url, timeout: durationFlag{min: 1}}
	cmd := &cobra.Command{
		Use:   "inspect [flags] NAME",
		Short: "Show who holds a lock",
		Long: `Show who holds the lock NAME, with which token and for how long. It only reads, and ends with 0 whether the lock is held
or free.

` + entryHelp + `

` + lookCodesHelp,
		Example: `  locker inspect nightly
  locker inspect --json nightly | jq -e .held`,
		Args:              exactArgs(1, "NAME is missing", "only one NAME can be given"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := driver.CheckName(args[0]); err != nil {
				return lockError(fmt.Errorf("locker: %w", err))
			}
			return l.looking(cmd.Context(), func(ctx context.Context, b *backend) error {
				i, err := b.inspector()
				if err != nil {
					return err
				}
				e, err := i.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				now := time.Now()
				if l.json {
					return printJSON(cmd.OutOrStdout(), describe(e, b.info.Backend, now))
				}
				return printEntries(cmd.OutOrStdout(), []driver.Entry{e}, now)
			})
		},
	}
	l.register(cmd.Flags())
	return cmd
}

func newList(url *urlFlag) *cobra.Command {
	l := &lookFlags{url: url, timeout: durationFlag{min: 1}}
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the locks that are held",
		Long: `List the locks that are held, sorted by name. It only reads. Locks that are taken or freed meanwhile may be listed or not.

` + entryHelp + `

` + lookCodesHelp,
		Args:              exactArgs(0, "", "list takes no NAME; see inspect"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.looking(cmd.Context(), func(ctx context.Context, b *backend) error {
				i, err := b.inspector()
				if err != nil {
					return err
				}
				var entries []driver.Entry
				err = i.List(ctx, func(e driver.Entry) bool {
					entries = append(entries, e)
					return true
				})
				if err != nil {
					return err
				}
				slices.SortFunc(entries, func(a, b driver.Entry) int { return cmp.Compare(a.Name, b.Name) })
				now := time.Now()
				if l.json {
					all := make([]entryJSON, 0, len(entries))
					for _, e := range entries {
						all = append(all, describe(e, b.info.Backend, now))
					}
					return printJSON(cmd.OutOrStdout(), all)
				}
				return printEntries(cmd.OutOrStdout(), entries, now)
			})
		},
	}
	l.register(cmd.Flags())
	return cmd
}

// exactArgs counts arguments, and says what is wrong with their number.
func exactArgs(n int, few, many string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < n:
			return usageError("%s", few)
		case len(args) > n:
			return usageError("%s", many)
		}
		return nil
	}
}

// entryJSON is an entry as programs see it. Names are only added to it.
type entryJSON struct {
	Name      string     `json:"name"`
	Backend   string     `json:"backend"`
	Held      bool       `json:"held"`
	Owner     string     `json:"owner,omitempty"`
	ID        string     `json:"id,omitempty"`
	Token     uint64     `json:"token,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Age       float64    `json:"age_seconds,omitempty"`
	Remaining float64    `json:"ttl_left_seconds,omitempty"`
	Waiters   *int       `json:"waiters,omitempty"`
}

func describe(e driver.Entry, backend string, now time.Time) entryJSON {
	j := entryJSON{Name: e.Name, Backend: backend, Held: e.Held, Owner: e.Owner, ID: e.ID, Token: e.Token}
	if !e.Since.IsZero() {
		since := e.Since.UTC()
		j.Since, j.Age = &since, millis(now.Sub(e.Since))
	}
	j.Remaining = millis(e.Remaining)
	if e.Waiters >= 0 {
		j.Waiters = &e.Waiters
	}
	return j
}

// millis is a duration in seconds, without the digits that nobody can rely on.
func millis(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printEntries prints a table for people.
func printEntries(w io.Writer, entries []driver.Entry, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSTATE\tHOLDER\tTOKEN\tAGE\tTTL LEFT\tWAITERS")
	for _, e := range entries {
		state, holder, token, age, left, waiters := "free", "-", "-", "-", "-", "-"
		if e.Held {
			state = "held"
			holder = readable(e.Owner)
		}
		if e.Token > 0 {
			token = strconv.FormatUint(e.Token, 10)
		}
		if !e.Since.IsZero() {
			age = short(now.Sub(e.Since))
		}
		if e.Remaining > 0 {
			left = short(e.Remaining)
		}
		if e.Waiters >= 0 {
			waiters = strconv.Itoa(e.Waiters)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", readable(e.Name), state, holder, token, age, left, waiters)
	}
	return t.Flush()
}

// readable is a text on one line of a terminal: what could move the cursor, or be taken for two columns, is quoted.
func readable(s string) string {
	if s == "" {
		return "-"
	}
	quoted := strconv.Quote(s)
	if quoted == `"`+s+`"` && !strings.Contains(s, "  ") {
		return s
	}
	return quoted
}

// short rounds a duration to what people read.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
