package group

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/replay"
	"sheaf.dev/sheaf/internal/group/segio"
	"sheaf.dev/sheaf/internal/group/transfer"
	"sheaf.dev/sheaf/internal/index"
	"sheaf.dev/sheaf/internal/journal"
	"sheaf.dev/sheaf/internal/vfs"
)

// Log is the ordered log of a group on disk, with its index in memory. It is the Raft log of the group (see Storage)
// and its state machine. Append, Sync, Apply and Seal are called by one goroutine at a time (the replica's); all other
// methods are safe for concurrent use with them and with one another.
type Log struct {
	opts   Options
	fs     vfs.FS
	dir    string
	logger *slog.Logger
	now    func() time.Time
	table  *index.Table // id -> place of the newest applied entry
	memory meter
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	hints  sync.WaitGroup // hints being written

	// wmu is held by whoever changes the files of the log: Append, Sync, Apply, Seal, SetConf, Close, and
	// the swap of compaction. It guards w. Taken before mu, never while mu is held.
	wmu sync.Mutex
	w   writer

	// mu guards state. Held for memory operations only, never during I/O.
	mu    sync.RWMutex
	state state

	// segments by ordinal, nil where there is none; replaced as a whole. For readers without a lock.
	byOrdinal atomic.Pointer[[]*segment]
	// applied is the index of the last entry applied. Written under mu.
	applied atomic.Uint64
	ages    ages // of what is applied
	closed  atomic.Bool
	changed signal // of applied, and of closed
	// changesFloor: of the changes at or below it some may be missing. See Changes.
	changesFloor atomic.Uint64
	readers      atomic.Int64 // reads under way: Close waits for them
	hintTurn     sync.Mutex   // one hint is written at a time
	hintCache    hintCache

	// damaged is the number of damages that are not accepted: readers look no further while it is 0.
	damaged atomic.Int32

	blobs    blobSet
	received atomic.Uint64 // blobs that were begun to be received: names their files until they are whole
	marks    markFile

	superseded atomic.Int64 // bytes, estimated
	// tombstoneLimit is what SetTombstoneLimit told.
	tombstoneLimit atomic.Uint64
	loader         *segio.Loader
	journal        *journal.Member // nil: none
	compacting     sync.Mutex      // one Compact or Repair at a time
	swapping       sync.RWMutex    // held while places change from one segment to another; scans wait
	incoming       []*segment      // of the swap under way: published, not in the list yet. Guarded by mu
}

// writer is the state of the end of the log.
type writer struct {
	manifest   *format.Manifest // as it is on disk
	unsure     bool             // a manifest was perhaps replaced, perhaps not durably: write it again before anything is acknowledged
	active     *segment
	end        int64              // offset of the next frame
	allocated  int64              // size of the file
	inherited  bool               // the room behind the end is what the process before has allocated
	opened     int64              // what of end was there when the log was opened
	ahead      writeAhead         // of the active file
	last       uint64             // index of the last entry in the active segment by place; first - 1: none
	hard       format.StateRecord // term, vote, commit as given by Raft
	dirty      bool               // something was written since the last sync
	suspect    error              // a write or sync of the active file failed: it must not be continued; nil: it is well
	buffer     []byte
	journaled  int64  // offset in the active segment up to which the journal has what is not synced; 0: nothing
	started    int64  // offset in the active segment up to which the kernel was told to begin to write
	batch      []byte // the frames that were written last, where they are in memory as one; they stand at batchAt
	batchAt    int64
	state      format.StateFrame // the last one of the active segment
	hintable   format.StateFrame // the last one of the active segment that was seen to have all entries before it applied
	hinted     format.HintPart   // of the active segment, what its hint tells of
	hintTried  int64             // up to where a hint was tried last; 0: not yet
	hintDirty  bool              // the hint was not synced
	nextNumber uint64            // of the next segment file
	sequence   uint64            // of the last manifest that was tried
}

