package main

import (
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

// A page that shows a subcommand or flag the program lacks misleads readers who type it.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf", 120, func() *cobra.Command {
		return (&app{Program: cli.Program{Out: &cli.Output{}}}).rootCommand()
	})
}
