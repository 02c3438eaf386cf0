package group

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/index"
)

// dropVoid combines the results of all segments and leaves out void entries. It sets the terms and the hard state, and
// adds the entries of the last segment to the index.
func (ld *loading) dropVoid() error {
	st := &ld.state
	st.floor, st.floorTerm = ld.manifest.CompactedThrough, ld.manifest.CompactedTerm
	st.last = max(st.last, st.floor)
	for i, part := range ld.loaded {
		st.terms = format.TruncateTerms(st.terms, st.segments[i].first)
		for _, run := range part.terms {
			ld.state.addTerm(run.FirstIndex, run.Term)
		}
		st.lastCommit = max(st.lastCommit, part.lastCommit)
		ld.found = append(append(ld.found, part.header...), part.damages...)
		ld.ids = append(ld.ids, part.ids...)
	}
	if err := ld.checkTail(); err != nil {
		return err
	}
	ld.commit = max(ld.commit, st.floor)
	ld.w.hard.Commit = max(min(ld.w.hard.Commit, st.last), ld.commit)
	st.conf, st.confIndex = ld.manifest.Conf, ld.manifest.ConfIndex
	if ld.last == nil {
		return nil
	}
	s := st.segments[len(st.segments)-1]
	return ld.insertRows(s, s.rows, ld.commit, ld.last.Damages)
}

// endLast prepares the last segment for writing, and truncates a torn tail. If no segment is active, endLast creates
// one.
func (ld *loading) endLast() (err error) {
	if ld.last != nil {
		err = ld.openActive(ld.state.segments[len(ld.state.segments)-1], ld.last)
	} else {
		err = ld.w.beginActive()
	}
	ld.state.syncedIndex = ld.state.last
	return err
}

// checkTail returns ErrTailDamaged if the group has several voters and bad bytes may hide a frame that made entries
// above the commit void. These entries are whole and in order, but must not be passed to Raft.
func (ld *loading) checkTail() error {
	i := slices.IndexFunc(ld.found, func(d *format.Damage) bool { return d.IDsUnknown && d.IndexLast > ld.commit })
	if i < 0 || len(format.VotersOf(ld.manifest.Conf)) <= 1 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrTailDamaged, ld.found[i])
}

// openActive waits for the sync of the last segment, truncates its torn tail, if any, and passes the segment to the
// writer.
func (ld *loading) openActive(s *segment, r *replay.Recovered) error {
	w, st := &ld.w, &ld.state
	// This is normally the file that openActiveFile has opened for writing. If the file was missing at that time, it is
	// opened now.
	f, err := s.reader()
	if err != nil {
		return err
	}
	if err := ld.active.awaitSync(); err != nil {
		return fmt.Errorf("%s: sync the recovered tail: %w; start again: it will be recovered again", s.path,
			format.MarkShortage(err))
	}
	size := ld.active.size
	switch {
	case r.HasTornTail:
		if err := f.Truncate(r.End); err != nil {
			return fmt.Errorf("%s: truncate the torn tail at offset %d: %w", s.path, r.End, err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("%s: sync after truncating the torn tail: %w; start again: it will be recovered again", s.path,
				format.MarkShortage(err))
		}
		size, ld.report.TornTailBytes = r.End, r.TornTailBytes
	case r.End < size:
		w.allocation.inherited = true // the previous process may have allocated space, which reads as zeros
	}
	last := r.LastIndex()
	w.active, w.end, w.last = s, r.End, last
	w.allocation.allocated, w.allocation.opened = size, r.End
	if r.States {
		w.hint.frame = format.StateFrame{Offset: r.StateAt, Last: r.StateLast}
	}
	st.end, st.syncedEnd, st.syncedLast = r.End, r.End, last
	s.rows.Synced()
	return ld.growActiveImage(s, r.End, ld.sizes[len(ld.sizes)-1])
}

// growActiveImage adds space at the end of the recovered active segment's image, if the residency is Resident. The
// argument end is the offset at which the file is truncated, and read is the offset up to which the file was read into
// the image. growActiveImage clears the memory between these two offsets.
func (ld *loading) growActiveImage(s *segment, end, read int64) error {
	if ld.opts.Residency != Resident {
		return nil
	}
	if end <= int64(len(s.image)) {
		// Memory at or beyond the offset `read` was never written to.
		clear(s.image[end:max(end, min(read, int64(len(s.image))))])
		return nil
	}
	// The image is missing or too small. Either the segment was not read, or its file ends below the synced mark.
	loaded, free := s.image, s.free
	if err := ld.images.begin(s, max(ld.opts.SegmentBytes, end)); err != nil {
		return err
	}
	copy(s.image, loaded)
	if free != nil {
		free()
	}
	return nil
}

// beginActive creates an active segment during a load if the manifest has none.
func (w *writer) beginActive() error {
	st := w.state
	w.active = &segment{ordinal: ordinalStep * uint32(len(st.segments))}
	next, err := w.createSegment(st.last+1, 0)
	if err != nil {
		return err
	}
	if err := w.folder.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments, next.manifest())
	}); err != nil {
		w.folder.discardUnlessListed(next)
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	w.begin(next, st.last+1)
	return nil
}

