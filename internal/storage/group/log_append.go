package group

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	// smallBatchBytes is the maximum size of a small batch. The log encodes a small batch in its own buffer. The frames
	// remain in this buffer until the next batch, so that the journal can use them. For larger batches the log uses
	// segio.FrameBuffers.
	smallBatchBytes = 32 << 10
	// writePieceBytes is the number of bytes of a batch that are written at a time. The device begins to write one
	// piece while the next piece is encoded, and a piece remains in the CPU cache between encoding and writing. A piece
	// together with the largest frame fits into one buffer from segio.FrameBuffers.
	writePieceBytes = 512 << 10
)

// batches pools the slices that decodeBatch fills.
var batches = sync.Pool{New: func() any { return new([]tailEntry) }}

// Append writes entries with consecutive indexes, and the hard state unless it is nil. An entry at or below the last
// index first truncates the log there, but never at or below the commit. Nothing is durable before Sync. If the
// segment is full, Append seals it and begins a new one. After an error for which format.Passes is true, nothing was
// appended, and the caller may try again. The log keeps the Data of the entries until the entries are applied, so the
// caller must not change it. A put's Data must be a result of EncodePayload.
func (l *Log) Append(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	return l.write("append", func() error { return l.w.append(hs, entries) })
}

// append implements Append. The caller holds mu.
func (w *writer) append(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	used := batches.Get().(*[]tailEntry)
	defer batches.Put(used)
	batch, bytes, err := w.decodeBatch((*used)[:0], entries)
	*used = batch[:0]
	defer clear(batch)
	if err != nil {
		return err
	}
	if len(batch) == 0 && hs == nil {
		return nil
	}
	if hs != nil {
		bytes += format.FrameBytes(0, format.StateRecordBytes)
	}
	if err := w.prepareActive(batch, bytes); err != nil {
		return err
	}
	return w.writeBatch(hs, batch, bytes)
}

// decodeBatch checks the order of the entries against the log, decodes them, and adds them to batch. It also returns
// how many bytes the entries take on disk.
func (w *writer) decodeBatch(batch []tailEntry, entries []*raftpb.Entry) (_ []tailEntry, bytes int64, err error) {
	if len(entries) == 0 {
		return batch, 0, nil
	}
	first, last, commit := entries[0].GetIndex(), w.state.last, w.commitFloor()
	switch {
	case first > last+1:
		return batch, 0, fmt.Errorf("index %d leaves a gap behind %d", first, last)
	case first <= commit:
		return batch, 0, fmt.Errorf("index %d would cut the log at or below its commit %d", first, commit)
	}
	batch = slices.Grow(batch, len(entries))
	for i, r := range entries {
		if r.GetIndex() != first+uint64(i) {
			return batch, 0, fmt.Errorf("index %d follows %d", r.GetIndex(), first+uint64(i)-1)
		}
		e, err := format.DecodePayload(r)
		if err != nil {
			return batch, 0, err
		}
		if e.Kind == format.KindRequest {
			return batch, 0, fmt.Errorf("%w: index %d is a remembered request, which no leader sends", format.ErrCorrupt,
				e.Index)
		}
		e.Used = true
		batch = append(batch, tailEntry{raft: r, entry: e})
		bytes += format.FrameBytes(len(e.Attributes), len(e.Data))
	}
	return batch, bytes, nil
}

// commitFloor returns the index up to which entries are never truncated.
func (w *writer) commitFloor() uint64 {
	return max(min(w.hard.Commit, w.state.last), w.state.applied.Load(), w.state.floor)
}

// prepareActive prepares the active segment for the given number of bytes. It continues the log in a new segment after
// a failure, removes segments that the batch makes void, and seals a full segment. It also takes memory from the budget
// and allocates disk space.
func (w *writer) prepareActive(batch []tailEntry, bytes int64) error {
	if err := w.recover(); err != nil {
		return err
	}
	first := w.state.last + 1
	if len(batch) > 0 {
		first = batch[0].entry.Index
	}
	if err := w.memory.askMore(len(batch), bytes); err != nil {
		return err
	}
	// The new segment may be unsuitable too, because it already contains the unsynced entries if syncing the old segment
	// failed. Therefore the check is repeated for the new segment.
	for replaced := true; replaced; {
		var err error
		if replaced, err = w.replaceUnfit(first, len(batch), bytes); err != nil {
			return err
		}
	}
	if w.end+bytes > index.OffsetMax {
		return fmt.Errorf("batch of %d bytes is above the limit of a segment", bytes)
	}
	return w.allocation.allocate(w.active.file.Load(), w.end, bytes)
}

