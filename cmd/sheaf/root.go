package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/cli"
)

// app is what all commands share: the global flags and where to write.
type app struct {
	server  string
	format  string
	timeout time.Duration
	out     *cli.Output
	bench   benchFlags
}

const (
	groupRun     = "run"
	groupRecords = "records"
	groupCare    = "care"
)

// run executes one command line.
func (a *app) run(ctx context.Context, args []string) error {
	root := a.rootCommand()
	root.SetArgs(cli.ProtectNegativeIDs(args))
	root.SetOut(a.out.Out)
	root.SetErr(a.out.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return nil
	}
	// A command wraps what it returns in done; anything else is cobra's: an unknown command or flag, a missing argument.
	var d *done
	if errors.As(err, &d) {
		return d.err
	}
	return cli.Usagef("%s (see %s --help)", oneLine(err.Error()), cmd.CommandPath())
}

// oneLine makes a line of cobra's words about a command that it does not know.
func oneLine(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n\nDid you mean this?\n\t", ": did you mean ")
	return strings.Join(strings.Fields(text), " ")
}

// done marks an error that a command returned, as opposed to one of the flag parser.
type done struct{ err error }

func (d *done) Error() string { return d.err.Error() }
func (d *done) Unwrap() error { return d.err }

// body makes a command's RunE.
func (a *app) body(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		switch a.format {
		case "text", "json":
			a.out.JSON = a.format == "json"
		default:
			return fmt.Errorf("-o %q: must be text or json", a.format)
		}
		if a.timeout < 0 {
			return fmt.Errorf("--timeout %v: must not be negative", a.timeout)
		}
		if err := run(cmd.Context(), args); err != nil {
			return &done{err: err}
		}
		return nil
	}
}

// call makes the RunE of a command that talks to the server. --timeout is the deadline of the whole command. streams:
// where it is not given, what has one answer (get and put up to 1 MiB) is bounded alone.
func (a *app) call(streams bool, run func(ctx context.Context, conn *cli.Conn, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.body(func(ctx context.Context, args []string) (err error) {
			if a.timeout > 0 && (!streams || cmd.Flags().Changed("timeout")) {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.timeout)
				defer cancel()
			}
			conn, err := cli.Dial(a.server)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, conn.Close()) }()
			if streams && !cmd.Flags().Changed("timeout") {
				conn.CallTimeout = a.timeout
			}
			if a.out.Terminal() {
				conn.NoteWaits(func(note string) { a.out.Sayf("%s", note) })
			}
			return run(ctx, conn, args)
		})(cmd, args)
	}
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sheaf",
		Short: "Sharded record storage in group files",
		Long: `Sheaf keeps records (a 64-bit id, bytes, a few attributes) in group files instead of one file each, and reads them
back at the speed of the disk.

Try it:
  sheaf dev                          a whole store in one process, on a temporary folder
  echo hello | sheaf put 42          store a record
  sheaf get 42                       read it
  sheaf import DIR --id hash         store a tree of files

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found. Data goes to stdout, words to stderr. An id is a decimal int64,
or hexadecimal behind 0x.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.AddGroup(
		&cobra.Group{ID: groupRecords, Title: "Records:"},
		&cobra.Group{ID: groupRun, Title: "Processes:"},
		&cobra.Group{ID: groupCare, Title: "Care:"},
	)
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "127.0.0.1:7600", "gateway (or shard) to talk to, host:port")
	flags.StringVarP(&a.format, "output", "o", "text", "how to print: text or json")
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second, "end the command after this time, whatever it does; 0: never. Unless it is given, import, export, scan, watch, verify, compact, and get and put above 1 MiB go on for as long as they take")
	a.complete(root, "output", "text", "json")
	root.AddCommand(
		a.putCommand(), a.getCommand(), a.rmCommand(), a.versionsCommand(), a.findCommand(), a.scanCommand(), a.watchCommand(),
		a.importCommand(), a.exportCommand(),
		a.devCommand(), a.shardCommand(), a.gatewayCommand(), a.etcdCommand(), a.recoverCommand(),
		a.statusCommand(), a.topCommand(), a.doctorCommand(), a.movesCommand(), a.groupCommand(), a.verifyCommand(), a.dumpCommand(), a.benchCommand(), a.versionCommand(), a.runDemoCommand(),
	)
	return root
}

// complete offers fixed values for a flag.
func (a *app) complete(cmd *cobra.Command, flag string, values ...string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // a flag that does not exist: every run of the binary would show it
	}
}

// keyFlags are the flags that name a record beside its id.
type keyFlags struct{ group string }

func (k *keyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.group, "group", "", "group of the record; needed in Named routing")
}

func (k *keyFlags) key(id string) (*recordv1.RecordKey, error) {
	n, err := cli.ParseID(id)
	if err != nil {
		return nil, err
	}
	return &recordv1.RecordKey{Id: n, Group: k.group}, nil
}

// conditionFlags make a write depend on what is there.
type conditionFlags struct {
	ifVersion string
	ifAbsent  bool
}

func (c *conditionFlags) condition() *recordv1.WriteCondition {
	switch {
	case c.ifAbsent:
		return &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{IfAbsent: true}}
	case c.ifVersion != "":
		return &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfVersion{IfVersion: c.ifVersion}}
	}
	return nil
}
