package main

import (
	"context"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// The chart sets the operator's flags, so no page shows its command line today. If a page does, the operator must
// accept the command.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf-operator", 0, func() *cobra.Command {
		return command(func(context.Context, options) error { return nil })
	})
}