// replaceUnfit begins a new active segment if the current one cannot hold a batch with the given number of entries and
// bytes. The argument first is the index of the batch's first entry. The result says whether a new segment was begun.
func (w *writer) replaceUnfit(first uint64, entries int, bytes int64) (replaced bool, err error) {
	s := w.active
	empty := w.end == format.SegmentHeaderBytes
	switch {
	case first < s.first:
		err = w.replaceSegments(first, bytes)
	case empty && !s.holds(bytes):
		// The segment is empty, but its image is too small for this batch. A segment with a larger image replaces it.
		err = w.replaceSegments(first, bytes)
	case !empty && (w.end+bytes > w.segmentBytes || first+uint64(entries)-s.first >= math.MaxUint32):
		if err = w.roll(first, bytes); err == nil && w.onSealed != nil {
			w.onSealed()
		}
	}
	return w.active != s, err
}

// writeBatch writes the batch, which takes the given number of bytes, and then changes the state in memory.
func (w *writer) writeBatch(hs *raftpb.HardState, batch []tailEntry, bytes int64) error {
	hard := w.hard
	if hs != nil {
		hard.Term, hard.Vote, hard.Commit = hs.GetTerm(), hs.GetVote(), hs.GetCommit()
	}
	for {
		end, cause := w.writeFrames(hs != nil, hard, batch, bytes)
		if cause == nil {
			w.end = end
			break
		}
		if err := w.writeFailed(cause); err != nil {
			return err
		}
		// writeFailed has continued the log in a new segment that begins after the synced entries. If the batch truncates
		// the log at a lower index, prepareActive begins another segment at that index.
		if err := w.prepareActive(batch, bytes); err != nil {
			return err
		}
	}
	w.hard, w.dirty = hard, true
	w.hint.note(batch, w.last, w.end, hs != nil)
	w.state.push(w.active, batch, w.end)
	if len(batch) > 0 {
		w.last = batch[len(batch)-1].entry.Index
	}
	return nil
}

// writeFrames encodes the batch piece by piece, writes it at the end of the active segment, and sets the locations of
// its entries. It returns the new end. In Resident residency it encodes the frames at their offsets in the image.
func (w *writer) writeFrames(withState bool, hard format.StateRecord, batch []tailEntry, bytes int64) (end int64,
	err error) {
	s, file := w.active, w.active.file.Load()
	small := bytes <= smallBatchBytes
	var buffer []byte // memory for one piece; if nil, the frames are encoded in the segment's image
	switch {
	case s.image != nil:
	case small:
		w.buffer = slices.Grow(w.buffer[:0], int(bytes))
		buffer = w.buffer
	default:
		shared := segio.FrameBuffers.Get().(*[]byte)
		defer segio.FrameBuffers.Put(shared)
		buffer = *shared
	}
	w.share.batch = nil
	at := w.end // offset of the piece that is being encoded
	piece := s.emptyPiece(buffer, at)
	for i := range batch {
		t := &batch[i]
		from := len(piece)
		piece = format.AppendFrame(piece, s.id, at+int64(from), &t.entry)
		t.loc = s.place(at+int64(from), int64(len(piece)-from), t.entry.Kind == format.KindDelete)
		if len(piece) < writePieceBytes || i == len(batch)-1 {
			continue
		}
		if _, err := file.WriteAt(piece, at); err != nil {
			return 0, err
		}
		vfs.StartWriting(file, at, int64(len(piece)))
		at += int64(len(piece))
		piece = s.emptyPiece(buffer, at)
	}
	if withState {
		hard.SyncedOffset, hard.SyncedIndex = w.state.syncedEnd, w.state.syncedLast
		piece = format.AppendStateFrame(piece, s.id, at+int64(len(piece)), hard)
	}
	_, err = file.WriteAt(piece, at)
	if small { // there is only one piece
		w.share.batch, w.share.batchAt = piece, at
	}
	return at + int64(len(piece)), err
}

// emptyPiece returns the memory into which frames from the given offset on are encoded. This is a part of the image
// or, if there is no image, the buffer.
func (s *segment) emptyPiece(buffer []byte, at int64) []byte {
	if s.image != nil {
		return s.image[at:at]
	}
	return buffer[:0]
}

// writeFailed handles a failed write. It returns nil if the log was continued in a new segment, and the caller has to
// write again.
func (w *writer) writeFailed(cause error) error {
	cause = format.MarkShortage(cause)
	// Frames that were written must be removed, because after a shorter batch they could be mistaken for a part of the
	// log.
	file := w.active.file.Load()
	err := w.allocation.truncate(file, w.end)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		w.syncedTo(w.end, w.last)
		return cause
	}
	w.suspect = errors.Join(cause, err)
	if err := w.recover(); err != nil {
		return err
	}
	if format.Passes(cause) {
		return cause
	}
	return nil
}
