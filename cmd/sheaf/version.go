package main

import (
	"context"
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print what this program was built from: the tag of a release, or a commit where there is no tag.
Nothing has been released yet: the first release will be 0.1.0.`,
		GroupID: groupCare,
		Args:    cobra.NoArgs,
		RunE: a.Body(func(context.Context, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			return a.Out.Print(map[string]any{"version": version, "go": runtime.Version(), "platform": platform},
				"sheaf %s (%s, %s)\n", version, runtime.Version(), platform)
		}),
	}
}
