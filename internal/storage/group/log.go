package group

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/index"
)

// Log is a group's ordered log on disk, with its index in memory. It is both the group's Raft log (storage.go) and its
// state machine. Calls to Append, Sync, Apply and Seal must not overlap, so only the replica's goroutine makes them.
// All other methods are safe for concurrent use with these four and with each other.
type Log struct {
	opts   Options
	now    func() time.Time
	ctx    context.Context // Close cancels this context
	cancel context.CancelFunc

	parts
	editor editor

	changed signal // fires when an entry is applied, and when the log is closed
	// received counts the blobs for which a writer was created. The names of incomplete files contain this number.
	received   atomic.Uint64
	compacting longlock.Mutex // held by Compact and by repairs, so that only one of them runs at a time
}

// parts are the components of a log. Each component's fields show which other components it uses, and each operation
// gets only the components that it needs. Load initializes all of them.
type parts struct {
	gate
	w       writer
	folder  folder
	state   state
	places  places
	images  images
	hints   hints
	reader  reader
	records records
	damages damages
	blobs   blobSet
	marks   markFile
	memory  memory
}

// write calls the function do while it holds writer.mu, unless the log is closed. It adds the names of the group and
// of the operation to the error that do returns.
func (l *Log) write(operation string, do func() error) error {
	return l.w.whileOpen(func() (err error) {
		defer l.addNames(operation, &err)
		return do()
	})
}

// addNames adds the names of the group and of an operation to *err, unless it is nil.
func (l *Log) addNames(operation string, err *error) {
	if *err != nil {
		*err = fmt.Errorf("group %s: %s: %w", l.opts.Identity.Name, operation, *err)
	}
}

// SegmentBytesDefault is the size at which a segment is sealed if Options does not set a size.
const SegmentBytesDefault = 256 << 20

func (o Options) withDefaults() Options {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = SegmentBytesDefault
	}
	o.SegmentBytes = min(o.SegmentBytes, index.OffsetMax)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// ForInstall returns the options for a transfer.Install into the folder of this log.
func (o Options) ForInstall() transfer.Options {
	return transfer.Options{FS: o.FS, Dir: o.Dir, Identity: o.Identity, Now: o.Now, Logger: o.Logger}
}

// newLog creates a log without segments. Its index has space for need.Records records.
func newLog(opts Options, m *format.Manifest, need Need) (*Log, error) {
	l := &Log{opts: opts, now: opts.Now}
	l.memory.state, l.memory.places, l.memory.images, l.memory.budget = &l.state, &l.places, &l.images, opts.Budget
	l.images = images{resident: opts.Residency == Resident, loader: opts.Loader}
	if l.images.loader == nil {
		l.images.loader = segio.NewLoader(segio.LoaderOptions{Reads: 2})
	}
	if err := l.memory.ask(need.MemoryBytes); err != nil {
		return nil, err
	}
	table, err := index.New(need.Records, nil)
	if err != nil {
		l.memory.giveBack()
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.places.table = table
	l.places.publish(nil)
	f := &l.folder
	f.fs, f.dir, f.identity, f.now = opts.FS, opts.Dir, opts.Identity, opts.Now
	f.logger = opts.Logger.With("group", opts.Identity.Name)
	f.manifest, f.sequence, f.nextNumber = m, m.Sequence, m.NextSegment
	f.publishFloors()
	l.state.snapshots, l.state.placesMax = make(map[ScanID]*snapshot), snapshotPlacesMax
	l.damages.logger = opts.Logger
	l.hints.folder, l.hints.state = f, &l.state
	l.reader = reader{group: opts.Identity.Name, state: &l.state, damages: &l.damages, hints: &l.hints}
	l.records = records{group: opts.Identity.Name, state: &l.state, places: &l.places, reader: &l.reader,
		damages: &l.damages}
	l.blobs.folder = f
	l.marks.fs, l.marks.dir = opts.FS, opts.Dir
	l.w = newWriter(&l.parts, &l.opts)
	l.editor = editor{
		w: &l.w, folder: f, state: &l.state, places: &l.places, images: &l.images, hints: &l.hints, memory: &l.memory,
	}
	return l, nil
}

// release waits until a closed log has no readers, and then frees the log's memory and closes its files.
func (l *Log) release() {
	for l.readers.Load() > 0 { // polling is good enough, because reads are short and Close is rare
		runtime.Gosched()
	}
	l.state.mu.Lock()
	segments := l.state.segments
	l.state.segments, l.state.tail = nil, tail{}
	l.places.publish(nil)
	l.state.mu.Unlock()
	for _, s := range segments {
		s.unpin()
	}
	l.marks.close()
	l.places.table.Close()
	l.memory.giveBack()
}

// gate lets Close wait for reads. A read enters the gate before it begins, and leaves the gate when it has finished. No
// read can enter after Close has shut the gate. It is safe for concurrent use. A caller that has entered must not wait
// for writer.mu, because Close holds writer.mu while it waits for the callers that have entered.
type gate struct {
	closed  atomic.Bool
	readers atomic.Int64 // number of reads in progress
}

// usable returns an error if the log is closed.
func (g *gate) usable() error {
	if g.closed.Load() {
		return format.ErrClosed
	}
	return nil
}

// enter begins a read. If it returns no error, the caller must call leave.
func (g *gate) enter() error {
	g.readers.Add(1)
	if g.closed.Load() {
		g.leave()
		return format.ErrClosed
	}
	return nil
}

// leave ends a read.
func (g *gate) leave() { g.readers.Add(-1) }
