package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sheaf.dev/sheaf/internal/group"
)

// What the time per record is compared at: one store of LoadOptions.IndexRecords, and small ones. Record size and number
// of groups are the same, so that what grows is the records of a group.
const (
	linearRecords = 100_000 // of a small store
	linearBytes   = 100     // of data of a record
	linearGets    = 50_000  // of one side in one round
	linearDepth   = 16      // cold gets at a time
	linearTarget  = 1.2
)

// linear compares the time per record in one large store with that in so many small ones that both sides have the same
// number of records, and so do the same work in a round: the same bytes are read, each once, into the same amount of memory.
type linear struct {
	*loadBench
	large []*dataset // one
	small []*dataset
	empty []*dataset // as the small ones, with one record in a group: what a start costs for any number of records
}

// linearity compares the time per record of load, get and put in a small and in a large store.
func (b *loadBench) linearity(ctx context.Context) error {
	if b.opts.IndexRecords <= linearRecords {
		b.opts.Say("  left out: it needs more than %d records", linearRecords)
		return nil
	}
	l := &linear{loadBench: b}
	dir := filepath.Join(b.dir, "linear")
	err := l.fill(ctx, dir)
	if err == nil {
		err = l.measure(ctx)
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	return b.linearCalls(ctx)
}

func (l *linear) fill(ctx context.Context, dir string) error {
	stores := int(l.opts.IndexRecords / linearRecords)
	for _, side := range []struct {
		name    string
		sets    *[]*dataset
		stores  int
		records int64
	}{{"large", &l.large, 1, l.opts.IndexRecords}, {"small", &l.small, stores, linearRecords}, {"empty", &l.empty, min(stores, 10), groupCount}} {
		begin := time.Now()
		for i := range side.stores {
			d, err := fill(ctx, filepath.Join(dir, side.name, strconv.Itoa(i)), side.records, linearBytes, func(string, ...any) {})
			if err != nil {
				return err
			}
			*side.sets = append(*side.sets, d)
		}
		l.opts.Say("  filled %d x %d records of %d bytes in %.1f s", side.stores, side.records, linearBytes, time.Since(begin).Seconds())
	}
	return nil
}

func (l *linear) measure(ctx context.Context) error {
	for _, one := range []struct {
		name      string
		residency group.Residency
	}{{"Index load", group.Index}, {"Resident load", group.Resident}} {
		if err := l.loads(ctx, one.name, one.residency); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	if err := l.gets(ctx, "cold Get, Index", group.Index, l.small, linearTarget); err != nil {
		return fmt.Errorf("cold get: %w", err)
	}
	// One small store is read as often as the large one: what it reads again and again stays in the processor's caches.
	err := l.gets(ctx, "Get inside the process, Resident", group.Resident, l.small[:1], 0)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	l.rows[len(l.rows)-1].Note = "no target: a record of the large store is not in the processor's caches; see the call"
	return nil
}

// name of a row.
func (b *loadBench) linearName(what string) string {
	return fmt.Sprintf("time per record of %s, %.1fM records / 0.1M", what, float64(b.opts.IndexRecords)/1e6)
}

// loads compares cold loads. Beside the whole time per record there is a row for what is left when the time that a
// start needs for any number of records is taken away: with it a small store looks dear, and the large one good.
func (l *linear) loads(ctx context.Context, what string, residency group.Residency) error {
	side := func(sets []*dataset) figure {
		return func() (float64, error) { return loadAll(ctx, sets, residency) }
	}
	costs, err := takeTurns(l.opts.Rounds, l.opts.Say, variant{"small", side(l.small)}, variant{"large", side(l.large)}, variant{"empty", side(l.empty)})
	if err != nil {
		return err
	}
	start := median(costs["empty"]) * float64(l.empty[0].records) // of one store
	net := func(costs []float64, d *dataset) []float64 {
		out := make([]float64, len(costs))
		for i, c := range costs {
			out[i] = c - start/float64(d.records)
		}
		return out
	}
	l.add(
		atMost(l.linearName(what), "ns", costs["large"], costs["small"], linearTarget),
		atMost(l.linearName(what+" without the start"), "ns", net(costs["large"], l.large[0]), net(costs["small"], l.small[0]), linearTarget).
			note(fmt.Sprintf("the start: %.2f ms for %d groups with one record each", start/1e6, groupCount)),
	)
	return nil
}

// loadAll loads stores one after another, each from a cold page cache, and gives nanoseconds per record. All stay open to
// the end, so that no memory is used twice.
func loadAll(ctx context.Context, sets []*dataset, residency group.Residency) (_ float64, err error) {
	var spent time.Duration
	var records int64
	for _, d := range sets {
		if err := evict(d.dir); err != nil {
			return 0, err
		}
		begin := time.Now()
		loaded, err := d.load(ctx, residency, group.NewLoader(group.LoaderOptions{}))
		spent += time.Since(begin)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, loaded.close()) }()
		if have := loaded.stats().Records; have != d.records {
			return 0, fmt.Errorf("%d records were loaded, %d are stored", have, d.records)
		}
		records += d.records
	}
	return float64(spent.Nanoseconds()) / float64(records), nil
}

// gets compares random reads; target 0: none. With Index they are cold: each store was just started, and in small and
// large ones the same part of all blocks is read.
func (l *linear) gets(ctx context.Context, what string, residency group.Residency, small []*dataset, target float64) error {
	side := func(sets []*dataset) figure {
		return func() (float64, error) {
			var spent time.Duration
			for _, d := range sets {
				took, err := l.getSome(ctx, d, residency, linearGets/len(sets))
				if err != nil {
					return 0, err
				}
				spent += took
			}
			return float64(spent.Nanoseconds()) / linearGets, nil
		}
	}
	costs, err := takeTurns(l.opts.Rounds, l.opts.Say, variant{"small", side(small)}, variant{"large", side(l.large)})
	if err != nil {
		return err
	}
	l.add(atMost(l.linearName(what), "ns", costs["large"], costs["small"], target))
	return nil
}

// getSome starts a store and tells how long n random reads take, when the first ones have opened the files.
func (l *linear) getSome(ctx context.Context, d *dataset, residency group.Residency, n int) (took time.Duration, err error) {
	if err := evict(d.dir); err != nil {
		return 0, err
	}
	loaded, err := d.load(ctx, residency, group.NewLoader(group.LoaderOptions{}))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, loaded.close()) }()
	first := 2 * groupCount
	if residency == group.Resident {
		first = 2 * linearRecords // a small store is in the caches then
	}
	if err := getRandom(d, loaded, linearDepth, first); err != nil {
		return 0, err
	}
	begin := time.Now()
	err = getRandom(d, loaded, linearDepth, n)
	return time.Since(begin), err
}
