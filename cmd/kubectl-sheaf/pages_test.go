package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// A page that shows a subcommand or flag the plugin lacks misleads readers who type it.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "kubectl sheaf", 12, func() *cobra.Command {
		return newApp(io.Discard, io.Discard).command()
	})
}
