package pagetest

import (
	"fmt"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sheaf.dev/sheaf/internal/test/must"
)

// CheckTree checks commands against the command line of a program: each command in the pages below root that runs the
// program, and each example in the program's help. It runs none of them. The pages must contain at least as many such
// commands as the argument least, so that a check that finds none cannot pass. The argument command is a function
// that creates a new command line.
func CheckTree(t *testing.T, root, program string, least int, command func() *cobra.Command) {
	t.Helper()
	pages, err := Pages(root)
	must.OK(t, err)
	checked := 0
	for _, page := range pages {
		// Lines that are not valid shell code are reported by a test of internal/test/floors.
		commands, _ := Commands(page.Text)
		for _, c := range commands {
			args, ok := c.Args(program)
			if !ok {
				continue
			}
			checked++
			if err := Accepts(command(), args, c.Mentioned); err != nil {
				t.Errorf("%s:%d: `%s`: %v", page.Name, c.Line, c, err)
			}
		}
	}
	shown, bad := examples(command(), program, command)
	for _, b := range bad {
		t.Error(b)
	}
	t.Logf("%d commands and %d examples were checked", checked, shown)
	if checked < least {
		t.Errorf("only %d commands of %s were found, at least %d are wanted", checked, program, least)
	}
}

// examples checks the examples in a program's help against its command line. examples returns their number, and a
// description of each mistake.
func examples(cmd *cobra.Command, program string, command func() *cobra.Command) (checked int, bad []string) {
	cs, err := parse(cmd.Example, 1)
	if err != nil {
		bad = append(bad, fmt.Sprintf("the example of %s: %v", cmd.CommandPath(), err))
	}
	for _, c := range cs {
		if args, ok := c.Args(program); ok {
			checked++
			if err := Accepts(command(), args, c.Mentioned); err != nil {
				bad = append(bad, fmt.Sprintf("the example of %s: `%s`: %v", cmd.CommandPath(), c, err))
			}
		}
	}
	for _, sub := range cmd.Commands() {
		n, wrong := examples(sub, program, command)
		checked, bad = checked+n, append(bad, wrong...)
	}
	return checked, bad
}

// Accepts returns an error if a command line does not accept the arguments, because of an unknown subcommand or flag, a
// value that a flag refuses, or too few or too many arguments. A placeholder stands for any value. A command that is
// only mentioned may omit required arguments and flags.
func Accepts(root *cobra.Command, args []string, mentioned bool) error {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	acceptPlaceholders(root)
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil
	}
	given := cmd.Flags().Args()
	err = cmd.ValidateArgs(given)
	for range 3 {
		if err == nil || !mentioned || cmd.HasSubCommands() {
			break
		}
		given = append(given, "1")
		err = cmd.ValidateArgs(given)
	}
	if err != nil {
		return fmt.Errorf("the arguments %q: %w", cmd.Flags().Args(), err)
	}
	if mentioned {
		return nil
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}

// acceptPlaceholders makes all flags in a tree of commands accept a placeholder as their value.
func acceptPlaceholders(cmd *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if _, done := f.Value.(placeholderValue); !done && f.Value.Type() != "bool" {
				f.Value = placeholderValue{f.Value}
			}
		})
	}
	for _, sub := range cmd.Commands() {
		acceptPlaceholders(sub)
	}
}

// placeholderValue wraps the value of a flag so that it also accepts a placeholder.
type placeholderValue struct{ pflag.Value }

// Set sets the value, unless the text is a placeholder, which is ignored.
func (p placeholderValue) Set(text string) error {
	if Placeholder(text) {
		return nil
	}
	return p.Value.Set(text)
}
