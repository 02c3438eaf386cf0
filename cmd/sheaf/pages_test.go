package main

import (
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

// If a page shows a subcommand or a flag that the program lacks, it misleads readers who type that command.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf", 120, func() *cobra.Command {
		return (&app{Program: cli.Program{Out: &cli.Output{}}}).rootCommand()
	})
}
