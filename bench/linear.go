package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// linear compares one large store of LoadOptions.IndexRecords records with several small stores. oneGroup uses a large
// store with twice as many records, and small stores with a tenth of the large store's records. Both sides have the
// same record size and the same number of groups, so only the number of records in a group differs.
const (
	linearRecords = 100_000 // number of records in a small store, except in oneGroup
	linearBytes   = 100     // bytes of data in each record
	linearGets    = 50_000  // number of gets on one side in one round
	linearDepth   = 16      // number of concurrent cold gets
	linearTarget  = 1.2
)

// linear compares the time per record in one large store with the time per record in several small stores. Both sides
// have the same total number of records and do the same work in a round, because they read the same number of bytes,
// each byte once, into the same amount of memory.
type linear struct {
	*loadBench
	groups  int   // the number of groups in each store
	records int64 // the number of records in the large store
	each    int64 // the number of records in each small store

	large []*dataset // the only element is the large store
	small []*dataset
	empty []*dataset // like small, but with one record in each group, to measure the fixed cost of a start
}

// measureLinearity compares the time per record for load, get and put between a small store and a large one.
func (b *loadBench) measureLinearity(ctx context.Context) error {
	if b.opts.IndexRecords <= linearRecords {
		b.Say("  left out: it needs more than %d records", linearRecords)
		return nil
	}
	l := &linear{loadBench: b, groups: groupCount, records: b.opts.IndexRecords, each: linearRecords}
	if err := l.run(ctx, l.measure); err != nil {
		return err
	}
	return b.linearCalls(ctx)
}

// oneGroup compares loads of stores that have only one group. In the large store, this group has as many records as a
// group would have if a store were created with too few groups.
func (b *loadBench) oneGroup(ctx context.Context) error {
	l := &linear{loadBench: b, groups: 1, records: 2 * b.opts.IndexRecords, each: b.opts.IndexRecords / 5}
	return l.run(ctx, func(ctx context.Context) error {
		if err := l.loads(ctx, "Index load", group.Index, linearTarget, newLoaders().freshLoader); err != nil {
			return err
		}
		return l.compareResident(ctx)
	})
}

