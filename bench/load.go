package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// LoadOptions of Load.
type LoadOptions struct {
	Dir          string   // a temporary folder is made in it; must allow O_DIRECT
	Rounds       int      // at least RoundsMin
	LargeBytes   int64    // dataset of 10 KB records
	SmallBytes   int64    // dataset of 1 KB records
	StartBytes   int64    // each dataset of the starts
	FileSystems  []string // names of layouts.FileSystemNames on which starts are measured, on loop devices; empty: that of Dir
	IndexRecords int64    // dataset for the index-only start and for linearity; twice as many for one group
	Only         string   // one part only: start, load, index, put, get, linear, group; empty: all
	PutTime      time.Duration
	Say          func(string, ...any)
}

// Parts of the benchmark, in order.
var loadParts = parts[loadBench]{
	{"start", (*loadBench).starts},
	{"load", (*loadBench).residentLoads},
	{"index", (*loadBench).indexStart},
	{"get", (*loadBench).coldGets},
	{"put", (*loadBench).durablePuts},
	{"linear", (*loadBench).linearity},
	{"group", (*loadBench).oneGroup},
}

// LoadParts names the parts.
func LoadParts() []string { return loadParts.names() }

type loadBench struct {
	opts LoadOptions
	outcome
}

// Load measures loading, starting, putting and getting against what the device gives.
func Load(ctx context.Context, opts LoadOptions) (*result.Report, error) {
	b := &loadBench{opts: opts}
	return loadParts.measure(ctx, b, &b.outcome, "load", opts.Rounds, opts.Dir, opts.Only, opts.Say)
}

// withDataset fills a dataset, uses it and removes it.
func (b *loadBench) withDataset(ctx context.Context, records int64, size int, use func(*dataset) error) (err error) {
	dir, err := os.MkdirTemp(b.dir, "data-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := fill(ctx, dir, groupCount, records, size, b.opts.Say)
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

// residentLoad compares the load of a dataset with the raw read of its segments. Fresh: memory that the process has not
// touched. Touched: memory that is mapped already; our side takes it from its pool, where an earlier load left it.
func (b *loadBench) residentLoad(ctx context.Context, d *dataset, touchedTarget, freshTarget, memoryTarget float64) error {
	names, err := d.segments()
	if err != nil {
		return err
	}
	raw, err := openRaw(names)
	if err != nil {
		return err
	}
	defer raw.close()
	var memory []float64
	load := func(loader func() *segio.Loader) func() (float64, error) {
		return func() (float64, error) {
			var loaded logs
			rate, err := timed(float64(raw.bytes), func() (err error) {
				loaded, err = d.load(ctx, group.Resident, loader())
				return err
			})
			if err != nil {
				return 0, err
			}
			s := loaded.stats()
			if s.Records != d.records {
				return 0, fmt.Errorf("%d records were loaded, %d are stored", s.Records, d.records)
			}
			memory = append(memory, float64(s.MemoryBytes)/float64(s.StoredBytes))
			return rate, loaded.close()
		}
	}
	touched, err := b.touchedLoads(raw, load)
	if err != nil {
		return err
	}
	fresh, err := takeTurns(b.opts.Rounds, b.opts.Say,
		variant{"raw", func() (float64, error) {
			return timed(float64(raw.bytes), func() error {
				room, release, err := allocate(raw.room, false)
				if err != nil {
					return err
				}
				defer release()
				return raw.readInto(room)
			})
		}},
		variant{"load", load(newLoaders().fresh)},
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%.1f GB of %d B records", float64(raw.bytes)/1e9, d.size)
	b.add(
		against("cold Resident load, memory touched before, "+what, "B/s", touched["load"], touched["raw"], touchedTarget),
		against("cold Resident load, fresh memory, "+what, "B/s", fresh["load"], fresh["raw"], freshTarget),
		plain("memory per stored byte when Resident, "+what, "", memory, memoryTarget),
	)
	return nil
}

// touchedLoads compares in memory that both sides have touched before. It is given back before the comparison in fresh
// memory: together they need more than small machines have.
func (b *loadBench) touchedLoads(raw *rawFiles, load func(func() *segio.Loader) func() (float64, error)) (map[string][]float64, error) {
	memory, release, err := allocate(raw.room, true)
	if err != nil {
		return nil, err
	}
	defer release()
	loaders := newLoaders()
	defer loaders.close()
	if _, err := load(loaders.touched)(); err != nil {
		return nil, err
	}
	return takeTurns(b.opts.Rounds, b.opts.Say,
		variant{"raw", func() (float64, error) {
			return timed(float64(raw.bytes), func() error { return raw.readInto(memory) })
		}},
		variant{"load", load(loaders.touched)},
	)
}

// indexStart measures the start from hints.
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
		memory, release, err := allocate(raw.room, true)
		if err != nil {
			return err
		}
		defer release()
		var seconds, perRecord []float64
		loaders := newLoaders()
		defer loaders.close()
		figures, err := takeTurns(b.opts.Rounds, b.opts.Say,
			variant{"raw", func() (float64, error) {
				return timed(float64(d.records), func() error { return raw.readInto(memory) })
			}},
			variant{"start", func() (float64, error) {
				if err := layouts.Evict(ctx, d.dir, true); err != nil {
					return 0, err
				}
				var loaded logs
				rate, err := timed(float64(d.records), func() (err error) {
					loaded, err = d.load(ctx, group.Index, loaders.fresh())
					return err
				})
				if err != nil {
					return 0, err
				}
				s := loaded.stats()
				if s.Records != d.records {
					return 0, fmt.Errorf("%d records were loaded, %d are stored", s.Records, d.records)
				}
				seconds = append(seconds, float64(d.records)/rate)
				perRecord = append(perRecord, float64(s.MemoryBytes)/float64(s.Records))
				return rate, loaded.close()
			}},
		)
		if err != nil {
			return err
		}
		million := float64(d.records) / 1e6
		b.add(
			plain(fmt.Sprintf("Index start from hints, cold, %.1fM records", million), "s", seconds, million/10).WithNote("the target is 1 s for 10M records"),
			plain("index memory per record, sized from hints", "B", perRecord, 24),
			against("records per second of that start / of the raw read of the hints", "/s", figures["start"], figures["raw"], 0),
		)
		return nil
	})
}

