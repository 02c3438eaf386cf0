package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// The plugin accepts each of its subcommands and flags that a page shows, so that readers can type them.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "kubectl sheaf", 12, func() *cobra.Command {
		return newApp(io.Discard, io.Discard).command()
	})
}
