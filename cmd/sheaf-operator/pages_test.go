package main

import (
	"context"
	"testing"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// Pages leave the operator's flags to the chart: today none shows a command line of it. One that comes has to be taken.
func TestCommandsOfPagesAreTaken(t *testing.T) {
	pagetest.CheckTree(t, "../..", "sheaf-operator", 0, func() *cobra.Command {
		return command(func(context.Context, options) error { return nil })
	})
}