// readTail reads the entries above the commit into memory. Raft decides whether they are committed.
func (ld *loading) readTail() error {
	st, commit := &ld.state, ld.commit
	ld.state.applied.Store(commit)
	ld.state.ages.note(commit)
	st.tail.first = commit + 1
	if st.last <= commit {
		return nil
	}
	var bad error
	err := ld.reader.walkEntries(commit+1, st.last, nil, func(e *format.Entry, loc index.Loc) bool {
		r := raftEntry(e)
		kept, err := format.DecodePayload(r) // the decoded entry aliases r, and not the memory of the reader
		if err != nil {
			bad = err
			return false
		}
		kept.Used = true
		st.tail.push(kept.Index, []tailEntry{{raft: r, entry: kept, loc: loc}})
		return true
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	return ld.placeTail()
}

// placeTail sets the locations of the tail's entries, which it takes from rows and hints. If an entry was made void
// and appended again later, it has two frames in a segment. The second frame is the valid one, and rows and hints have
// its location.
func (ld *loading) placeTail() error {
	t := &ld.state.tail
	views := ld.reader.views(t.first, ld.state.last)
	defer unpinAll(views)
	for _, v := range views {
		rows, err := ld.reader.rowsOf(v)
		if err != nil {
			return err
		}
		for i, place := range rows.Places {
			at := v.first + uint64(rows.Indexes[i])
			if e := t.at(at); e != nil && at <= v.through && e.entry.Kind.IsVersion() {
				e.loc = index.Loc(place).In(v.ordinal)
			}
		}
	}
	return nil
}

// conclude determines the outcome, completes the load's report, and returns unneeded memory.
func (ld *loading) conclude() error {
	ld.memory.release()
	for _, d := range ld.found {
		ld.damages.note(*d)
	}
	for _, id := range ld.ids {
		ld.damages.noteID(id)
	}
	for i, part := range ld.loaded {
		// The hint is created from the results of the load, so it cannot be written earlier.
		if part.hintGone {
			ld.hints.writeLater(ld.state.segments[i])
		}
	}
	ld.report.Outcome = Loaded
	if ld.report.TornTailBytes > 0 {
		ld.report.Outcome = Truncated
	}
	if len(ld.found) > 0 {
		ld.report.Outcome = Damaged
	}
	for _, d := range ld.found {
		ld.report.Damages = append(ld.report.Damages, *d)
	}
	return nil
}

// removeBlobs determines which blobs entries refer to, and removes the others. If there is damage it removes none,
// because an unreadable entry may refer to a blob, and the device may be able to read that entry later.
func (ld *loading) removeBlobs() error {
	for _, part := range ld.loaded {
		for _, b := range part.blobs {
			ld.blobs.refer(b.Ref)
		}
	}
	if len(ld.found) > 0 {
		return nil
	}
	var garbage []string
	for _, name := range ld.names {
		if id, ok := format.ParseBlobName(name); ok && !ld.blobs.isReferred(id) {
			garbage = append(garbage, name)
		}
	}
	return ld.folder.clear(garbage)
}

// SetConf durably records the membership that a membership change has led to. It must be called after the change was
// applied.
func (l *Log) SetConf(conf *raftpb.ConfState, at uint64) error {
	return l.write("membership", func() error {
		if err := l.w.amend(func(m *format.Manifest) { m.Conf, m.ConfIndex = conf, at }); err != nil {
			return err
		}
		l.state.mu.Lock()
		defer l.state.mu.Unlock()
		l.state.conf, l.state.confIndex = conf, at
		l.state.confsAhead = slices.DeleteFunc(l.state.confsAhead, func(seen uint64) bool { return seen <= at })
		return nil
	})
}

// endInstall completes an Install that has crashed after its commit point. It also removes the files that were
// collected for an install if the log already has everything that they contain. Errors are ignored. A replica with a
// manifest counts as a member even if its replica file still says that it is joining, and files that could not be
// removed merely occupy space.
func (ld *loading) endInstall() error {
	err := ld.endJoining()
	if slices.Contains(ld.names, format.IncomingName) {
		m, readErr := format.ReadManifest(ld.folder.fs, path.Join(ld.folder.dir, format.IncomingName))
		if readErr != nil || m.HardState.Commit <= ld.state.applied.Load() {
			err = errors.Join(err, transfer.RemoveIncoming(ld.folder.fs, ld.folder.dir))
		}
	}
	if err != nil {
		ld.folder.logger.Warn("what an install has left could not be put in order", "error", err)
	}
	return nil
}

func (ld *loading) endJoining() error {
	if ld.plan != nil && ld.plan.Replica != nil {
		return nil // the replica is not joining
	}
	b, err := format.ReadAll(ld.folder.fs, path.Join(ld.folder.dir, format.ReplicaName), 2*format.ReplicaFileBytes)
	if err != nil {
		return nil //nolint:nilerr // the file does not exist, or ReadReplicaFile reports the error
	}
	f, _, err := format.DecodeReplicaFile(b)
	if err != nil || !f.Joining {
		return nil //nolint:nilerr // ReadReplicaFile reports the error
	}
	f.Joining = false
	return format.WriteReplicaFile(ld.folder.fs, ld.folder.dir, f)
}
