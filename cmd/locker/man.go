package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan prints the manual page, which is made of what the commands' help says.
func newMan(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Print the manual page",
		Long: `Print the manual page locker(1) in the format of man(7):

  locker man >/usr/local/share/man/man1/locker.1`,
		Args: exactArgs(0, "", "man takes no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error { return writeMan(cmd.OutOrStdout(), root) },
	}
}

func writeMan(w io.Writer, root *cobra.Command) error {
	m := &manual{}
	m.line(`.TH LOCKER 1 "" "locker %s" "User Commands"`, roff(version()))
	m.line(".SH NAME\nlocker \\- %s", roff(strings.ToLower(root.Short[:1])+root.Short[1:]))
	m.line(".SH SYNOPSIS")
	for _, cmd := range shown(root) {
		m.line(".B locker %s\n.br", roff(cmd.Use))
	}
	m.line(".SH DESCRIPTION\nA lock of locker is a lease: it is kept on a backend that processes or machines share, renewed as long as it is held, and\n" +
		"taken over by others if its holder dies.")
	m.line(".SS Options of all commands")
	m.flags(root.PersistentFlags())
	for _, cmd := range shown(root) {
		m.line(".SH %s", roff(strings.ToUpper("locker "+cmd.Name())))
		m.line(".B locker %s\n.PP", roff(cmd.Use))
		text := cmd.Long
		if text == "" {
			text = cmd.Short + "."
		}
		m.text(text)
		if cmd.HasLocalFlags() {
			m.line(".SS Options of %s", roff(cmd.Name()))
			m.flags(cmd.LocalNonPersistentFlags())
		}
		if cmd.Example != "" {
			m.line(".SS Examples of %s", roff(cmd.Name()))
			m.text(cmd.Example)
		}
	}
	m.line(`.SH ENVIRONMENT
.TP
.B LOCKER_URL
where locks are kept, unless
.B \-\-url
says otherwise
.TP
.B LOCKER_NAME\fR, \fBLOCKER_TOKEN\fR, \fBLOCKER_KIND\fR, \fBLOCKER_BACKEND
are set for the command that
.B locker run
starts`)
	_, err := io.WriteString(w, m.String())
	return err
}

// shown returns the commands that the page describes.
func shown(root *cobra.Command) (all []*cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" && cmd.Name() != "completion" {
			all = append(all, cmd)
		}
	}
	return all
}

type manual struct{ strings.Builder }

func (m *manual) line(format string, args ...any) { fmt.Fprintf(&m.Builder, format+"\n", args...) }

// text writes paragraphs; indented lines stay as they are.
func (m *manual) text(text string) {
	verbatim := false
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimRight(line, "\n")
		switch indented := strings.HasPrefix(line, "  "); {
		case indented && !verbatim:
			m.line(".PP\n.nf")
		case !indented && verbatim:
			m.line(".fi")
			if line != "" {
				m.line(".PP")
			}
		}
		verbatim = strings.HasPrefix(line, "  ")
		if line == "" {
			m.line(".PP")
		} else {
			m.line("%s", roff(line))
		}
	}
	if verbatim {
		m.line(".fi")
	}
}

func (m *manual) flags(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		option := `\-\-` + roff(f.Name)
		if f.Shorthand != "" {
			option = `\-` + f.Shorthand + `\fR, \fB` + option
		}
		if name != "" {
			option += ` \fI` + roff(strings.ToUpper(name))
		}
		m.line(".TP\n\\fB%s\\fR\n%s", option, roff(usage))
	})
}

// roff escapes a text for man(7).
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "→", `\(->`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