// state is what readers and the writer share.
type state struct {
	segments  []*segment // in order of the log; the last one is active
	tail      tail
	terms     []format.TermRun // of all entries above the compaction floor, and of that floor
	last      uint64           // index of the last entry
	end       int64            // of the active segment: offset behind the last frame
	floor     uint64           // Raft's compaction floor: first index - 1
	floorTerm uint64
	// synced: everything of the active segment before syncedEnd is on disk. syncedIndex is the greatest index on disk,
	// over all segments; syncedLast that of the last entry by place before syncedEnd.
	syncedEnd   int64
	syncedLast  uint64
	syncedIndex uint64
	lastCommit  int64
	conf        *raftpb.ConfState
	confIndex   uint64
	confsAhead  []uint64 // indexes of applied membership changes that SetConf was not told of yet
	snapshots   map[ScanID]*snapshot
	closed      uint64 // snapshots that were closed or have expired, and are not among them any more
	looked      looked
	damages     []*format.Damage
	damagedIDs  map[int64]replay.DamagedID
}

// SegmentBytesDefault is the size at which a segment is sealed where Options say nothing.
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

// ForInstall are those of an Install into the same folder.
func (o Options) ForInstall() transfer.Options {
	return transfer.Options{FS: o.FS, Dir: o.Dir, Identity: o.Identity, Now: o.Now, Logger: o.Logger}
}

// newLog makes a log without segments, with room in the index for what the group needs.
func newLog(opts Options, m *format.Manifest, need Need) (*Log, error) {
	l := &Log{opts: opts, fs: opts.FS, dir: opts.Dir, logger: opts.Logger, now: opts.Now}
	l.memory.budget = opts.Budget
	if l.loader = opts.Loader; l.loader == nil {
		l.loader = segio.NewLoader(segio.LoaderOptions{Reads: 2})
	}
	if err := l.memory.ask(need.MemoryBytes); err != nil {
		return nil, err
	}
	table, err := index.New(need.Records, nil)
	if err != nil {
		l.memory.giveBack()
		return nil, err
	}
	l.table = table
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.state.snapshots = make(map[ScanID]*snapshot)
	l.state.damagedIDs = make(map[int64]replay.DamagedID)
	l.w.manifest, l.w.sequence, l.w.nextNumber = m, m.Sequence, m.NextSegment
	l.changesFloor.Store(max(m.TombstoneFloor, m.AcceptedThrough))
	l.marks.fs, l.marks.dir = l.fs, l.dir
	l.byOrdinal.Store(&[]*segment{})
	return l, nil
}

// usable tells whether the log is open.
func (l *Log) usable() error {
	if l.closed.Load() {
		return format.ErrClosed
	}
	return nil
}

// enter begins a read; leave must follow. Close waits for those that are in.
func (l *Log) enter() error {
	l.readers.Add(1)
	if l.closed.Load() {
		l.leave()
		return format.ErrClosed
	}
	return nil
}

// leave ends a read.
func (l *Log) leave() { l.readers.Add(-1) }

// release frees the memory and the files when the last reader is out. The log is closed.
func (l *Log) release() {
	for l.readers.Load() > 0 { // reads are short, and Close is rare
		runtime.Gosched()
	}
	l.mu.Lock()
	segments := l.state.segments
	l.state.segments, l.state.tail = nil, tail{}
	l.byOrdinal.Store(&[]*segment{})
	l.mu.Unlock()
	for _, s := range segments {
		s.unpin()
	}
	l.marks.close()
	l.table.Close()
	l.memory.giveBack()
}

// hardForManifest is the hard state with a commit that is applied: a membership change above it is looked for by Load.
func (l *Log) hardForManifest() format.StateRecord {
	hard := l.w.hard
	hard.Commit = min(hard.Commit, l.applied.Load())
	hard.SyncedOffset, hard.SyncedIndex = 0, 0
	return hard
}

// meter asks the budget for what the log uses. Safe for concurrent use.
type meter struct {
	mu     sync.Mutex
	budget Budget
	taken  int64
}

const meterSlackBytes = 1 << 20 // not given back at once

// ask makes sure that want bytes in all are taken.
func (m *meter) ask(want int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget == nil || want <= m.taken {
		return nil
	}
	if err := m.budget.Take(want - m.taken); err != nil {
		return err
	}
	m.taken = want
	return nil
}

// settle gives back what is above used.
func (m *meter) settle(used int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget == nil || used+meterSlackBytes >= m.taken {
		return
	}
	if err := m.budget.Take(used - m.taken); err == nil {
		m.taken = used
	}
}

// giveBack gives everything back.
func (m *meter) giveBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget != nil && m.taken > 0 {
		if err := m.budget.Take(-m.taken); err == nil {
			m.taken = 0
		}
	}
}