// How records are read at random.
const (
	getBytes = 10 << 10
	getReads = 8000 // of one variant in one round
	hotIDs   = 2000 // read again and again

	alignedGet = (getBytes + 100 + vfs.DirectAlign - 1) &^ (vfs.DirectAlign - 1)
)

// coldGets compares random reads of an Index-resident log with raw random reads of the same files at the same depth,
// and those of records that are read often with reads of the same files from the page cache.
func (b *loadBench) coldGets(ctx context.Context) error {
	return b.withDataset(ctx, b.opts.LargeBytes/getBytes, getBytes, func(d *dataset) error {
		names, err := d.segments()
		if err != nil {
			return err
		}
		loaders := newLoaders()
		defer loaders.close()
		for _, depth := range []int{16, 64} {
			cold, err := takeTurns(b.opts.Rounds, b.opts.Say,
				variant{"raw", func() (float64, error) { return rawRandom(names, getBytes+100, depth, getReads, readPlain) }},
				variant{"aio", func() (float64, error) { return rawRandom(names, getBytes+100, depth, getReads, readPiece) }},
				variant{"get", func() (float64, error) { return coldGet(ctx, d, loaders.fresh(), depth) }},
			)
			if err != nil {
				return err
			}
			hot, err := b.hotGets(ctx, d, loaders.fresh(), depth)
			if err != nil {
				return err
			}
			b.add(
				against(fmt.Sprintf("random cold Get of 10 KB, %d at a time / raw O_DIRECT random read by so many threads", depth), "/s", cold["get"], cold["raw"], 0.85),
				against(fmt.Sprintf("the same, %d at a time / by io_submit", depth), "/s", cold["get"], cold["aio"], 0.85),
				against(fmt.Sprintf("random Get of %d hot records of 10 KB, %d at a time / read from the page cache", hotIDs, depth), "/s", hot["get"], hot["raw"], 0),
			)
		}
		return nil
	})
}

// coldGet reads random records after a start: neither the page cache nor the log has seen them.
func coldGet(ctx context.Context, d *dataset, loader *segio.Loader, depth int) (rate float64, err error) {
	if err := layouts.Evict(ctx, d.dir, true); err != nil {
		return 0, err
	}
	loaded, err := d.load(ctx, group.Index, loader)
	if err != nil {
		return 0, err
	}
	rate, err = timed(getReads, func() error { return getRandom(d, loaded, depth, getReads) })
	return rate, errors.Join(err, loaded.close())
}

// hotGets reads records that were read before.
func (b *loadBench) hotGets(ctx context.Context, d *dataset, loader *segio.Loader, depth int) (_ map[string][]float64, err error) {
	loaded, err := d.load(ctx, group.Index, loader)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, loaded.close()) }()
	name := filepath.Join(d.dir, "hot")
	if err := os.WriteFile(name, randomBytes(hotIDs*alignedGet), 0o600); err != nil {
		return nil, err
	}
	for range 3 {
		if err := getAmong(d, loaded, depth, 4*hotIDs, hotIDs); err != nil {
			return nil, err
		}
	}
	return takeTurns(b.opts.Rounds, b.opts.Say,
		variant{"raw", func() (float64, error) { return cachedRandom(name, getBytes+100, depth, getReads) }},
		variant{"get", func() (float64, error) {
			return timed(getReads, func() error { return getAmong(d, loaded, depth, getReads, hotIDs) })
		}},
	)
}

// getRandom reads n random records, depth at a time, and checks their size.
func getRandom(d *dataset, loaded logs, depth, n int) error {
	return getAmong(d, loaded, depth, n, d.records)
}

// getAmong is getRandom among the first so many records, those of all groups counted in turn.
func getAmong(d *dataset, loaded logs, depth, n int, among int64) error {
	groups := int64(len(loaded))
	each := d.records / groups
	among = min(among, each*groups)
	seed, room := time.Now().UnixNano(), d.size+4096
	memory := make([]byte, depth*room)
	return shared(depth, int64(n), func(worker int, i int64) error {
		pick := scatter(seed+i) % among
		id := pick%groups*each + pick/groups
		r, err := loaded[id/each].Get(id, group.GetOptions{Buffer: memory[worker*room:][:0:room]})
		if err != nil {
			return fmt.Errorf("id %d: %w", id, err)
		}
		if len(r.Data) != d.size {
			return fmt.Errorf("id %d: %d bytes, stored were %d", id, len(r.Data), d.size)
		}
		return nil
	})
}
