package main

import (
	"context"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

func probeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "probe URL",
		Short: "Check that a bucket can keep an archive",
		Long: `Creates a small object below URL/probe/, creates it again, which the bucket must refuse, reads it back,
finds it in a list, and deletes it. Objects of stores are not touched.

A bucket that lets the second object take the place of the first one is refused: two archivers could
overwrite each other in it.`,
		Example: "  sheaf-archive probe 's3://backups/quotes?region=eu-central-1'\n" +
			"  sheaf-archive probe file:///mnt/backups/quotes",
		Args: cobra.ExactArgs(1),
		RunE: a.onBucket(func(ctx context.Context, b bucket.Bucket, _ []string) error {
			probed, err := bucket.Probe(ctx, b)
			if err != nil {
				return err
			}
			kept := ""
			if probed.Kept != nil {
				kept = probed.Kept.Error()
				a.Out.Sayf("%s remains, and pruning would not work: %s", probed.Object, kept)
			}
			return a.Out.Print(struct {
				Object    string `json:"object"`
				Deletable bool   `json:"deletable"`
				Kept      string `json:"kept,omitempty"`
			}{probed.Object, probed.Kept == nil, kept}, "the bucket can keep an archive\n")
		}, true),
	}
}
