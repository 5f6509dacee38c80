package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newRoot returns the program's command line. getenv is os.Getenv, or a test's.
func newRoot(getenv func(string) string) *cobra.Command {
	root := &cobra.Command{
		Use:           "locker",
		Short:         "Run commands under a lock that other processes and machines respect",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError("a command is missing, such as run")
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError("%w", err) })
	var url urlFlag
	url.getenv = getenv
	url.register(root.PersistentFlags())
	root.AddCommand(newRun(&url), newInspect(&url), newList(&url), newDoctor(&url), newMan(root), newVersion())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "locker %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version returns the module's version that the Go command recorded.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
