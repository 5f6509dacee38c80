package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/leasekit/locker/driver"
)

func newDoctor(url *urlFlag) *cobra.Command {
	l := &lookFlags{url: url, timeout: durationFlag{min: 1}}
	var strict bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether a backend is fit for locks",
		Long: `Check whether a backend is fit for locks: its version, settings, rights and clocks, as far as they can be seen. Each line
says what was checked:

  pass  in order
  note  worth knowing
  warn  locks work, and their promises are weaker than they could be
  fail  locks don't work, or break a promise

It leaves nothing behind.

` + doctorCodesHelp,
		Example: `  locker doctor --url redis://cache:6379
  locker doctor --strict --json --url etcd://etcd1:2379,etcd2:2379,etcd3:2379`,
		Args:              exactArgs(0, "", "doctor takes no argument; --url says where to look"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.looking(cmd.Context(), func(ctx context.Context, b *backend) error {
				check, ok := b.Conn.(driver.Checker)
				if !ok {
					return fmt.Errorf("%w: there is no check for %s", driver.ErrConfig, b.info.Backend)
				}
				findings, err := check.Check(ctx)
				if err != nil {
					return err
				}
				worst := driver.Pass
				for _, f := range findings {
					worst = max(worst, f.Severity)
				}
				if l.json {
					err = printJSON(cmd.OutOrStdout(), diagnosisOf(b.info.Backend, worst, findings))
				} else {
					err = printFindings(cmd.OutOrStdout(), findings)
				}
				if err == nil && (worst == driver.Fail || strict && worst == driver.Warn) {
					err = &exitError{exitUnfit, nil}
				}
				return err
			})
		},
	}
	l.register(cmd.Flags())
	cmd.Flags().BoolVar(&strict, "strict", false, "end with 1 also if there is a warning")
	return cmd
}

// diagnosis is what programs see. Names are only added to it.
type diagnosis struct {
	Backend  string        `json:"backend"`
	Worst    string        `json:"worst"`
	Findings []findingJSON `json:"findings"`
}

type findingJSON struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	Detail   string `json:"detail"`
	Advice   string `json:"advice,omitempty"`
}

func diagnosisOf(backend string, worst driver.Severity, findings []driver.Finding) diagnosis {
	d := diagnosis{Backend: backend, Worst: worst.String(), Findings: make([]findingJSON, 0, len(findings))}
	for _, f := range findings {
		d.Findings = append(d.Findings, findingJSON{f.Check, f.Severity.String(), f.Detail, f.Advice})
	}
	return d
}

func printFindings(w io.Writer, findings []driver.Finding) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Severity, f.Check, f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", f.Advice)
		}
	}
	return t.Flush()
}
