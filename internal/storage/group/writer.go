package group

import (
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// writer writes at the end of the log. It appends to the active segment and makes the data durable. It seals the
// segment and begins the next one when the segment is full, or when the segment must not be continued after a failure.
// It uses the folder, the state, the locations of the entries that it rewrites, and the hints of segments that it
// seals. It reads no segment, and applies no entry.
//
// Between two calls, three things are true. The active segment is the last one in the state and in the manifest. The
// offsets state.end and end are equal. Everything before state.syncedEnd is on disk.
type writer struct {
	// mu is held by the operations that change the files of the log: Append, Sync, Apply, Seal, SetConf, Close, and the
	// swap of compaction. It guards writer and folder. A goroutine that needs both locks must lock mu before state.mu.
	mu longlock.Mutex

	gate         *gate
	folder       *folder
	state        *state
	places       *places
	images       *images
	hints        *hints
	memory       *memory
	segmentBytes int64  // size at which a segment is sealed
	onSealed     func() // value of Options.Sealed

	active *segment
	end    int64 // offset of the next frame
	// last is the index of the active segment's last entry in file order. It is one less than the segment's first index
	// if there is no entry.
	last  uint64
	hard  format.StateRecord // term, vote and commit as Raft has set them
	dirty bool               // whether data was written since the last sync
	// suspect is the error of a failed write or sync of the active file, or nil if none has failed. While suspect is
	// set, the file must not be continued.
	suspect    error
	buffer     []byte // buffer in which small batches are encoded
	allocation allocation
	share      share
	hint       activeHint
}

// newWriter returns the writer for a log that is being loaded. The load sets the end of the log later.
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

// whileOpen calls the function do while it holds mu. If the log is closed, whileOpen returns ErrClosed instead.
func (w *writer) whileOpen(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.gate.usable(); err != nil {
		return err
	}
	return do()
}

// hardForManifest returns the hard state with a commit that is not above the applied index, because Load searches for
// membership changes only above the commit in the manifest.
func (w *writer) hardForManifest() format.StateRecord {
	hard := w.hard
	hard.Commit = min(hard.Commit, w.state.applied.Load())
	hard.SyncedOffset, hard.SyncedIndex = 0, 0
	return hard
}
