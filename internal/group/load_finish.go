package group

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/replay"
	"sheaf.dev/sheaf/internal/index"
)

// insert puts a place into the index; the later one of two stays, the other is superseded. Safe for concurrent use.
func (l *Log) insert(id int64, loc index.Loc) error {
	old, won, err := l.table.Max(id, loc)
	switch {
	case err != nil:
		return err
	case won && old != 0:
		l.lose(old)
	case !won && old != loc:
		l.lose(loc)
	}
	return nil
}

// lose clears the used flag of the frame at a place, in whichever segment it is.
func (l *Log) lose(loc index.Loc) { l.supersede(l.segmentAt(loc.Ordinal()), loc) }

// supersede clears the used flag of a frame.
func (l *Log) supersede(s *segment, loc index.Loc) {
	if s != nil && s.used.supersede(loc) {
		l.superseded.Add(loc.LengthBound())
	}
}

// supersedeKnown is supersede for a flag that the hint on disk has.
func (l *Log) supersedeKnown(s *segment, loc index.Loc) {
	if s.used.supersede(loc) {
		l.superseded.Add(loc.LengthBound())
		s.used.written(1)
	}
}

// assemble puts the parts together: terms, index of the active segment, the tail. Then the log can be written.
func (ld *loading) assemble(active *replay.Recovered) error {
	st := &ld.state
	st.floor, st.floorTerm = ld.manifest.CompactedThrough, ld.manifest.CompactedTerm
	st.last = max(st.last, st.floor)
	for i, part := range ld.parts {
		st.terms = format.CutTerms(st.terms, st.segments[i].first)
		for _, run := range part.terms {
			ld.addTerm(run.FirstIndex, run.Term)
		}
		st.lastCommit = max(st.lastCommit, part.lastCommit)
		ld.damages = append(append(ld.damages, part.header...), part.damages...)
		ld.ids = append(ld.ids, part.ids...)
	}
	if err := ld.checkTail(); err != nil {
		return err
	}
	commit := max(ld.commit, st.floor)
	ld.w.hard.Commit = max(min(ld.w.hard.Commit, st.last), commit)
	st.conf, st.confIndex = ld.manifest.Conf, ld.manifest.ConfIndex
	if active != nil {
		s := st.segments[len(st.segments)-1]
		if err := ld.insertRows(s, s.rows, commit, active.Damages); err != nil {
			return err
		}
		if err := ld.openActive(s, active); err != nil {
			return err
		}
	} else if err := ld.beginActive(); err != nil {
		return err
	}
	st.syncedIndex = st.last
	return ld.fillTail(commit)
}

// checkTail is ErrTailDamaged where damage in a group with several voters may hide what made entries above the commit
// void: they are whole and in order, and must not be given to Raft.
func (ld *loading) checkTail() error {
	i := slices.IndexFunc(ld.damages, func(d *format.Damage) bool { return d.IDsUnknown && d.IndexLast > ld.commit })
	if i < 0 || len(format.VotersOf(ld.manifest.Conf)) <= 1 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrTailDamaged, ld.damages[i])
}

// openActive opens the last segment for writing, after the cut of a torn tail.
func (ld *loading) openActive(s *segment, r *replay.Recovered) error {
	w, st := &ld.w, &ld.state
	f, err := s.reader() // opened for writing, unless the file was gone
	if err != nil {
		return err
	}
	if err := ld.active.awaitSync(); err != nil {
		return fmt.Errorf("%s: sync the recovered tail: %w; start again: it will be recovered anew", s.path, format.NoSpace(err))
	}
	size := ld.active.size
	switch {
	case r.Cut:
		if err := f.Truncate(r.End); err != nil {
			return fmt.Errorf("%s: cut the torn tail at offset %d: %w", s.path, r.End, err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("%s: sync the cut of the torn tail: %w; start again: it will be recovered anew", s.path, format.NoSpace(err))
		}
		size, ld.report.CutBytes = r.End, r.CutBytes
	case r.End < size:
		w.inherited = true // what is there reads as zero
	}
	last := r.LastIndex()
	w.active, w.end, w.allocated, w.opened, w.last = s, r.End, size, r.End, last
	if r.States {
		w.state = format.StateFrame{Offset: r.StateAt, Last: r.StateLast}
	}
	st.end, st.syncedEnd, st.syncedLast = r.End, r.End, last
	s.rows.Synced()
	return ld.growActiveImage(s, r.End, ld.sizes[len(ld.sizes)-1])
}

// growActiveImage makes room behind the end of the recovered active segment, in Resident residency. What stood behind
// the end, up to what was read, is cut off in the file, so it must not be in memory either.
func (ld *loading) growActiveImage(s *segment, end, read int64) error {
	if ld.opts.Residency != Resident {
		return nil
	}
	if end <= int64(len(s.image)) {
		clear(s.image[end:max(end, min(read, int64(len(s.image))))]) // no further: what is behind was never touched
		return nil
	}
	// The segment was not read, or its file ends below the synced mark.
	loaded, free := s.image, s.free
	if err := ld.newImage(s, max(ld.opts.SegmentBytes, end)); err != nil {
		return err
	}
	copy(s.image, loaded)
	if free != nil {
		free()
	}
	return nil
}

// beginActive makes the active segment of a manifest that has none.
func (ld *loading) beginActive() error {
	w, st := &ld.w, &ld.state
	w.active = &segment{ordinal: ordinalStep * uint32(len(st.segments))}
	next, err := ld.createSegment(st.last+1, 0)
	if err != nil {
		return err
	}
	if err := ld.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments, next.manifest())
	}); err != nil {
		ld.discardUnlessListed(next)
		return err
	}
	w.active, w.end, w.allocated, w.last = next, format.SegmentHeaderBytes, format.SegmentHeaderBytes, st.last
	st.end, st.syncedEnd, st.syncedLast = format.SegmentHeaderBytes, format.SegmentHeaderBytes, st.last
	st.segments = append(st.segments, next)
	ld.publishSegments()
	return nil
}

