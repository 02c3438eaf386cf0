package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/bench/peers/stores"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// These are the keys of an embedded store's metrics in the tables. If a step has several metrics, the first one has
// the step's name.
const (
	fillRate    = "fill"
	startTime   = "start"
	startPeak   = "peak"
	startAnon   = "anon"
	coldRate    = "cold"
	warmRate    = "warm"
	updateRate  = "update"
	compactTime = "compact"
	diskFilled  = "disk"
	diskCompact = "disk-compact"
)

var embeddedColumns = []result.Column{
	{Key: fillRate, Title: "durable fill", Unit: "/s", Better: result.Higher},
	{Key: startTime, Title: "start until all in memory", Unit: "s", Better: result.Lower},
	{Key: startPeak, Title: "peak memory then", Unit: "B", Better: result.Lower},
	{Key: startAnon, Title: "of it not of files", Unit: "B", Better: result.Lower},
	{Key: coldRate, Title: "cold get", Unit: "/s", Better: result.Higher},
	{Key: warmRate, Title: "warm get", Unit: "/s", Better: result.Higher},
	{Key: updateRate, Title: "update of half", Unit: "/s", Better: result.Higher},
	{Key: compactTime, Title: "compact", Unit: "s", Better: result.Lower},
	{Key: diskFilled, Title: "on disk", Unit: "B", Better: result.Lower},
	{Key: diskCompact, Title: "on disk, updated and compacted", Unit: "B", Better: result.Lower},
}

// embedded compares the stores that run inside a process, using records of one size. The stores take turns in every
// round. If a peer fails, its row shows the error, and the comparison continues without it. If Sheaf fails, the
// benchmark is aborted.
func (b *bench) embedded(ctx context.Context, size int, records int64) (*rounds.Set, error) {
	kinds := b.kinds()
	cells := make([]rounds.Cell, 0, len(kinds))
	for _, k := range kinds {
		cells = append(cells, rounds.Cell{
			Key: k.Name, Finding: func(error) bool { return !k.Ours },
			Run: func(ctx context.Context, f *rounds.Figures) error { return b.oneStore(ctx, &k, size, records, f) },
		})
	}
	set := rounds.New()
	return set, set.Measure(ctx, cells, rounds.Options{Rounds: b.opts.rounds, Each: func(p rounds.Progress) {
		if p.Ended {
			b.say("%d B, round %d of %d: %s %.0f s", size, p.Round, b.opts.rounds, p.Key, p.Took.Seconds())
		}
	}})
}

func (b *bench) kinds() []store.Kind {
	all := stores.All()
	if len(b.opts.stores) == 0 {
		return all
	}
	var some []store.Kind
	for _, k := range all {
		if b.opts.stores[k.Name] {
			some = append(some, k)
		}
	}
	return some
}

// oneStore runs all steps with one store.
func (b *bench) oneStore(ctx context.Context, k *store.Kind, size int, records int64, f *rounds.Figures) (err error) {
	dir, err := os.MkdirTemp(b.dir, "store-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, step := range []string{fillRate, startTime, coldRate, warmRate, updateRate, compactTime} {
		j := job{
			Store: k.Name, Step: step, Dir: dir, Size: size, Records: records, Callers: fillCallers, Batch: fillBatch,
			Workers: loadWorkers, Gets: min(records/10, 20_000), Time: b.opts.time,
		}
		if step == startTime || step == coldRate {
			if err := dropCaches(ctx, dir); err != nil {
				return fmt.Errorf("making the caches cold: %w", err)
			}
		}
		if step == startTime || step == coldRate || step == warmRate {
			j.Callers = getCallers
		}
		o, err := j.run(ctx)
		if err != nil {
			return err
		}
		switch step {
		case startTime:
			f.Set(startTime, o.Seconds)
			f.Set(startPeak, float64(o.PeakBytes))
			f.Set(startAnon, float64(o.AnonBytes))
		case compactTime:
			f.Set(compactTime, o.Seconds)
		default:
			f.Set(step, o.rate())
		}
		if disk := map[string]string{fillRate: diskFilled, compactTime: diskCompact}[step]; disk != "" {
			bytes, err := allocated(dir)
			if err != nil {
				return err
			}
			f.Set(disk, float64(bytes))
		}
	}
	return nil
}

// allocated returns how many bytes the file system has allocated for the files in a folder.
func allocated(dir string) (bytes int64, err error) {
	unix.Sync() // some file systems allocate space only when they write data out
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += s.Blocks * 512
		}
		return nil
	})
	return bytes, err
}

// dropsAll reports whether this program may drop the caches of the whole machine. Otherwise it drops only the pages of
// the files, and the kernel keeps its cached names and inodes.
var dropsAll = drive.MayDropCaches

func dropCaches(ctx context.Context, dir string) error {
	unix.Sync()
	if dropsAll() {
		return drive.DropCaches()
	}
	return layouts.Evict(ctx, dir, false)
}

// embeddedTable creates the table for one record size.
func (b *bench) embeddedTable(size int, records int64, found *rounds.Set) result.Table {
	t := result.Table{
		ID: fmt.Sprintf("embedded-%d", size), Columns: embeddedColumns,
		Title: fmt.Sprintf("In process: %s of %s", result.Format(float64(records), "records"), bytesName(size)),
		About: "Each store as it is used in a process; every step in a process of its own. Records that all were read into " +
			"memory are copied there by the peers; ours keeps its files' images with an index.",
	}
	for _, k := range b.kinds() {
		t.Rows = append(t.Rows, found.Row(k.Name, result.Labels("store", k.Name)))
	}
	return t
}

// embeddedRatios compares Sheaf, in each metric, with the peer that is best in that metric.
func (b *bench) embeddedRatios(size int, found *rounds.Set) (ratios []result.Ratio) {
	var peers []string
	for _, k := range b.kinds() {
		if !k.Ours {
			peers = append(peers, k.Name)
		}
	}
	startTarget := 0.0
	if size >= 10<<10 {
		startTarget = 1.5
	}
	for _, c := range []struct {
		what, key, unit string
		faster, atMost  bool
		target          float64
	}{
		{"start until all is in memory", startTime, "s", true, false, startTarget},
		{"durable fill", fillRate, "/s", false, false, 1},
		{"warm get in process", warmRate, "/s", false, false, 1},
		{"cold get", coldRate, "/s", false, false, 0},
		{"update of half", updateRate, "/s", false, false, 0},
		{"peak memory with all of it", startPeak, "B", false, true, 1},
		{"on disk after the fill", diskFilled, "B", false, true, 1},
		{"on disk, updated and compacted", diskCompact, "B", false, true, 1},
	} {
		r := result.Ratio{Unit: c.unit, Faster: c.faster, AtMost: c.atMost, Target: c.target}
		best, limit := found.Best(peers, c.key, c.faster || c.atMost)
		r.Labels = result.Labels("what", c.what, "records", bytesName(size))
		r.Ours, r.Limit, r.Note = found.Of(stores.All()[0].Name, c.key), limit, "best peer: none"
		if best >= 0 {
			r.Note = "best peer: " + peers[best]
		}
		if len(r.Ours) == 0 || best < 0 {
			r.Missed = "ours or every peer was left out of this run"
		}
		ratios = append(ratios, r)
	}
	return ratios
}

func bytesName(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%d KiB", n/1024)
	}
	return fmt.Sprintf("%d B", n)
}
