package main

import (
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

// Every subcommand and every flag that the documentation mentions must exist, because readers type them.
func TestCommandsOfPagesAreAccepted(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf-bench", 10, func() *cobra.Command {
		return (&program{Program: cli.Program{Out: &cli.Output{}}}).root()
	})
}
