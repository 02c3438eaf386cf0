// Command sheaf runs every part of Sheaf (shard, gateway, dev), and has the commands for records and administration.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sheaf.dev/sheaf/internal/local/cli"
)

// version is stamped by the build.
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
