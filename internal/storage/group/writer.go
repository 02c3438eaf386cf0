package group

import (
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// writer writes at the end of the log. It appends to the active segment, makes written data durable, seals the
// segment and begins the next one, also when the active file must not be continued after a failure. It uses the
// folder, the state, the places of the entries that it rewrites, and the hints of segments that it seals. It reads no
// segment, and applies nothing.
//
// Between two calls the active segment is the last one of the state and of the manifest, state.end is end, and
// everything before state.syncedEnd is on disk.
type writer struct {
	// mu is held by the operations that change the files of the log: Append, Sync, Apply, Seal, SetConf, Close, and the
	// swap of compaction. It guards writer and folder. It is locked before state.mu, never while state.mu is held.
	mu longlock.Mutex

	gate         *gate
	folder       *folder
	state        *state
	places       *places
	images       *images
	hints        *hints
	memory       *memory
	segmentBytes int64  // size at which a segment is sealed
	onSealed     func() // Options.Sealed

	active *segment
	end    int64              // offset of the next frame
	last   uint64             // index of the last entry by place in the active segment; first - 1 if there is none
	hard   format.StateRecord // term, vote, commit as given by Raft
	dirty  bool               // something has been written since the last sync
	// suspect is the error of a failed write or sync of the active file; nil if none failed. While suspect is set, the
	// file must not be continued.
	suspect    error
	buffer     []byte // for small batches
	allocation allocation
	share      share
	hint       activeHint
}

// newWriter makes the writer of a log that is being loaded. The load sets the end of the log.
func newWriter(p *parts, opts *Options) writer {
	ahead := zerosAhead{share: aheadShare}
	if opts.Residency == Index {
		ahead.share = aheadShareIndex
	}
	return writer{
		gate: &p.gate, folder: &p.folder, state: &p.state, places: &p.places, images: &p.images, hints: &p.hints,
		memory: &p.memory, segmentBytes: opts.SegmentBytes, onSealed: opts.Sealed,
		allocation: allocation{segmentBytes: opts.SegmentBytes, spare: opts.Spare, ahead: ahead},
		hint:       newActiveHint(&p.folder, &p.state, opts),
	}
}

// whileOpen calls do with mu held. If the log is closed, whileOpen returns ErrClosed instead.
func (w *writer) whileOpen(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.gate.usable(); err != nil {
		return err
	}
	return do()
}

// hardForManifest returns the hard state with a commit that is already applied, because Load searches for membership
// changes above that commit.
func (w *writer) hardForManifest() format.StateRecord {
	hard := w.hard
	hard.Commit = min(hard.Commit, w.state.applied.Load())
	hard.SyncedOffset, hard.SyncedIndex = 0, 0
	return hard
}
