package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// dataset is a folder with groups that the benchmark has filled. All records have the same size, and their ids are
// consecutive.
type dataset struct {
	dir            string
	groups         []format.Identity
	records        int64 // total over all groups
	size           int   // bytes of data in each record
	open           bool  // whether the active segments are left unsealed
	allocatedAhead bool  // whether allocateAhead has run
	killed         bool  // whether the logs were closed without writing hints, as after a kill
	grows          bool  // whether writeAndKill adds records, so that there are more than before
	// ownSyncs means that a load syncs each active segment separately. Otherwise one sync of the whole file system serves
	// all active segments.
	ownSyncs bool
}

// groupCount is the number of groups in a dataset. One shard of a small store has the same number of groups.
const groupCount = 16

func (d *dataset) groupDir(i int) string {
	return filepath.Join(d.dir, d.groups[i].Group.String())
}

// fill creates a dataset by writing through the logs, as a shard does. It seals the segments, so that hints exist.
func fill(ctx context.Context, dir string, groups int, records int64, size int, say func(string, ...any)) (*dataset,
	error) {
	return (&dataset{dir: dir, size: size}).fill(ctx, groups, records, say)
}

// fill fills a new dataset. It seals the segments unless d.open is set.
func (d *dataset) fill(ctx context.Context, groups int, records int64, say func(string, ...any)) (*dataset, error) {
	begin := time.Now()
	store := uuid.New()
	if err := (vfs.OS{}).MkdirAll(d.dir); err != nil {
		return nil, err
	}
	for i := range groups {
		d.groups = append(d.groups, format.Identity{Store: store, Group: uuid.New(), Name: strconv.Itoa(i)})
	}
	each := max(records/int64(groups), 1)
	d.records = each * int64(groups)
	err := drive.Shared(2, int64(groups), func(_ int, g int64) error {
		if err := d.fillGroup(ctx, int(g), g*each, each); err != nil {
			return fmt.Errorf("filling group %d: %w", g, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	say("filled %d records of %d bytes in %d groups in %.1f s", d.records, d.size, groups, time.Since(begin).Seconds())
	return d, nil
}

func (d *dataset) options(i int) group.Options {
	return group.Options{FS: vfs.OS{}, Dir: d.groupDir(i), Identity: d.groups[i], Retention: group.Retention{Versions: 1}}
}

func (d *dataset) fillGroup(ctx context.Context, g int, firstID, records int64) (err error) {
	opts := d.options(g)
	if err := group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}); err != nil {
		return err
	}
	log, _, err := group.Load(ctx, opts, nil)
	if err != nil {
		return err
	}
	defer func() {
		if !d.open && err == nil {
			err = log.Seal()
		}
		err = errors.Join(err, log.Close(!d.killed))
	}()
	w, err := layouts.NewWriter(log)
	if err != nil {
		return err
	}
	data := randomBytes(d.size)
	batch := max(min(4<<20/max(int64(d.size), 1), 4096), 1)
	for first := int64(0); first < records; first += batch {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		entries := make([]format.Entry, 0, batch)
		for i := first; i < min(first+batch, records); i++ { // every entry has a request ID, because all clients send one
			entries = append(entries, format.Entry{Kind: format.KindPut, ID: firstID + i, Data: data, RequestID: uuid.New()})
		}
		if err := w.Commit(entries); err != nil {
			return err
		}
	}
	return nil
}

// segments returns the paths of the segment files.
func (d *dataset) segments() ([]string, error) {
	return filepath.Glob(filepath.Join(d.dir, "*", "segment-*"))
}

// hints returns the paths of the hint files.
func (d *dataset) hints() ([]string, error) {
	return filepath.Glob(filepath.Join(d.dir, "*", "hint-*"))
}

// logs are the loaded logs of a dataset.
type logs []*group.Log

func (l logs) close() error {
	errs := make([]error, len(l))
	for i, log := range l {
		if log != nil {
			errs[i] = log.Close(false)
		}
	}
	return errors.Join(errs...)
}

// load loads all groups in parallel with one loader, as a shard does when it starts, and checks that no record is
// missing.
func (d *dataset) load(ctx context.Context, residency group.Residency, loader *segio.Loader) (logs, error) {
	loaded := make(logs, len(d.groups))
	durable := sync.OnceValue(func() error { return (vfs.OS{}).SyncAll(d.dir) })
	err := drive.Parallel(len(d.groups), func(i int) error {
		opts := d.options(i)
		if !d.ownSyncs {
			opts.Durable = durable
		}
		opts.Residency, opts.Loader = residency, loader
		log, report, err := group.Load(ctx, opts, &group.Progress{})
		if err != nil {
			return err
		}
		loaded[i] = log
		if report.Outcome != group.Loaded {
			return fmt.Errorf("group %d: outcome %v", i, report.Outcome)
		}
		return nil
	})
	if err == nil {
		if have := loaded.stats().Records; have < d.records || have > d.records && !d.grows {
			err = fmt.Errorf("%d records were loaded, %d are stored", have, d.records)
		}
	}
	if err != nil {
		return nil, errors.Join(err, loaded.close())
	}
	return loaded, nil
}

// loadCold is like load, but first drops the dataset from the page cache.
func (d *dataset) loadCold(ctx context.Context, residency group.Residency, loader *segio.Loader) (logs, error) {
	if err := layouts.Evict(ctx, d.dir, true); err != nil {
		return nil, err
	}
	return d.load(ctx, residency, loader)
}

// These are the metrics that a loadCell has in addition to rounds.Rate.
const (
	loadSeconds = "seconds"
	perStored   = "memory per stored byte"
	perRecord   = "memory per record"
)

// loadCell creates a cell that loads a dataset and computes units per second. If before is not nil, it is called
// first, and its time does not count.
func (d *dataset) loadCell(
	key string, units float64, residency group.Residency, loader func() *segio.Loader, before func() error,
) rounds.Cell {
	return rounds.Cell{Key: key, Run: func(ctx context.Context, f *rounds.Figures) error {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		from := loader()
		begin := time.Now()
		loaded, err := d.load(ctx, residency, from)
		if err != nil {
			return err
		}
		seconds, stats := time.Since(begin).Seconds(), loaded.stats()
		f.Set(rounds.Rate, units/seconds)
		f.Set(loadSeconds, seconds)
		f.Set(perStored, float64(stats.MemoryBytes)/float64(stats.StoredBytes))
		f.Set(perRecord, float64(stats.MemoryBytes)/float64(stats.Records))
		return loaded.close()
	}}
}

// stats returns the total number of records, the total memory and the total stored bytes.
func (l logs) stats() (sum group.Stats) {
	for _, log := range l {
		s := log.Stats()
		sum.Records += s.Records
		sum.MemoryBytes += s.MemoryBytes
		sum.StoredBytes += s.StoredBytes
	}
	return sum
}
