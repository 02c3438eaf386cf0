// Command sheaf-archive keeps an archive of a store in a bucket. It is a separate program, so that no other program
// of Sheaf contains the libraries of cloud providers.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	// The providers' libraries log errors that they also return, so the log is discarded.
	log.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line, and returns the exit code.
func run(ctx context.Context, out, errs io.Writer, args []string) int {
	a := &app{Program: cli.Program{Out: &cli.Output{Out: out, Err: errs}}}
	err := a.Run(ctx, a.rootCommand(), args)
	if err != nil {
		fmt.Fprintf(errs, "sheaf-archive: %s\n", cli.Describe(err, a.server))
	}
	return cli.ExitCode(err)
}

// app holds what all commands share: the global flags and the outputs.
type app struct {
	cli.Program
	timeout time.Duration
	server  string // address of the store; empty if the command does not connect to one
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sheaf-archive",
		Short: "The archive of a store in a bucket",
		Long: `An archive is a folder of objects in a bucket of S3, Google Cloud Storage or Azure, or on a file system.

URL is s3://BUCKET/PATH, gs://BUCKET/PATH, azblob://CONTAINER/PATH or file:///FOLDER. Options follow a ?:
for S3 region, endpoint, use_path_style=true and request_checksum_calculation=when_required. Credentials
come from the environment, as the provider's own tools take them.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found. Data goes to stdout, words to stderr.`,
		Version: version,
	}
	root.PersistentFlags().DurationVar(&a.timeout, "timeout", 2*time.Minute,
		"end the command after this time, whatever it does; 0: never. Unless it is given, only probe has an end")
	a.Flags(root)
	a.Check = func() error {
		if a.timeout < 0 {
			return fmt.Errorf("--timeout %v: must not be negative", a.timeout)
		}
		return nil
	}
	root.AddCommand(runCommand(a), releaseCommand(a), statusCommand(a), listCommand(a), showCommand(a),
		verifyCommand(a), catCommand(a), sourceCommand(a), devCommand(a), copyCommand(a), drillCommand(a), pointCommand(a),
		pruneCommand(a), probeCommand(a), keysCommand(a), versionCommand(a))
	return root
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: a.Body(func(context.Context, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			return a.Out.Print(map[string]any{"version": version, "go": runtime.Version(), "platform": platform},
				"sheaf-archive %s (%s, %s)\n", version, runtime.Version(), platform)
		}),
	}
}
