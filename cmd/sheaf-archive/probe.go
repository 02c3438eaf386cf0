package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// objectsMax bounds the number of objects of one measurement, as the program has their names in memory.
const objectsMax = 1 << 20

// probeFlags are the flags of the command probe.
type probeFlags struct {
	bytes, objectBytes cli.Size
	parallel           int
}

// probeResult is what probe prints as JSON.
type probeResult struct {
	Object    string      `json:"object"`
	Deletable bool        `json:"deletable"`
	Kept      string      `json:"kept,omitempty"` // why an object of the probe remains
	Speed     *probeSpeed `json:"speed,omitempty"`
}

// probeSpeed is how fast the bucket was.
type probeSpeed struct {
	Objects         int     `json:"objects"`
	Bytes           int64   `json:"bytes"`
	UploadSeconds   float64 `json:"uploadSeconds"`
	DownloadSeconds float64 `json:"downloadSeconds"`
}

func probeCommand(a *app) *cobra.Command {
	f := probeFlags{objectBytes: archiver.SegmentBytes}
	cmd := &cobra.Command{
		Use:   "probe URL",
		Short: "Check that a bucket can keep an archive, and measure how fast it is",
		Long: `Creates a small object below URL/probe/, creates it again, which the bucket must refuse, reads it back,
finds it in a list, and deletes it. Objects of stores are not touched.

A bucket that lets the second object take the place of the first one is refused: two archivers could
overwrite each other in it.

With --bytes, it then creates objects of random bytes below URL/probe/, reads them back, compares them, deletes
them, and prints how fast that was. An archiver sends one object after another, and most of its bytes in segments
of --object-bytes. Give a longer --timeout for many bytes.`,
		Example: "  sheaf-archive probe 's3://backups/quotes?region=eu-central-1'\n" +
			"  sheaf-archive probe file:///mnt/backups/quotes --bytes 1GiB",
		Args: cobra.ExactArgs(1),
		RunE: a.onBucket(func(ctx context.Context, b bucket.Bucket, _ []string) error { return f.run(ctx, a.Out, b) }, true),
	}
	flags := cmd.Flags()
	flags.Var(&f.bytes, "bytes", "also measure how fast the bucket takes and returns this many bytes; 0: do not")
	flags.Var(&f.objectBytes, "object-bytes", "with --bytes: the size of one object")
	flags.IntVar(&f.parallel, "parallel", 1, "with --bytes: how many objects are sent or read at the same time, 1 to 64")
	return cmd
}

// run checks the bucket, and measures it if that was asked for.
func (f *probeFlags) run(ctx context.Context, out *cli.Output, b bucket.Bucket) error {
	if f.objectBytes < 1 || f.parallel < 1 || f.parallel > 64 {
		return cli.Usagef("--object-bytes must be at least 1, and --parallel 1 to 64")
	}
	if int64(f.bytes)/int64(f.objectBytes) >= objectsMax {
		return cli.Usagef("--bytes and --object-bytes make more than %d objects: give larger --object-bytes", objectsMax)
	}
	probed, err := bucket.Probe(ctx, b)
	if err != nil {
		return err
	}
	result := probeResult{Object: probed.Object, Deletable: probed.Kept == nil}
	if probed.Kept != nil {
		result.Kept = probed.Kept.Error()
		out.Sayf("%s remains, and pruning would not work: %s", probed.Object, result.Kept)
	}
	words := "the bucket can keep an archive\n"
	if f.bytes > 0 {
		s, err := bucket.MeasureSpeed(ctx, b, bucket.SpeedOptions{Bytes: int64(f.bytes), ObjectBytes: int64(f.objectBytes),
			Parallel: f.parallel})
		if s.Kept != nil {
			out.Sayf("objects of the measurement remain below %s: %s", bucket.ProbePrefix, s.Kept)
		}
		if err != nil {
			return err
		}
		result.Speed = &probeSpeed{Objects: s.Objects, Bytes: s.Bytes, UploadSeconds: s.Upload.Seconds(),
			DownloadSeconds: s.Download.Seconds()}
		words += fmt.Sprintf("upload %s, download %s (%s in %s)\n", rate(s.Bytes, s.Upload), rate(s.Bytes, s.Download),
			units.Bytes(s.Bytes), units.Count(int64(s.Objects), "object", "objects"))
	}
	return out.Print(result, "%s", words)
}

// rate returns words for a speed.
func rate(bytes int64, took time.Duration) string {
	return units.Bytes(int64(float64(bytes)/max(took.Seconds(), 1e-9))) + "/s"
}
