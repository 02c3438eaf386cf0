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

// The time per record is compared between one store of LoadOptions.IndexRecords records and several small stores.
// For oneGroup, the large store has twice as many records, and each small store has a tenth of the large store's
// records. Record size and number of groups are the same, so that only the number of records in a group grows.
const (
	linearRecords = 100_000 // number of records in a small store
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

	large []*dataset // has a single element
	small []*dataset
	empty []*dataset // like small, but with one record in each group, to show the fixed cost of a start
}

// linearity compares the time per record for load, get and put between a small store and a large one.
func (b *loadBench) linearity(ctx context.Context) error {
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

// oneGroup compares loads of stores that have only one group. The large store's group then has as many records as a
// group has in a store with too few groups.
func (b *loadBench) oneGroup(ctx context.Context) error {
	l := &linear{loadBench: b, groups: 1, records: 2 * b.opts.IndexRecords, each: b.opts.IndexRecords / 5}
	return l.run(ctx, func(ctx context.Context) error {
		if err := l.loads(ctx, "Index load", group.Index, linearTarget, newLoaders().fresh); err != nil {
			return err
		}
		return l.resident(ctx)
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
	if err := l.loads(ctx, "Index load", group.Index, linearTarget, newLoaders().fresh); err != nil {
		return err
	}
	if err := l.resident(ctx); err != nil {
		return err
	}
	if err := l.gets(ctx, "cold Get, Index", group.Index, l.small, linearTarget); err != nil {
		return err
	}
	// The small side uses only one small store and reads from it as often as from the large store, so its records stay in
	// the processor's caches. A read from the large store misses these caches several times. Therefore the row has no
	// target. linearCalls creates a row for whole calls.
	return l.gets(ctx, "Get inside the process, Resident", group.Resident, l.small[:1], 0)
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

// cost is the cost of a record in nanoseconds, as elapsed time and as this process's CPU time according to the kernel.
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
		return 0 // cannot fail for this process
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// costFigure takes one measurement.
type costFigure func() (cost, error)

// These are the metrics of each side in compareCosts.
const (
	clock     = "clock"
	processor = "processor"
)

// compareCosts measures the sides alternately and adds a row with the given name that compares the large side with the
// small one. If target is 0, the row has no target. It returns the costs of all sides.
func (b *loadBench) compareCosts(
	ctx context.Context, name string, target float64, sides map[string]costFigure,
) (turns, error) {
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

// resident compares Resident loads of the large store with those of the small stores. It does so twice, once into
// memory that was touched before and once into fresh memory. The second comparison depends more on the machine than on
// Sheaf. The large store gets huge pages, and the small stores get ordinary pages. If a hypervisor takes back free huge
// pages (free page reporting), the next touch of such a page costs ten times as much as the touch of a page that the
// guest still has.
func (l *linear) resident(ctx context.Context) error {
	loaders := newLoaders()
	defer loaders.close()
	for _, sets := range [][]*dataset{l.large, l.small} {
		if _, err := loadAll(ctx, sets, group.Resident, loaders.touched); err != nil {
			return err
		}
	}
	if err := l.loads(ctx, "Resident load", group.Resident, linearTarget, loaders.touched); err != nil {
		return err
	}
	loaders.close() // frees its memory before the next loads take more
	return l.loads(ctx, "Resident load, fresh memory", group.Resident, 0, loaders.fresh)
}

// loads compares cold loads. One row compares the whole time per record. A second row first subtracts a start's fixed
// time, which does not depend on the number of records. Per record, the fixed time is high in a small store and low in
// a large one.
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

// loadAll loads stores one after another, each from a cold page cache. All stores remain open until the end, so that no
// memory is used twice.
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

// gets compares random reads. If target is 0, the row has no target. With Index the reads are cold, because each store
// was just started. In small and large stores, the same fraction of all blocks is read.
func (l *linear) gets(ctx context.Context, what string, residency group.Residency, small []*dataset,
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

// getSome starts a store and measures n random reads. Some unmeasured reads go first, to open the files.
func getSome(ctx context.Context, d *dataset, residency group.Residency, n int, watch *stopwatch) (err error) {
	loaded, err := d.loadCold(ctx, residency, segio.NewLoader(segio.LoaderOptions{}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loaded.close()) }()
	first := 2 * groupCount
	if residency == group.Resident {
		first = 2 * linearRecords // enough reads to bring a small store into the processor's caches
	}
	if err := getRandom(d, loaded, linearDepth, first); err != nil {
		return err
	}
	watch.start()
	defer watch.stop()
	return getRandom(d, loaded, linearDepth, n)
}
