package group

import (
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// recoverLast recovers the last segment if it is active, and combines the hard states. It leaves truncating a torn tail
// to endLast.
func (ld *loading) recoverLast() error {
	for slot, e := range ld.active.mark.bad {
		if e != nil {
			ld.folder.logger.Info("a slot of the mark file is not whole: torn by a crash, or damaged",
				"slot", slot, "error", e)
		}
	}
	ld.marks.sequence = ld.active.mark.Sequence
	if ld.active.mark.bad == [format.MarkSlots]error{} {
		ld.marks.last = ld.active.mark.Mark
	}
	hard := &ld.w.hard
	*hard = ld.manifest.HardState
	hard.SyncedOffset, hard.SyncedIndex = 0, 0
	n := len(ld.manifest.Segments)
	if n == 0 || ld.manifest.Segments[n-1].Sealed() {
		ld.state.last = ld.manifest.CompactedThrough
		if n > 0 {
			ld.state.last = max(ld.state.last, ld.manifest.Segments[n-1].LastIndex)
		}
		ld.commit = min(hard.Commit, ld.state.last)
		return nil
	}
	s := ld.state.segments[n-1]
	there := s.file.Load() != nil
	r, err := replay.Recover(ld.opts.Identity.Name, ld.folder.manifest, s.manifest(), ld.sizes[n-1], ld.active.mark.Mark,
		ld.walkActive(s, ld.sizes[n-1]))
	if err != nil {
		return err
	}
	damage, err := ld.checkHeader(s, s.manifest(), there)
	if err != nil {
		return err
	}
	if damage != nil {
		ld.found = append(ld.found, damage)
	}
	if r.States {
		hard.MergeHardState(r.State)
		hard.SyncedOffset, hard.SyncedIndex = 0, 0
	}
	s.rows, s.incomplete = &r.Rows, lostEntries(r.Damages)
	ld.loaded[n-1] = &loaded{terms: r.Terms, blobs: r.Rows.Blobs, lastCommit: r.Rows.LastCommit, damages: r.Damages,
		ids: r.IDs}
	ld.state.last, ld.state.end = r.LastIndex(), r.End
	ld.last, ld.commit = r, min(hard.Commit, ld.state.last)
	return nil
}

// lostEntries reports whether the damage may have destroyed entries.
func lostEntries(damages []*format.Damage) bool {
	return slices.ContainsFunc(damages, func(d *format.Damage) bool { return d.IndexLast != 0 })
}

// walkActive returns a function that walks the active segment from its beginning. If the residency is Resident, it
// walks the image, which the first walk loads.
func (ld *loading) walkActive(s *segment, size int64) func(through int64) (*replay.Walk, error) {
	if ld.opts.Residency != Resident || size <= format.SegmentHeaderBytes {
		return ld.walkActiveFile(s, size)
	}
	return func(through int64) (*replay.Walk, error) {
		if s.image == nil {
			w := replay.NewActive(s.first)
			return w, ld.images.walk(ld.ctx, s, size, max(ld.opts.SegmentBytes, size), func() *replay.Walk { return w }, ld.read)
		}
		w := replay.NewActive(s.first)
		return w, w.GoOn(segio.NewFrameReaderBytes(s.image[:through], s.id, format.SegmentHeaderBytes), s.first, through)
	}
}

// walkActiveFile returns a function that walks the active segment from the end of its hint, or from the beginning if
// it has no hint.
func (ld *loading) walkActiveFile(s *segment, size int64) func(through int64) (*replay.Walk, error) {
	hint := ld.readActiveHint(s, size)
	return func(through int64) (*replay.Walk, error) {
		if hint != nil && through > hint.End {
			w, usable, err := ld.walkBehind(s, hint, through)
			if err != nil || usable {
				ld.w.hint.covered, ld.report.HintedBytes = hint.HintPart, hint.End
				ld.read(max(0, through-hint.End) + hint.Bytes)
				return w, err
			}
			ld.folder.logger.Info("the hint of the active segment does not end at a state frame: all of it is read instead",
				"segment", s.number)
		}
		hint, ld.w.hint.covered, ld.report.HintedBytes = nil, format.HintPart{}, 0
		w := replay.NewActive(s.first)
		err := s.walkFileOn(w, format.SegmentHeaderBytes, through)
		if through == size {
			ld.read(size)
		}
		return w, err
	}
}

// findCommit determines the index up to which entries are applied. This is the commit index on disk, unless a
// membership change lowers it or damage raises it.
func (ld *loading) findCommit() error {
	ld.holdBackConf()
	if ld.last != nil {
		// With these terms, isValid recognizes the entries in the tail that a later leader has made void.
		ld.state.terms = ld.last.Terms
		defer func() { ld.state.terms = nil }() // dropVoid later computes the terms of all segments
	}
	return ld.findTailIDs()
}

// holdBackConf lowers the commit below the first membership change that is not in the manifest yet, so that Raft
// delivers the change again. Only entries above the commit in the manifest can be such a change, because the
// manifest's commit is never above the index that had been applied when the manifest was written. The part of the
// active segment that its hint covers has no such change either.
func (ld *loading) holdBackConf() {
	known := max(ld.manifest.ConfIndex, ld.manifest.CompactedThrough)
	hold := func(at uint64) {
		if at > known && at <= ld.commit {
			ld.commit = at - 1
		}
	}
	through := ld.state.last
	if ld.last != nil {
		for _, at := range ld.last.Confs {
			hold(at)
		}
		through = ld.state.segments[len(ld.state.segments)-1].first - 1
	}
	from := max(ld.manifest.HardState.Commit, known) + 1
	through = min(through, ld.commit)
	if from > through {
		return
	}
	for _, gap := range ld.withoutRows(from, through) {
		ld.walkReadable(gap.First, gap.Last, func(e *format.Entry) bool {
			if e.Kind == format.KindConf {
				hold(e.Index)
			}
			return true
		})
	}
}

// walkReadable walks the readable entries from lo to hi. It skips damage and files that cannot be opened, because other
// walks during the load find the damage.
func (ld *loading) walkReadable(lo, hi uint64, fn func(*format.Entry) bool) {
	_ = ld.reader.walkEntries(lo, hi, func(format.Damage) {}, func(e *format.Entry, _ index.Loc) bool { return fn(e) })
}

// withoutRows returns the indexes in [first, last] that have no put or delete in the hint of any sealed segment.
// These indexes may be membership changes.
func (ld *loading) withoutRows(first, last uint64) (out []IndexRange) {
	versions := make([]bool, last-first+1)
	for i, m := range ld.manifest.Segments {
		if !m.Sealed() || m.LastIndex < first || m.FirstIndex > last {
			continue
		}
		hint := ld.readHint(m)
		if ld.early == nil {
			ld.early = make(map[uint64]*format.Hint)
		}
		ld.early[m.Number] = hint
		if hint == nil {
			continue
		}
		for _, delta := range hint.Indexes {
			if at := hint.FirstIndex + uint64(delta); at >= first && at <= min(last, ld.state.through(i)) {
				versions[at-first] = true
			}
		}
	}
	for i, isVersion := range versions {
		if at := first + uint64(i); !isVersion {
			out = append(out, IndexRange{at, at})
		}
	}
	return joinRanges(out)
}

// findTailIDs finds the records with an entry above the commit. If one of these entries is damaged, the result
// depends on the number of voters. With a single voter, all entries up to the damaged one count as committed, because
// a single voter commits what it has synced, and no other voter could send the entry again. With several voters,
// findTailIDs returns ErrTailDamaged, because the entry may have been truncated, or may have been needed for a
// quorum.
func (ld *loading) findTailIDs() error {
	ld.tailIDs = make(map[int64]bool)
	commit := ld.commit
	next := ld.commit + 1
	ld.walkReadable(next, ld.state.last, func(e *format.Entry) bool {
		if e.Index > next {
			ld.commit = e.Index - 1
		}
		next = e.Index + 1
		if e.Kind.IsVersion() {
			ld.tailIDs[e.ID] = true
		}
		return true
	})
	if next <= ld.state.last {
		ld.commit = ld.state.last
	}
	voteMissing := ld.last != nil && ld.last.VoteMissing
	if len(format.VotersOf(ld.manifest.Conf)) > 1 && (ld.commit != commit || voteMissing) {
		return ErrTailDamaged
	}
	return nil
}
