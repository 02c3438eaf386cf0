package main

import (
	"context"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// The operator must accept every command line of the operator in the documentation. At present there is none, because
// the chart sets the flags.
func TestCommandsOfPagesAreAccepted(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf-operator", 0, func() *cobra.Command {
		return command(func(context.Context, options) error { return nil })
	})
}
