package layouts

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// sheafLayout is the layout of Sheaf: one group, written with the same calls and the same commit as in a shard.
type sheafLayout struct {
	residency group.Residency
	loaded    *group.Log // the group that the last call of read loaded
}

const (
	oursTitle = "group file"
	groupDir  = "group"
	// batchBytes and batchEntries limit a commit to a size that BatchPut and concurrent callers also reach.
	batchBytes   = 8 << 20
	batchEntries = 8192
	// splitBytes is the size of each part of a scan. The workers share the parts.
	splitBytes = 8 << 20
	scanTTL    = time.Hour
)

func (o *sheafLayout) name() string { return oursTitle }

// Writer appends to a group's log. When a call returns, the written entries are durable and applied.
type Writer struct {
	log        *group.Log
	index      uint64
	term, vote uint64
	now        int64
}

// NewWriter returns a Writer that continues at the end of a log.
func NewWriter(log *group.Log) (*Writer, error) {
	state, _, err := log.InitialState()
	if err != nil {
		return nil, err
	}
	last, err := log.LastIndex()
	return &Writer{
		log: log, index: last, term: max(1, state.GetTerm()), vote: max(1, state.GetVote()), now: time.Now().UnixNano(),
	}, err
}

// createGroup creates a group in a folder.
func createGroup(ctx context.Context, dir string) (*Writer, error) {
	opts := group.Options{
		FS: vfs.OS{}, Dir: filepath.Join(dir, groupDir), Retention: group.Retention{Versions: 1},
		Identity: format.Identity{Store: uuid.New(), Group: uuid.New(), Name: "bench"},
	}
	if err := group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}); err != nil {
		return nil, err
	}
	log, _, err := group.Load(ctx, opts, nil)
	if err != nil {
		return nil, err
	}
	return NewWriter(log)
}

// Commit makes entries durable and visible. It sets index, term and times as a shard does.
func (w *Writer) Commit(entries []format.Entry) error { return w.write(w.propose(entries)) }

// propose prepares entries for Raft. It can run while an earlier batch is being committed, as the callers of a shard
// do.
func (w *Writer) propose(entries []format.Entry) []*raftpb.Entry {
	batch := make([]*raftpb.Entry, len(entries))
	for i := range entries {
		e := &entries[i]
		w.index++
		e.Used, e.Index, e.Term, e.CommitTime, e.Timestamp = true, w.index, w.term, w.now, w.now
		batch[i] = format.RaftEntry(e)
	}
	return batch
}

func (w *Writer) write(batch []*raftpb.Entry) error {
	commit := batch[len(batch)-1].GetIndex()
	if err := w.log.Append(&raftpb.HardState{Term: &w.term, Vote: &w.vote, Commit: &commit}, batch); err != nil {
		return err
	}
	if err := w.log.Sync(); err != nil {
		return err
	}
	return w.log.Apply(commit, nil)
}

// batchOf returns the number of versions that one commit contains.
func batchOf(set *recordSet) int {
	return max(1, min(batchBytes/max(set.size, 1), batchEntries))
}

// puts returns a put entry for each of the versions first to last - 1.
func puts(set *recordSet, first, last int, entries []format.Entry) []format.Entry {
	entries = entries[:0]
	for k := first; k < last; k++ {
		entries = append(entries, format.Entry{Kind: format.KindPut, ID: set.id(k), Data: set.data(k)})
	}
	return entries
}

func (o *sheafLayout) fill(ctx context.Context, dir string, set *recordSet, syncEach bool) (err error) {
	w, err := createGroup(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.log.Close(true)) }()
	batch := batchOf(set)
	if syncEach {
		batch = 1
	}
	proposed := make(chan []*raftpb.Entry, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(proposed)
		entries := make([]format.Entry, 0, batch)
		for k := 0; k < set.total; k += batch {
			select {
			case proposed <- w.propose(puts(set, k, min(k+batch, set.total), entries)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	g.Go(func() error {
		for batch := range proposed {
			if err := w.write(batch); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// load loads the group in a folder, as a shard does when it starts, and counts its records.
func (o *sheafLayout) load(ctx context.Context, dir string) (*group.Log, error) {
	dir = filepath.Join(dir, groupDir)
	m, err := format.ReadManifest(vfs.OS{}, dir)
	if err != nil {
		return nil, err
	}
	loader := segio.NewLoader(segio.LoaderOptions{})
	log, report, err := group.Load(ctx, group.Options{
		FS: vfs.OS{}, Dir: dir, Identity: m.Identity, Residency: o.residency, Retention: group.Retention{Versions: 1},
		Loader:  loader,
		Durable: func() error { return (vfs.OS{}).SyncAll(dir) },
	}, nil)
	if err != nil {
		return nil, err
	}
	if report.Outcome != group.Loaded {
		return nil, errors.Join(fmt.Errorf("group in %s: it was not loaded whole: %+v", dir, report), log.Close(false))
	}
	return log, nil
}

// read loads the group. After that, all records are in memory and have been checked. If visit is not nil, a scan
// calls it for each record, on one goroutine for each processor.
func (o *sheafLayout) read(ctx context.Context, dir string, _ *recordSet, _ int, visit visitor) (n int64, err error) {
	log, err := o.load(ctx, dir)
	if err != nil {
		return 0, err
	}
	o.loaded = log
	if visit == nil {
		return log.Stats().Records, nil
	}
	var scanned atomic.Int64
	err = scan(ctx, log, false, func(r *group.Record) error {
		scanned.Add(1)
		return visit(r.ID, r.Data)
	})
	return scanned.Load(), err
}

// end frees the memory of the last read.
func (o *sheafLayout) end() error {
	log := o.loaded
	if o.loaded = nil; log == nil {
		return nil
	}
	return log.Close(false)
}

// scan calls each() for all records, from as many goroutines as there are processors.
func scan(ctx context.Context, log *group.Log, metadataOnly bool, each func(*group.Record) error) error {
	id, err := log.OpenScan(scanTTL)
	if err != nil {
		return err
	}
	defer log.CloseScan(id)
	bounds, err := log.ScanSplits(id, splitBytes)
	if err != nil {
		return err
	}
	return drive.Shared(runtime.GOMAXPROCS(0), int64(len(bounds)-1), func(_ int, i int64) error {
		for record, err := range log.Scan(ctx, id, bounds[i], bounds[i+1], metadataOnly) {
			if err != nil {
				return err
			}
			if err := each(&record); err != nil {
				return err
			}
		}
		return nil
	})
}

// countWords formats a number of records.
func countWords(n int) string {
	switch {
	case n >= 1000000 && n%100000 == 0:
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + "M"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}

// sizeWords formats a record's size.
func sizeWords(bytes int) string {
	if bytes >= 1<<10 && bytes%(1<<10) == 0 {
		return strconv.Itoa(bytes>>10) + " KB"
	}
	return strconv.Itoa(bytes) + " B"
}
