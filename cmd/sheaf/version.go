package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print what this program was built from: the tag of a release, or a commit where there is no tag.
Nothing has been released yet: the first release will be 0.1.0.`,
		GroupID: groupCare,
		Args:    cobra.NoArgs,
		RunE: a.Body(func(context.Context, []string) error {
			if a.Out.JSON {
				return a.Out.WriteJSON(map[string]any{
					"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(a.Out.Out, "sheaf %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		}),
	}
}
