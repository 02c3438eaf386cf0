package group

import (
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// writer is the end of the log. It appends to the active segment, makes durable what it wrote, seals the segment and
// begins the next one, also where the active file must not be continued after a failure. It touches the folder, the
// state, the places of what moves with it, and the hints of what it seals. It reads no segment, and applies nothing.
//
// Between two calls the active segment is the last one of the state and of the manifest, state.end is end, and all
// before state.syncedEnd is on disk.
type writer struct {
	// mu is held by whoever changes the files of the log: Append, Sync, Apply, Seal, SetConf, Close, and the swap of
	// compaction. It guards writer and folder. Taken before state.mu, never while that is held.
	mu longlock.Mutex

	folder       *folder
	state        *state
	places       *places
	images       *images
	hints        *hints
	memory       *memory
	segmentBytes int64  // at which a segment is sealed
	onSealed     func() // Options.Sealed

	active     *segment
	end        int64              // offset of the next frame
	last       uint64             // index of the last entry in the active segment by place; first - 1: none
	hard       format.StateRecord // term, vote, commit as given by Raft
	dirty      bool               // something was written since the last sync
	suspect    error              // a write or sync of the active file failed: it must not be continued; nil: it is well
	buffer     []byte             // for small batches
	allocation allocation
	share      share
	hint       activeHint
}

// newWriter makes the writer of a log that is loaded: its end is found by the load.
func newWriter(p *parts, opts *Options) writer {
	return writer{
		folder: &p.folder, state: &p.state, places: &p.places, images: &p.images, hints: &p.hints, memory: &p.memory,
		segmentBytes: opts.SegmentBytes, onSealed: opts.Sealed,
		allocation: allocation{segmentBytes: opts.SegmentBytes, spare: opts.Spare,
			ahead: zerosAhead{share: opts.Residency.zerosShare()}},
		hint: newActiveHint(&p.folder, &p.state, opts),
	}
}

// hardForManifest is the hard state with a commit that is applied: a membership change above it is looked for by Load.
func (w *writer) hardForManifest() format.StateRecord {
	hard := w.hard
	hard.Commit = min(hard.Commit, w.state.applied.Load())
	hard.SyncedOffset, hard.SyncedIndex = 0, 0
	return hard
}