// fillTail reads the entries above the commit into memory.
func (ld *loading) fillTail(commit uint64) error {
	st := &ld.state
	ld.applied.Store(commit)
	ld.ages.note(commit)
	st.tail.first = commit + 1
	if st.last <= commit {
		return nil
	}
	var bad error
	err := ld.readEntries(commit+1, st.last, func(e *format.Entry, loc index.Loc) bool {
		r := format.RaftEntry(e)
		if e.Kind == format.KindConf {
			r.Data = bytes.Clone(r.Data)
		}
		kept, err := format.DecodePayload(r) // aliases r, not what was read
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

// placeTail tells the entries of the tail the place that rows and hints have. An entry that was made void and came
// again stands twice in a segment, and the first one is void: compaction leaves it out.
func (ld *loading) placeTail() error {
	t := &ld.state.tail
	views := ld.views(t.first, ld.state.last)
	defer unpinAll(views)
	for _, v := range views {
		ordinal := uint64(v.ordinal) << 44
		rows := v.rows
		if rows == nil {
			h, err := ld.hintOf(v)
			if err != nil {
				return err
			}
			rows = &format.Rows{Places: h.Places, Indexes: h.Indexes}
		}
		for i, place := range rows.Places {
			at := v.first + uint64(rows.Indexes[i])
			if e := t.at(at); e != nil && at <= v.through && e.entry.Kind.IsVersion() {
				e.loc = index.Loc(place | ordinal)
			}
		}
	}
	return nil
}

// conclude makes the report.
func (ld *loading) conclude() {
	ld.mu.Lock()
	for _, d := range ld.damages {
		ld.addDamage(d)
	}
	for _, id := range ld.ids {
		ld.addDamagedID(id)
	}
	ld.mu.Unlock()
	for i, part := range ld.parts {
		if part.hintGone { // not before: hints are made of what loading gathers
			ld.writeHintLater(ld.state.segments[i])
		}
	}
	ld.memory.settle(ld.memoryBytes())
	ld.report.Outcome = Loaded
	if ld.report.CutBytes > 0 {
		ld.report.Outcome = Truncated
	}
	if len(ld.damages) > 0 {
		ld.report.Outcome = Damaged
	}
	for _, d := range ld.damages {
		ld.report.Damages = append(ld.report.Damages, *d)
	}
}

// abandon gives back what a load that failed has taken.
func (l *Log) abandon() {
	if l.closed.CompareAndSwap(false, true) {
		l.cancel()
		l.release()
	}
}

// collectBlobs learns which blobs are referred to and removes the others, unless an entry that could not be read may
// refer to them: the device may read it the next time.
func (ld *loading) collectBlobs() error {
	for _, part := range ld.parts {
		for _, b := range part.blobs {
			ld.blobs.refer(b.Ref)
		}
	}
	if len(ld.damages) > 0 {
		return nil
	}
	removed := 0
	for _, name := range ld.names {
		id, ok := format.ParseBlobName(name)
		if !ok || ld.blobs.isReferred(id) {
			continue
		}
		if err := ld.fs.Remove(path.Join(ld.dir, name)); err != nil {
			return fmt.Errorf("blob %s, which no entry refers to: %w", name, err)
		}
		removed++
	}
	if removed > 0 {
		return ld.fs.SyncDir(ld.dir)
	}
	return nil
}

// SetConf records the membership after an applied membership change, durable when it returns.
func (l *Log) SetConf(conf *raftpb.ConfState, at uint64) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	err := l.settle()
	if err == nil {
		err = l.writeManifest(func(m *format.Manifest) { m.Conf, m.ConfIndex = conf, at })
	}
	if err != nil {
		return fmt.Errorf("group %s: membership: %w", l.opts.Identity.Name, err)
	}
	l.mu.Lock()
	l.state.conf, l.state.confIndex = conf, at
	l.state.confsAhead = slices.DeleteFunc(l.state.confsAhead, func(seen uint64) bool { return seen <= at })
	l.mu.Unlock()
	return nil
}
