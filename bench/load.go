package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// LoadOptions are the options of Load.
type LoadOptions struct {
	Options          // Options.Dir must be on a file system that supports O_DIRECT
	LargeBytes int64 // size of the dataset with 10 KB records
	SmallBytes int64 // size of the dataset with 1 KB records
	StartBytes int64 // size of each dataset whose starts are measured
	// FileSystems are names from layouts.FileSystemNames. Starts are measured on loop devices with these file systems.
	// If FileSystems is empty, they are measured on the file system of Dir.
	FileSystems []string
	// IndexRecords is the number of records for the parts about the start from the index and about linearity. The
	// comparison with only one group uses twice as many.
	IndexRecords int64
	PutTime      time.Duration
}

// loadParts are the parts of the benchmark, in the order in which they run.
var loadParts = parts[loadBench]{
	{"start", (*loadBench).starts},
	{"load", (*loadBench).residentLoads},
	{"index", (*loadBench).indexStart},
	{"get", (*loadBench).coldGets},
	{"put", (*loadBench).durablePuts},
	{"linear", (*loadBench).measureLinearity},
	{"group", (*loadBench).oneGroup},
}

// LoadParts returns the names of the parts.
func LoadParts() []string { return loadParts.names() }

type loadBench struct {
	opts LoadOptions
	outcome
}

// Load benchmarks the loading of groups, the start of shards, and the operations put and get. It compares the results
// with the limits of the machine.
func Load(ctx context.Context, opts LoadOptions) (*result.Report, error) {
	b := &loadBench{opts: opts, outcome: outcome{Options: opts.Options}}
	return loadParts.measure(ctx, b, &b.outcome, "load")
}

