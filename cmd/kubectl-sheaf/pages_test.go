package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// A subcommand or flag that a page shows and the plugin has not misleads whoever types it.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "kubectl sheaf", 12, func() *cobra.Command {
		return newApp(io.Discard, io.Discard).command()
	})
}
