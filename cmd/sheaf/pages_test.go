package main

import (
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

// The program accepts every command line of sheaf in the documentation, so that readers can copy it.
func TestCommandsOfPagesAreAccepted(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf", 120, func() *cobra.Command {
		return (&app{Program: cli.Program{Out: &cli.Output{}}}).rootCommand()
	})
}
