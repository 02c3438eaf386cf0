package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/bench/peers/stores"
	"sheaf.dev/sheaf/bench/result"
)

// Figures of an embedded store, by their keys in tables.
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

// figures of the rounds, by name of store and key.
type figures map[string]map[string][]float64

func (f figures) add(name, key string, v float64) {
	if f[name] == nil {
		f[name] = map[string][]float64{}
	}
	f[name][key] = append(f[name][key], v)
}

// embedded compares the stores of one process with records of one size. All take their turn in every round.
func (b *bench) embedded(ctx context.Context, size int, records int64) (figures, map[string]string, error) {
	found, missing := figures{}, map[string]string{}
	kinds := b.kinds()
	for round := range b.opts.rounds {
		for i := range kinds {
			k := &kinds[(i+round)%len(kinds)]
			if missing[k.Name] != "" {
				continue
			}
			begin := time.Now()
			if err := b.oneStore(ctx, k, size, records, found); ctx.Err() != nil {
				return found, missing, context.Cause(ctx)
			} else if err != nil {
				// A peer that fails has a row that says so; the others go on. Ours must not fail.
				if k.Ours {
					return found, missing, err
				}
				missing[k.Name] = err.Error()
			}
			b.say("%d B, round %d of %d: %s %.0f s", size, round+1, b.opts.rounds, k.Name, time.Since(begin).Seconds())
		}
	}
	return found, missing, nil
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

// oneStore takes a store through all steps.
func (b *bench) oneStore(ctx context.Context, k *store.Kind, size int, records int64, found figures) (err error) {
	dir, err := os.MkdirTemp(b.dir, "store-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	do := func(step string) (o outcome, err error) {
		j := job{Store: k.Name, Step: step, Dir: dir, Size: size, Records: records, Callers: fillCallers, Batch: fillBatch, Workers: loadWorkers, Gets: min(records/10, 20_000), Time: b.opts.time}
		switch step {
		case "cold", "start":
			if err := dropCaches(dir); err != nil {
				return o, fmt.Errorf("making the caches cold: %w", err)
			}
			fallthrough
		case "warm":
			j.Callers = getCallers
		}
		return j.run(ctx)
	}
	for _, step := range []string{"fill", "start", "cold", "warm", "update", "compact"} {
		o, err := do(step)
		if err != nil {
			return err
		}
		switch step {
		case "fill":
			found.add(k.Name, fillRate, o.rate())
			err = addDisk(found, k.Name, diskFilled, dir)
		case "start":
			found.add(k.Name, startTime, o.Seconds)
			found.add(k.Name, startPeak, float64(o.PeakBytes))
			found.add(k.Name, startAnon, float64(o.AnonBytes))
		case "cold":
			found.add(k.Name, coldRate, o.rate())
		case "warm":
			found.add(k.Name, warmRate, o.rate())
		case "update":
			found.add(k.Name, updateRate, o.rate())
		case "compact":
			found.add(k.Name, compactTime, o.Seconds)
			err = addDisk(found, k.Name, diskCompact, dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func addDisk(found figures, name, key, dir string) error {
	bytes, err := allocated(dir)
	found.add(name, key, float64(bytes))
	return err
}

// allocated is what a folder takes on disk.
func allocated(dir string) (bytes int64, err error) {
	unix.Sync() // some file systems allocate when they write
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

// dropsAll tells whether this program may empty the machine's caches; else it drops the pages of the files only, which
// leaves what the kernel knows of folders and files.
var dropsAll = func() bool {
	return os.Geteuid() == 0 && unix.Access("/proc/sys/vm/drop_caches", unix.W_OK) == nil
}

func dropCaches(dir string) error {
	unix.Sync()
	if dropsAll() {
		return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
	}
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		return errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	})
}

// embeddedTable makes the table of one size.
func (b *bench) embeddedTable(size int, records int64, found figures, missing map[string]string) result.Table {
	t := result.Table{
		ID: fmt.Sprintf("embedded-%d", size), Title: fmt.Sprintf("In process: %s of %s", result.Format(float64(records), "records"), bytesName(size)),
		About:   "Each store as it is used in a process; every step in a process of its own. Records that all were read into memory are copied there by the peers; ours keeps its files' images with an index.",
		Columns: embeddedColumns,
	}
	for _, k := range b.kinds() {
		row := result.Row{Labels: result.Labels("store", k.Name), Missing: missing[k.Name], Cells: map[string]result.Value{}}
		if row.Missing == "" {
			for key, values := range found[k.Name] {
				row.Cells[key] = result.Of(values...)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// embeddedRatios hold ours against the best peer in each figure.
func (b *bench) embeddedRatios(size int, found figures, missing map[string]string) (ratios []result.Ratio) {
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
		best, name := b.best(found, missing, c.key, c.faster || c.atMost)
		r.Labels = result.Labels("what", c.what, "records", bytesName(size))
		r.Note = "best peer: " + name
		ours := found[stores.All()[0].Name][c.key]
		if r.Ours, r.Limit = ours, best; len(ours) == 0 || len(best) == 0 {
			r.Missed = "ours or every peer was left out of this run"
		}
		ratios = append(ratios, r)
	}
	return ratios
}

// best finds the peer with the best median.
func (b *bench) best(found figures, missing map[string]string, key string, less bool) (values []float64, name string) {
	name = "none"
	for _, k := range b.kinds() {
		v := found[k.Name][key]
		if k.Ours || missing[k.Name] != "" || len(v) == 0 {
			continue
		}
		is, was := result.Of(v...).Median, result.Of(values...).Median
		if values == nil || less && is < was || !less && is > was {
			values, name = v, k.Name
		}
	}
	return values, name
}

func bytesName(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%d KiB", n/1024)
	}
	return fmt.Sprintf("%d B", n)
}
