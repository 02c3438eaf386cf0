package main

import (
	"context"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// No page shows the operator's command line today, because the chart sets its flags. If a page does, the operator must
// accept the command.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf-operator", 0, func() *cobra.Command {
		return command(func(context.Context, options) error { return nil })
	})
}
