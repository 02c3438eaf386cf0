package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// The plugin accepts every subcommand and flag that the documentation mentions, because readers type them.
func TestCommandsOfPagesAreAccepted(t *testing.T) {
	pagetest.CheckTree(t, "../..", "kubectl sheaf", 12, func() *cobra.Command {
		return newApp(io.Discard, io.Discard).command()
	})
}
