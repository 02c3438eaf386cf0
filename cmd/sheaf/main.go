// Command sheaf runs every part of Sheaf (shard, gateway, dev), and contains the commands for records and
// administration.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{Program: cli.Program{Out: &cli.Output{Out: os.Stdout, Err: os.Stderr}}}
	err := a.Run(ctx, a.rootCommand(), os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "sheaf: %s\n", cli.Describe(err, a.server))
	}
	os.Exit(cli.ExitCode(err))
}

// app holds the global flags and the outputs, which all commands share.
type app struct {
	cli.Program
	server  string
	tls     cli.TLS
	timeout time.Duration
}

const (
	groupRun     = "run"
	groupRecords = "records"
	groupCare    = "care"
)

// call returns the RunE function of a command that calls the server. The flag --timeout is the deadline of the whole
// command. If streams is true and --timeout is not set, the command as a whole has no deadline, and only operations
// with a single answer (get, and put up to 1 MiB) have one.
func (a *app) call(streams bool, run func(ctx context.Context, conn *cli.Conn,
	args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.Body(func(ctx context.Context, args []string) (err error) {
			if !streams || cmd.Flags().Changed("timeout") {
				var cancel context.CancelFunc
				ctx, cancel = cli.Within(ctx, a.timeout)
				defer cancel()
			}
			conn, err := cli.Dial(a.server, a.tls, a.timeout)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, conn.Close()) }()
			if a.Out.Terminal() {
				conn.NoteWaits(func(note string) { a.Out.Sayf("%s", note) })
			}
			return run(ctx, conn, args)
		})(cmd, args)
	}
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sheaf",
		Short: "Sharded record storage in group files",
		Long: `Sheaf keeps records (a 64-bit id, bytes, a few attributes) in group files instead of one file each,
and reads them back at the speed of the disk.

Try it:
  sheaf dev                          a whole store in one process, on a temporary folder
  echo hello | sheaf put 42          store a record
  sheaf get 42                       read it
  sheaf import DIR --id hash         store a tree of files

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the disk is not blank (sheaf look), 5 the
data of this member are lost (sheaf etcd). Data goes to stdout, words to stderr. An id is a decimal
int64, or hexadecimal behind 0x.`,
		Version: version,
	}
	root.AddGroup(
		&cobra.Group{ID: groupRecords, Title: "Records:"},
		&cobra.Group{ID: groupRun, Title: "Processes:"},
		&cobra.Group{ID: groupCare, Title: "Care:"},
	)
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "127.0.0.1:7600", "gateway (or shard) to talk to, host:port")
	a.tls.Add(flags)
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second,
		"end the command after this time, whatever it does; 0: never. Unless it is given, import, export, scan, watch, "+
			"verify, compact, and get and put above 1 MiB go on for as long as they take")
	a.Flags(root)
	a.Check = func() error {
		if a.timeout < 0 {
			return fmt.Errorf("--timeout %v: must not be negative", a.timeout)
		}
		return nil
	}
	root.AddCommand(
		putCommand(a), getCommand(a), rmCommand(a), versionsCommand(a), findCommand(a), scanCommand(a),
		watchCommand(a), importCommand(a), exportCommand(a),
		devCommand(a), shardCommand(a), gatewayCommand(a), etcdCommand(a), recoverCommand(a),
		statusCommand(a), topCommand(a), doctorCommand(a), authCommand(a), movesCommand(a),
		shardsCommand(a), groupCommand(a), verifyCommand(a), lookCommand(a), wipeCommand(a),
		dumpCommand(a), versionCommand(a),
	)
	return root
}

// keyFlags are the flags that name a record in addition to its id.
type keyFlags struct{ group string }

func (k *keyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.group, "group", "", "group of the record; needed in Named routing")
}

func (k *keyFlags) key(id string) (client.Key, error) {
	n, err := cli.ParseID(id)
	return client.Key{ID: n, Group: k.group}, err
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print what this program was built from: the tag of a release, or a commit where there is no tag.
Nothing has been released yet: the first release will be 0.1.0.`,
		GroupID: groupCare,
		Args:    cobra.NoArgs,
		RunE: a.Body(func(context.Context, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			return a.Out.Print(map[string]any{"version": version, "go": runtime.Version(), "platform": platform},
				"sheaf %s (%s, %s)\n", version, runtime.Version(), platform)
		}),
	}
}
