package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Program is the state that the commands of one binary share: the output, and a check of the global flags.
type Program struct {
	Out *Output
	// Check, if not nil, validates the global flags before a command runs. An error counts as wrong usage.
	Check  func() error
	format string
}

// Flags adds the flags that every program has to its root command.
func (p *Program) Flags(root *cobra.Command) {
	root.PersistentFlags().StringVarP(&p.format, "output", "o", "text", "how to print: text or json")
	Complete(root, "output", "text", "json")
}

// Run executes one command line. Pass the returned error to Describe and ExitCode.
func (p *Program) Run(ctx context.Context, root *cobra.Command, args []string) error {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(protectNegativeIDs(args))
	root.SetOut(p.Out.Out)
	root.SetErr(p.Out.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return nil
	}
	// A command wraps its errors in the type done. Any other error comes from cobra: an unknown command or flag, or a
	// missing argument.
	if d, ok := errors.AsType[*done](err); ok {
		return d.err
	}
	what := oneLine(err.Error())
	if strings.Contains(what, "arg(s)") { // cobra counts arguments but does not name them
		given := Count(int64(cmd.Flags().NArg()), "argument", "arguments")
		what = fmt.Sprintf("%s given, and it takes: %s", given, cmd.UseLine())
	}
	return Usagef("%s (see %s --help)", what, cmd.CommandPath())
}

// oneLine turns cobra's message about an unknown command into one line.
func oneLine(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n\nDid you mean this?\n\t", ": did you mean ")
	return strings.Join(strings.Fields(text), " ")
}

// done wraps an error that a command returned, to distinguish it from an error of the flag parser.
type done struct{ err error }

func (d *done) Error() string { return d.err.Error() }
func (d *done) Unwrap() error { return d.err }

// Done marks an error of a command's PreRunE as an error at run time, as opposed to wrong usage. Done returns nil for
// nil.
func Done(err error) error {
	if err == nil {
		return nil
	}
	return &done{err: err}
}

// Body returns the RunE of a command that calls run after a check of the global flags.
func (p *Program) Body(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		switch p.format {
		case "text", "json":
			p.Out.JSON = p.format == "json"
		default:
			return fmt.Errorf("-o %q: must be text or json", p.format)
		}
		if p.Check != nil {
			if err := p.Check(); err != nil {
				return err
			}
		}
		return Done(run(cmd.Context(), args))
	}
}

// Within returns a context that ends after limit at the latest. If limit is 0, the context has no time limit.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// Pause waits for the duration d. It returns false if ctx ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Complete offers fixed values for the completion of a flag of cmd. The flag must exist.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // an unknown flag is a programming error, which every run of the program shows
	}
}
