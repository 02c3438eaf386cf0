package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group"
)

// storageFlags are the flags of dev and shard about the storage on a volume.
type storageFlags struct {
	residency     string
	medium        string
	memory        cli.Size
	reserve       cli.Size
	segment       cli.Size
	versions      int
	minAge        time.Duration
	compactOff    bool
	compactEvery  time.Duration
	compactShare  float64
	compactRate   cli.Size
	compactAtSize cli.Size
	hold          cli.Size
	viewsHeld     cli.Size
}

func (f *storageFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.residency, "residency", "index",
		"what is kept in memory: index (ids and places) or resident (the data)")
	flags.StringVar(&f.medium, "medium", "auto", "what the disk is: ssd, hdd or auto")
	flags.Var(&f.memory, "memory-limit", "of index and resident data of a shard, as in 8GiB; 0: none")
	flags.Var(&f.reserve, "reserve",
		"kept free on the disk for compaction and deletes; 0: 5 %, at least 16 MiB and at most 1 GiB")
	flags.Var(&f.segment, "segment-bytes", "size at which a segment is sealed; 0: 256 MiB")
	flags.IntVar(&f.versions, "retention-versions", 1, "newest versions of a record that compaction keeps")
	flags.DurationVar(&f.minAge, "retention-min-age", 0,
		"compaction keeps a version for this time after it was superseded")
	flags.BoolVar(&f.compactOff, "compaction-off", false, "compact only when asked (sheaf group compact)")
	flags.DurationVar(&f.compactEvery, "compaction-interval", 30*time.Second,
		"between looks at all groups for what can be compacted; one that has filled a segment is looked at at once")
	flags.Float64Var(&f.compactShare, "compaction-share", 0.5,
		"share of the sealed segments and blobs of a group that must be superseded before it is compacted")
	flags.Var(&f.compactAtSize, "compaction-min",
		"superseded bytes that a group must hold before it is compacted, unless with the newest segment they are more than "+
			"one segment; 0: 64 MiB; less on a small volume: an eighth of it, divided by its groups")
	flags.Var(&f.compactRate, "compaction-rate", "bytes per second; 0: 64 MiB")
	flags.Var(&f.viewsHeld, "views-held-max",
		"superseded bytes of all groups that compaction keeps for views, or the oldest breaks; 0: 10 % of the volume")
	flags.Var(&f.hold, "archive-hold-max",
		"superseded bytes of all groups that compaction keeps until an archive has them; 0: 5 % of the volume")
	cli.Complete(cmd, "residency", "index", "resident")
	cli.Complete(cmd, "medium", "ssd", "hdd", "auto")
}

// fill copies the flags to a shard's configuration.
func (f *storageFlags) fill(c *shard.Config) error {
	residencies := map[string]group.Residency{"index": group.Index, "resident": group.Resident}
	residency, ok := residencies[strings.ToLower(f.residency)]
	if !ok {
		return cli.Usagef("--residency %q: must be index or resident", f.residency)
	}
	media := map[string]shard.Medium{"ssd": shard.SSD, "hdd": shard.HDD, "auto": shard.Auto}
	medium, ok := media[strings.ToLower(f.medium)]
	if !ok {
		return cli.Usagef("--medium %q: must be ssd, hdd or auto", f.medium)
	}
	if f.versions < 1 {
		return cli.Usagef("--retention-versions %d: must be at least 1", f.versions)
	}
	if f.minAge < 0 {
		return cli.Usagef("--retention-min-age %v: must not be negative", f.minAge)
	}
	if f.compactEvery <= 0 {
		return cli.Usagef("--compaction-interval %v: must be positive", f.compactEvery)
	}
	if !(f.compactShare > 0 && f.compactShare <= 1) { // NaN also fails this check
		return cli.Usagef("--compaction-share %v: must lie above 0 and up to 1", f.compactShare)
	}
	if f.segment != 0 && (f.segment < segmentBytesMin || f.segment > segmentBytesMax) {
		return cli.Usagef("--segment-bytes %d: must be %d to %d, or 0 for 256 MiB", f.segment, segmentBytesMin,
			int64(segmentBytesMax))
	}
	c.Residency, c.Medium = residency, medium
	c.MemoryLimitBytes, c.ReserveBytes, c.SegmentBytes = int64(f.memory), int64(f.reserve), int64(f.segment)
	c.Retention = group.Retention{Versions: f.versions, MinAge: f.minAge}
	c.Compaction = shard.Compaction{
		Off: f.compactOff, Interval: f.compactEvery, SupersededShareMin: f.compactShare,
		SupersededBytesMin: int64(f.compactAtSize), RateBytesPerSecond: int64(f.compactRate),
		HoldBytesMax: int64(f.hold), ViewsHeldMax: int64(f.viewsHeld),
	}
	return nil
}

// A segment must hold several entries, and its offsets must fit into the index.
const (
	segmentBytesMin = 64 << 10
	segmentBytesMax = 1 << 30
)

// logFlags are the flags about log output to standard error.
type logFlags struct {
	level  string
	format string
}

func (f *logFlags) add(cmd *cobra.Command, level string) {
	cmd.Flags().StringVar(&f.level, "log-level", level, "what to log: debug, info, warn or error")
	cmd.Flags().StringVar(&f.format, "log-format", "text", "text or json")
	cli.Complete(cmd, "log-level", "debug", "info", "warn", "error")
	cli.Complete(cmd, "log-format", "text", "json")
}

func (f *logFlags) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, cli.Usagef("--log-level %q: must be debug, info, warn or error", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	var logger *slog.Logger
	switch f.format {
	case "text":
		logger = slog.New(slog.NewTextHandler(os.Stderr, options))
	case "json":
		logger = slog.New(slog.NewJSONHandler(os.Stderr, options))
	default:
		return nil, cli.Usagef("--log-format %q: must be text or json", f.format)
	}
	slog.SetDefault(logger)
	return logger, nil
}

// stopGracefully calls stop() with a context that ends after stopPatience or at a second signal.
func stopGracefully(out *cli.Output, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	out.Sayf("stopping; once more stops at once")
	if err := stop(ctx); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	return nil
}

const stopPatience = 30 * time.Second

// parseMode reads the value of --routing.
func parseMode(text string) (placement.Mode, error) {
	for _, mode := range []placement.Mode{placement.Hash, placement.Named} {
		if strings.EqualFold(text, string(mode)) {
			return mode, nil
		}
	}
	return "", cli.Usagef("--routing %q: must be hash or named", text)
}