// withDataset fills a dataset, calls use() with the dataset, and removes it.
func (b *loadBench) withDataset(ctx context.Context, records int64, size int, use func(*dataset) error) (err error) {
	dir, err := os.MkdirTemp(b.dir, "data-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := fill(ctx, dir, groupCount, records, size, b.Say)
	if err != nil {
		return err
	}
	if err := layouts.Evict(ctx, dir, true); err != nil {
		return err
	}
	return use(d)
}

func (b *loadBench) residentLoads(ctx context.Context) error {
	for _, set := range []struct {
		bytes           int64
		size            int
		touched, fresh  float64
		memoryPerStored float64
	}{{b.opts.LargeBytes, 10 << 10, 0.95, 0.90, 1.06}, {b.opts.SmallBytes, 1 << 10, 0.92, 0.90, 0}} {
		if set.bytes == 0 {
			continue
		}
		err := b.withDataset(ctx, set.bytes/int64(set.size), set.size, func(d *dataset) error {
			return b.residentLoad(ctx, d, set.touched, set.fresh, set.memoryPerStored)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// residentLoad compares loading a dataset with a raw read of its segments. "Fresh" means memory that the process has
// never touched. "Touched" means memory that is already mapped: Sheaf takes it from the pool to which an earlier load
// returned it.
func (b *loadBench) residentLoad(ctx context.Context, d *dataset, touchedTarget, freshTarget,
	memoryTarget float64) error {
	names, err := d.segments()
	if err != nil {
		return err
	}
	raw, err := openRaw(names)
	if err != nil {
		return err
	}
	defer raw.close()
	load := func(loader func() *segio.Loader) rounds.Cell {
		return d.loadCell("load", float64(raw.bytes), group.Resident, loader, nil)
	}
	touched, err := b.touchedLoads(ctx, raw, load)
	if err != nil {
		return err
	}
	fresh, err := b.takeTurns(ctx,
		timedCell("raw", float64(raw.bytes), func() error {
			buffer, release, err := allocate(raw.bufferSize, false)
			if err != nil {
				return err
			}
			defer release()
			return raw.readInto(buffer)
		}),
		load(newLoaders().freshLoader),
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%.1f GB of %d B records", float64(raw.bytes)/1e9, d.size)
	memory := slices.Concat(touched.Of("load", perStored), fresh.Of("load", perStored))
	b.add(
		touched.against("cold Resident load, memory touched before, "+what, "B/s", "load", "raw", touchedTarget),
		fresh.against("cold Resident load, fresh memory, "+what, "B/s", "load", "raw", freshTarget),
		plain("memory per stored byte when Resident, "+what, "", memory, memoryTarget),
	)
	return nil
}

// touchedLoads compares loads into memory that both sides have touched before. It frees this memory before the
// comparison with fresh memory begins, because a small machine does not have enough memory for both.
func (b *loadBench) touchedLoads(
	ctx context.Context, raw *rawFiles, load func(func() *segio.Loader) rounds.Cell,
) (got turnResults, err error) {
	memory, release, err := allocate(raw.bufferSize, true)
	if err != nil {
		return got, err
	}
	defer release()
	loaders := newLoaders()
	defer loaders.close()
	ours := load(loaders.touchedLoader)
	if err := ours.Run(ctx, rounds.NewFigures()); err != nil {
		return got, err
	}
	return b.takeTurns(ctx, timedCell("raw", float64(raw.bytes), func() error { return raw.readInto(memory) }), ours)
}

// indexStart measures a start that reads hints.
func (b *loadBench) indexStart(ctx context.Context) error {
	return b.withDataset(ctx, b.opts.IndexRecords, 100, func(d *dataset) error {
		names, err := d.hints()
		if err != nil {
			return err
		}
		raw, err := openRaw(names)
		if err != nil {
			return err
		}
		defer raw.close()
		memory, release, err := allocate(raw.bufferSize, true)
		if err != nil {
			return err
		}
		defer release()
		loaders := newLoaders()
		defer loaders.close()
		records := float64(d.records)
		got, err := b.takeTurns(ctx,
			timedCell("raw", records, func() error { return raw.readInto(memory) }),
			d.loadCell("start", records, group.Index, loaders.freshLoader,
				func() error { return layouts.Evict(ctx, d.dir, true) }),
		)
		if err != nil {
			return err
		}
		million := records / 1e6
		name := fmt.Sprintf("Index start from hints, cold, %.1fM records", million)
		b.add(
			plain(name, "s", got.Of("start", loadSeconds), million/10).WithNote("the target is 1 s for 10M records"),
			plain("index memory per record, sized from hints", "B", got.Of("start", perRecord), 24),
			got.against("records per second of that start / of the raw read of the hints", "/s", "start", "raw", 0),
		)
		return nil
	})
}

// These constants determine how the random reads are measured.
const (
	getBytes = 10 << 10
	getReads = 8000 // number of gets in each variant and round
	hotIDs   = 2000 // number of hot records, which are read repeatedly

	alignedGet = (getBytes + 100 + vfs.DirectAlign - 1) &^ (vfs.DirectAlign - 1)
)

// coldGets compares random reads from a log with residency Index with raw random reads. Both read the same files with
// the same number of reads in flight. coldGets also compares reads of hot records with reads from the page cache.
func (b *loadBench) coldGets(ctx context.Context) error {
	return b.withDataset(ctx, b.opts.LargeBytes/getBytes, getBytes, func(d *dataset) error {
		names, err := d.segments()
		if err != nil {
			return err
		}
		loaders := newLoaders()
		defer loaders.close()
		for _, depth := range []int{16, 64} {
			cold, err := b.takeTurns(ctx,
				rounds.One("raw", func() (float64, error) { return rawRandom(names, getBytes+100, depth, getReads, readPlain) }),
				rounds.One("aio", func() (float64, error) { return rawRandom(names, getBytes+100, depth, getReads, readPiece) }),
				rounds.One("get", func() (float64, error) { return coldGet(ctx, d, loaders.freshLoader(), depth) }),
			)
			if err != nil {
				return err
			}
			hot, err := b.hotGets(ctx, d, loaders.freshLoader(), depth)
			if err != nil {
				return err
			}
			at := fmt.Sprintf("%d at a time / ", depth)
			b.add(
				cold.against("random cold Get of 10 KB, "+at+"raw O_DIRECT random read by so many threads", "/s",
					"get", "raw", 0.85),
				cold.against("the same, "+at+"by io_submit", "/s", "get", "aio", 0.85),
				hot.against(fmt.Sprintf("random Get of %d hot records of 10 KB, %sread from the page cache", hotIDs, at), "/s",
					"get", "raw", 0),
			)
		}
		return nil
	})
}

// coldGet reads random records after a start, when neither the page cache nor the log holds them.
func coldGet(ctx context.Context, d *dataset, loader *segio.Loader, depth int) (rate float64, err error) {
	loaded, err := d.loadCold(ctx, group.Index, loader)
	if err != nil {
		return 0, err
	}
	rate, err = perSecond(getReads, func() error { return getRandom(d, loaded, depth, getReads) })
	return rate, errors.Join(err, loaded.close())
}

// hotGets measures reads of records that were read before.
func (b *loadBench) hotGets(ctx context.Context, d *dataset, loader *segio.Loader, depth int) (
	got turnResults, err error,
) {
	loaded, err := d.load(ctx, group.Index, loader)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, loaded.close()) }()
	name := filepath.Join(d.dir, "hot")
	if err := os.WriteFile(name, randomBytes(hotIDs*alignedGet), 0o600); err != nil {
		return got, err
	}
	for range 3 {
		if err := getAmong(d, loaded, depth, 4*hotIDs, hotIDs); err != nil {
			return got, err
		}
	}
	return b.takeTurns(ctx,
		rounds.One("raw", func() (float64, error) { return cachedRandom(name, getBytes+100, depth, getReads) }),
		timedCell("get", getReads, func() error { return getAmong(d, loaded, depth, getReads, hotIDs) }),
	)
}

// getRandom reads n random records, with depth reads in flight at a time, and checks the records' size.
func getRandom(d *dataset, loaded logs, depth, n int) error {
	return getAmong(d, loaded, depth, n, d.records)
}

// getAmong is like getRandom, but reads only a subset of the records. The subset has the given number of records, the
// same number from each group.
func getAmong(d *dataset, loaded logs, depth, n int, among int64) error {
	groups := int64(len(loaded))
	each := d.records / groups
	among = min(among, each*groups)
	seed, stride := time.Now().UnixNano(), d.size+4096
	memory := make([]byte, depth*stride)
	return drive.Shared(depth, int64(n), func(worker int, i int64) error {
		pick := drive.Scatter(seed+i) % among
		id := pick%groups*each + pick/groups
		r, err := loaded[id/each].Get(id, group.GetOptions{Buffer: memory[worker*stride:][:0:stride]})
		if err != nil {
			return fmt.Errorf("id %d: %w", id, err)
		}
		if len(r.Data) != d.size {
			return fmt.Errorf("id %d: %d bytes, stored were %d", id, len(r.Data), d.size)
		}
		return nil
	})
}