// run fills the stores, measures them and removes them.
func (l *linear) run(ctx context.Context, measure func(context.Context) error) error {
	dir := filepath.Join(l.dir, "linear")
	err := l.fill(ctx, dir)
	if err == nil {
		err = measure(ctx)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func (l *linear) fill(ctx context.Context, dir string) error {
	stores := int(l.records / l.each)
	for _, side := range []struct {
		name    string
		sets    *[]*dataset
		stores  int
		records int64
	}{{"large", &l.large, 1, l.records}, {"small", &l.small, stores, l.each},
		{"empty", &l.empty, min(stores, 10), int64(l.groups)}} {
		begin := time.Now()
		for i := range side.stores {
			d, err := fill(ctx, filepath.Join(dir, side.name, strconv.Itoa(i)), l.groups, side.records, linearBytes,
				func(string, ...any) {})
			if err != nil {
				return err
			}
			*side.sets = append(*side.sets, d)
		}
		took := time.Since(begin).Seconds()
		l.Say("  filled %d x %d records of %d bytes in %.1f s", side.stores, side.records, linearBytes, took)
	}
	return nil
}

func (l *linear) measure(ctx context.Context) error {
	if err := l.loads(ctx, "Index load", group.Index, linearTarget, newLoaders().freshLoader); err != nil {
		return err
	}
	if err := l.compareResident(ctx); err != nil {
		return err
	}
	if err := l.compareGets(ctx, "cold Get, Index", group.Index, l.small, linearTarget); err != nil {
		return err
	}
	// On the small side, all gets read the same small store, so its records stay in the processor's caches. Each get from
	// the large store misses these caches several times. This row has no target, because its ratio mostly shows the
	// effect of the caches. linearCalls compares whole calls instead.
	return l.compareGets(ctx, "Get inside the process, Resident", group.Resident, l.small[:1], 0)
}

// linearName returns the name of the row that compares a large store with a small one.
func linearName(what string, groups int, large, small int64) string {
	in := ""
	if groups == 1 {
		in = " in one group"
	}
	return fmt.Sprintf("time per record of %s, %.1fM records%s / %.1fM", what, float64(large)/1e6, in, float64(small)/1e6)
}

func (l *linear) name(what string) string { return linearName(what, l.groups, l.records, l.each) }

// cost is the time that one record takes, in nanoseconds: the elapsed time, and the CPU time that the kernel reports
// for this process.
type cost struct{ clock, processor float64 }

// stopwatch adds up the cost of the periods between start and stop.
type stopwatch struct {
	begin     time.Time
	beginCPU  int64
	clock     int64
	processor int64
}

func (w *stopwatch) start() { w.begin, w.beginCPU = time.Now(), processorTime() }

func (w *stopwatch) stop() {
	w.clock += time.Since(w.begin).Nanoseconds()
	w.processor += processorTime() - w.beginCPU
}

func (w *stopwatch) per(records int64) cost {
	return cost{float64(w.clock) / float64(records), float64(w.processor) / float64(records)}
}

// processorTime returns the CPU time that this process has used, in nanoseconds.
func processorTime() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // Getrusage cannot fail for the calling process
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// costFigure is a function that performs one measurement.
type costFigure func() (cost, error)

// These are the metrics of each side in compareCosts.
const (
	clock     = "clock"
	processor = "processor"
)

// compareCosts measures the sides alternately. It adds a row with the given name that compares the large side with
// the small one. If target is 0, the row has no target. It returns the costs of all sides.
func (b *loadBench) compareCosts(
	ctx context.Context, name string, target float64, sides map[string]costFigure,
) (turnResults, error) {
	cells := make([]rounds.Cell, 0, len(sides))
	for _, side := range slices.Sorted(maps.Keys(sides)) {
		cells = append(cells, rounds.Cell{Key: side, Run: func(_ context.Context, f *rounds.Figures) error {
			c, err := sides[side]()
			f.Set(clock, c.clock)
			f.Set(processor, c.processor)
			return err
		}})
	}
	got, err := b.takeTurns(ctx, cells...)
	if err != nil {
		return got, fmt.Errorf("%s: %w", name, err)
	}
	large, small := median(got.Of("large", processor)), median(got.Of("small", processor))
	b.add(got.atMost(name, "ns", clock, "large", "small", target).
		WithNote(fmt.Sprintf("processor time: %.0f ns / %.0f ns, ratio %.2f", large, small, large/small)))
	return got, nil
}

// compareResident compares Resident loads of the large store with those of the small stores. It does so twice: once
// into memory that was touched before, and once into fresh memory. The second comparison depends more on the machine
// than on Sheaf, because the large store gets huge pages and the small stores get ordinary pages. If a hypervisor takes
// back free huge pages (free page reporting), touching such a page for the first time costs ten times as much as
// touching a page that the guest still has.
func (l *linear) compareResident(ctx context.Context) error {
	loaders := newLoaders()
	defer loaders.close()
	for _, sets := range [][]*dataset{l.large, l.small} {
		if _, err := loadAll(ctx, sets, group.Resident, loaders.touchedLoader); err != nil {
			return err
		}
	}
	if err := l.loads(ctx, "Resident load", group.Resident, linearTarget, loaders.touchedLoader); err != nil {
		return err
	}
	loaders.close() // frees the reused memory, because the next loads need the space for fresh memory
	return l.loads(ctx, "Resident load, fresh memory", group.Resident, 0, loaders.freshLoader)
}

// loads compares cold loads. One row compares the whole time per record. A second row first subtracts the fixed time
// of a start, which does not depend on the number of records. In a small store, the fixed time is divided among few
// records, so it is a large part of the time per record.
func (l *linear) loads(ctx context.Context, what string, residency group.Residency, target float64,
	loader func() *segio.Loader) error {
	side := func(sets []*dataset) costFigure {
		return func() (cost, error) { return loadAll(ctx, sets, residency, loader) }
	}
	got, err := l.compareCosts(ctx, l.name(what), target, map[string]costFigure{
		"small": side(l.small), "large": side(l.large), "empty": side(l.empty),
	})
	if err != nil {
		return err
	}
	start := median(got.Of("empty", clock)) * float64(l.empty[0].records) // fixed time of starting one store
	net := func(side string, d *dataset) (out []float64) {
		for _, c := range got.Of(side, clock) {
			out = append(out, c-start/float64(d.records))
		}
		return out
	}
	l.add(atMost(l.name(what+" without the start"), "ns", net("large", l.large[0]), net("small", l.small[0]), target).
		WithNote(fmt.Sprintf("the start: %.2f ms for %d groups with one record each", start/1e6, l.groups)))
	return nil
}

// loadAll loads stores one after another, each with a cold page cache. All stores remain open until the end, so that
// no load can reuse another one's memory.
func loadAll(ctx context.Context, sets []*dataset, residency group.Residency, loader func() *segio.Loader) (_ cost,
	err error) {
	var watch stopwatch
	var records int64
	for _, d := range sets {
		if err := layouts.Evict(ctx, d.dir, true); err != nil {
			return cost{}, err
		}
		from := loader()
		watch.start()
		loaded, err := d.load(ctx, residency, from)
		watch.stop()
		if err != nil {
			return cost{}, err
		}
		defer func() { err = errors.Join(err, loaded.close()) }()
		records += d.records
	}
	return watch.per(records), nil
}

// compareGets compares random reads. If target is 0, the row has no target. With residency Index the reads are cold,
// because each store was just started. On both sides, the reads touch the same fraction of all blocks.
func (l *linear) compareGets(ctx context.Context, what string, residency group.Residency, small []*dataset,
	target float64) error {
	side := func(sets []*dataset) costFigure {
		return func() (cost, error) {
			var watch stopwatch
			each := linearGets / len(sets)
			for _, d := range sets {
				if err := getSome(ctx, d, residency, each, &watch); err != nil {
					return cost{}, err
				}
			}
			return watch.per(int64(each * len(sets))), nil
		}
	}
	sides := map[string]costFigure{"small": side(small), "large": side(l.large)}
	_, err := l.compareCosts(ctx, l.name(what), target, sides)
	return err
}

// getSome starts a store and measures n random reads. Before that it makes some reads that are not measured, so that
// all files are open.
func getSome(ctx context.Context, d *dataset, residency group.Residency, n int, watch *stopwatch) (err error) {
	loaded, err := d.loadCold(ctx, residency, segio.NewLoader(segio.LoaderOptions{}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loaded.close()) }()
	first := 2 * groupCount
	if residency == group.Resident {
		first = 2 * linearRecords // this many reads bring a small store into the processor's caches
	}
	if err := getRandom(d, loaded, linearDepth, first); err != nil {
		return err
	}
	watch.start()
	defer watch.stop()
	return getRandom(d, loaded, linearDepth, n)
}
