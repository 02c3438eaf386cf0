package group

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/segio"
	"sheaf.dev/sheaf/internal/index"
	"sheaf.dev/sheaf/internal/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare of what the volume has to spare is allocated ahead at most, for there are many groups.
	allocateShare = 64
	// bufferBytesKept is the write buffer that a group keeps for its small batches; greater ones share
	// segio.FrameBuffers.
	bufferBytesKept = 32 << 10
	// writePieceBytes of a batch are written at a time: the device begins with them while the next ones are encoded,
	// and they stay in the processor's cache from the one to the other. With the greatest frame they fit into one of
	// segio.FrameBuffers.
	writePieceBytes = 512 << 10
)

// batches are used again for what decodeBatch takes apart.
var batches = sync.Pool{New: func() any { return new([]tailEntry) }}

// Append writes entries (consecutive indexes; one at or below the last index cuts the log there first, never at or
// below the commit) and, where it is not nil, the hard state. Not durable before Sync. Seals the segment and begins a
// new one where it is full. On ErrNoSpace nothing was appended and it may be tried again. The log keeps entries' Data
// until they are applied; the caller must not change it. The content of a put is made by EncodePayload.
func (l *Log) Append(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	used := batches.Get().(*[]tailEntry)
	defer batches.Put(used)
	batch, bytes, err := l.decodeBatch((*used)[:0], entries)
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
	if err := l.makeRoom(batch, bytes); err != nil {
		return fmt.Errorf("group %s: append: %w", l.opts.Identity.Name, err)
	}
	if err := l.writeBatch(hs, batch, bytes); err != nil {
		return fmt.Errorf("group %s: append: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// decodeBatch checks the order of the entries against the log, takes them apart, and adds them to batch. bytes is what
// they take on disk.
func (l *Log) decodeBatch(batch []tailEntry, entries []*raftpb.Entry) (_ []tailEntry, bytes int64, err error) {
	if len(entries) == 0 {
		return batch, 0, nil
	}
	first, last, commit := entries[0].GetIndex(), l.state.last, l.commitFloor()
	switch {
	case first > last+1:
		return batch, 0, fmt.Errorf("group %s: append: index %d leaves a gap behind %d", l.opts.Identity.Name, first, last)
	case first <= commit:
		return batch, 0, fmt.Errorf("group %s: append: index %d would cut the log at or below its commit %d",
			l.opts.Identity.Name, first, commit)
	}
	batch = slices.Grow(batch, len(entries))
	for i, r := range entries {
		if r.GetIndex() != first+uint64(i) {
			return batch, 0, fmt.Errorf("group %s: append: index %d follows %d", l.opts.Identity.Name, r.GetIndex(), first+uint64(i)-1)
		}
		e, err := format.DecodePayload(r)
		if err != nil {
			return batch, 0, fmt.Errorf("group %s: append: %w", l.opts.Identity.Name, err)
		}
		if e.Kind == format.KindRequest {
			return batch, 0, fmt.Errorf("group %s: append: %w: index %d is a remembered request, which no leader sends", l.opts.Identity.Name, format.ErrCorrupt, e.Index)
		}
		e.Used = true
		batch = append(batch, tailEntry{raft: r, entry: e})
		bytes += format.FrameBytes(len(e.Attributes), len(e.Data))
	}
	return batch, bytes, nil
}

// commitFloor is the index at or below which nothing is ever cut.
func (l *Log) commitFloor() uint64 {
	return max(min(l.w.hard.Commit, l.state.last), l.state.applied.Load(), l.state.floor)
}

// makeRoom makes the active segment ready for bytes more: continues it elsewhere after a failure, cuts away segments
// that the batch makes void, seals it where it is full, asks for memory, allocates.
func (l *Log) makeRoom(batch []tailEntry, bytes int64) error {
	if err := l.settle(); err != nil {
		return err
	}
	first := l.state.last + 1
	if len(batch) > 0 {
		first = batch[0].entry.Index
	}
	if err := l.memory.askMore(len(batch), bytes); err != nil {
		return err
	}
	w := &l.w
	// Again for each new segment: where a sync of the old one failed, the new one holds what was not synced, and begins
	// with it.
	for s := (*segment)(nil); s != w.active; {
		s = w.active
		var err error
		switch {
		case first < s.first:
			err = l.replaceSegments(first, bytes)
		case w.end == format.SegmentHeaderBytes && !s.holds(bytes):
			// An empty segment whose image is too small for this batch makes room for a greater one.
			err = l.replaceSegments(first, bytes)
		case w.end > format.SegmentHeaderBytes && (w.end+bytes > l.opts.SegmentBytes || first+uint64(len(batch))-s.first >= math.MaxUint32):
			if err = l.roll(first, bytes); err == nil && l.opts.Sealed != nil {
				l.opts.Sealed()
			}
		}
		if err != nil {
			return err
		}
	}
	if l.w.end+bytes > index.OffsetMax {
		return fmt.Errorf("batch of %d bytes is above the limit of a segment", bytes)
	}
	return l.allocate(bytes)
}

// allocate makes the file long enough for bytes more, in steps, so that a sync need not write the size each time.
func (l *Log) allocate(bytes int64) error {
	w := &l.w
	need := w.end + bytes
	if need <= w.allocated {
		return nil
	}
	step := min(max(w.end-w.opened, allocateBytesMin), allocateBytesMax) // little for a group that is opened and hardly written to
	if l.opts.Spare != nil {
		step = min(step, max(0, l.opts.Spare()/allocateShare))
	}
	want := max(need, min(need+step, l.opts.SegmentBytes))
	err := w.active.file.Load().Allocate(w.allocated, want-w.allocated)
	if err != nil && want > need {
		want = need
		err = w.active.file.Load().Allocate(w.allocated, want-w.allocated)
	}
	if err != nil {
		return format.NoSpace(err)
	}
	w.allocated = want
	return nil
}

// writeBatch writes the batch, which takes so many bytes, then changes the state in memory.
func (l *Log) writeBatch(hs *raftpb.HardState, batch []tailEntry, bytes int64) error {
	w := &l.w
	hard := w.hard
	if hs != nil {
		hard.Term, hard.Vote, hard.Commit = hs.GetTerm(), hs.GetVote(), hs.GetCommit()
	}
	for {
		end, err := l.writeFrames(hs != nil, hard, batch, bytes)
		if err == nil {
			w.end = end
			break
		}
		if err := l.writeFailed(err); err != nil {
			return err
		}
		// It was continued in a new segment, which begins behind what is synced: too late for a batch that cuts the
		// log.
		if err := l.makeRoom(batch, bytes); err != nil {
			return err
		}
	}
	w.hard, w.dirty = hard, true
	l.noteStates(hs != nil, batch)
	l.keepBatch(batch)
	return nil
}

// writeFrames encodes the batch at the end of the active segment, piece by piece, writes it, and tells it its places.
// end is behind it. In Resident residency frames are made where they stay: in the image.
func (l *Log) writeFrames(withState bool, hard format.StateRecord, batch []tailEntry, bytes int64) (end int64, err error) {
	s, file := l.w.active, l.w.active.file.Load()
	var buffer []byte
	if s.image == nil {
		if bytes > bufferBytesKept {
			shared := segio.FrameBuffers.Get().(*[]byte)
			defer segio.FrameBuffers.Put(shared)
			buffer = *shared
		} else {
			l.w.buffer = slices.Grow(l.w.buffer[:0], int(bytes))
			buffer = l.w.buffer
		}
	}
	at := l.w.end
	l.w.batch = nil
	piece := func() []byte {
		if s.image != nil {
			return s.image[at:at]
		}
		return buffer[:0]
	}
	buf := piece()
	for i := range batch {
		t := &batch[i]
		from := len(buf)
		buf = format.AppendFrame(buf, s.id, at+int64(from), &t.entry)
		t.loc = s.place(at+int64(from), int64(len(buf)-from), t.entry.Kind == format.KindDelete)
		if len(buf) < writePieceBytes || i == len(batch)-1 {
			continue
		}
		if _, err := file.WriteAt(buf, at); err != nil {
			return 0, err
		}
		vfs.StartWriting(file, at, int64(len(buf)))
		at += int64(len(buf))
		buf = piece()
	}
	if withState {
		hard.SyncedOffset, hard.SyncedIndex = l.state.syncedEnd, l.state.syncedLast
		buf = format.AppendStateFrame(buf, s.id, at+int64(len(buf)), hard)
	}
	_, err = file.WriteAt(buf, at)
	if at == l.w.end && bytes <= bufferBytesKept {
		l.w.batch, l.w.batchAt = buf, at
	}
	return at + int64(len(buf)), err
}

// writeFailed decides what a failed write means. Nil: the log was continued in a new segment, write again.
func (l *Log) writeFailed(cause error) error {
	w := &l.w
	cause = format.NoSpace(cause)
	// Frames that were written in part must not stay: beside a shorter batch they could pass as its end.
	file := w.active.file.Load()
	err := file.Truncate(w.end)
	if err == nil {
		w.allocated = w.end
		w.ahead.cut(w.end)
		err = file.Sync()
	}
	if err == nil {
		l.syncedTo(w.end, w.last)
		return cause
	}
	w.suspect = errors.Join(cause, err)
	if err := l.settle(); err != nil {
		return err
	}
	if errors.Is(cause, format.ErrNoSpace) {
		return cause
	}
	return nil
}

// keepBatch makes what was written part of the state in memory.
func (l *Log) keepBatch(batch []tailEntry) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	st, s := &l.state, l.w.active
	st.end = l.w.end
	if len(batch) == 0 {
		return
	}
	first := batch[0].entry.Index
	if first <= st.last {
		l.state.cut(first)
	}
	st.tail.push(first, batch)
	for i := range batch {
		e := &batch[i].entry
		l.state.addTerm(e.Index, e.Term)
		st.lastCommit = max(st.lastCommit, e.CommitTime)
		if e.Kind == format.KindPut || e.Kind == format.KindDelete {
			loc := batch[i].loc
			s.rows.Add(s.first, e, loc.Offset(), format.FrameBytes(len(e.Attributes), len(e.Data)))
		}
	}
	st.last = batch[len(batch)-1].entry.Index
	l.w.last = st.last
}
