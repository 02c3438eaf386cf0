package group

import (
	"slices"

	"sheaf.dev/sheaf/internal/index"
)

// recoverLast recovers the active segment and with it the commit. Nil where the manifest has no active segment.
func (ld *loading) recoverLast() (*recovered, error) {
	for slot, e := range ld.active.badMark {
		if e != nil {
			ld.logger.Info("a slot of the mark file is not whole: torn by a crash, or damaged", "group", ld.opts.Identity.Name,
				"slot", slot, "error", e)
		}
	}
	ld.marks.sequence = ld.active.mark.Sequence
	if ld.active.badMark == [markSlots]error{} {
		ld.marks.last = ld.active.mark
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
		return nil, nil
	}
	s := ld.state.segments[n-1]
	there := s.file.Load() != nil
	r, err := ld.recoverActive(s, ld.sizes[n-1], ld.active.mark, ld.walkActive(s, ld.sizes[n-1]))
	if err != nil {
		return nil, err
	}
	damage, err := ld.checkHeader(s, s.manifest(), there)
	if err != nil {
		return nil, err
	}
	if damage != nil {
		ld.damages = append(ld.damages, damage)
	}
	if r.states {
		hard.MergeHardState(r.state)
		hard.SyncedOffset, hard.SyncedIndex = 0, 0
	}
	s.rows, s.incomplete = &r.rows, lostEntries(r.damages)
	ld.parts[n-1] = &loaded{terms: r.terms, blobs: r.rows.blobs, lastCommit: r.rows.lastCommit, damages: r.damages, ids: r.ids}
	ld.state.last, ld.state.end = r.lastIndex(), r.end
	ld.commit = min(hard.Commit, ld.state.last)
	return r, nil
}

// lostEntries tells whether damage has hit entries.
func lostEntries(damages []*Damage) bool {
	return slices.ContainsFunc(damages, func(d *Damage) bool { return d.IndexLast != 0 })
}

// walkActive walks the active segment from its begin: in Resident residency from the image, which the first walk loads.
func (ld *loading) walkActive(s *segment, size int64) func(through int64) (*segmentWalk, error) {
	if ld.opts.Residency != Resident || size <= SegmentHeaderBytes {
		return ld.walkActiveFile(s, size)
	}
	return func(through int64) (*segmentWalk, error) {
		if s.image == nil {
			w := newActiveWalk(s.first)
			return w, ld.walkImage(ld.ctx, s, size, max(ld.opts.SegmentBytes, size), func() *segmentWalk { return w }, ld.read)
		}
		w := newActiveWalk(s.first)
		return w, w.goOn(NewFrameReaderBytes(s.image[:through], s.id, SegmentHeaderBytes), s.first, through)
	}
}

// walkActiveFile walks the active segment from the end of its hint, or where it has none from its begin.
func (ld *loading) walkActiveFile(s *segment, size int64) func(through int64) (*segmentWalk, error) {
	hint := ld.readActiveHint(s, size)
	return func(through int64) (*segmentWalk, error) {
		if hint != nil && through > hint.end {
			w, usable, err := ld.walkBehind(s, hint, through)
			if err != nil || usable {
				ld.w.hinted, ld.report.HintedBytes = hint.hintPart, hint.end
				ld.read(max(0, through-hint.end) + hint.bytes)
				return w, err
			}
			ld.logger.Info("the hint of the active segment does not end at a state frame: all of it is read instead", "group", ld.opts.Identity.Name,
				"segment", s.number)
		}
		hint, ld.w.hinted, ld.report.HintedBytes = nil, hintPart{}, 0
		w := newActiveWalk(s.first)
		err := ld.walkFileOn(s, w, SegmentHeaderBytes, through)
		if through == size {
			ld.read(size)
		}
		return w, err
	}
}

// holdBackConf lowers the commit below a membership change that the manifest does not know yet, so that Raft gives it
// out again. The manifest's commit is never above what was applied when it was written, so only what follows can hold
// one; and what the hint of the active segment tells holds none that the manifest does not know.
func (ld *loading) holdBackConf(active *recovered) error {
	known := max(ld.manifest.ConfIndex, ld.manifest.CompactedThrough)
	hold := func(at uint64) {
		if at > known && at <= ld.commit {
			ld.commit = at - 1
		}
	}
	through := ld.state.last
	if active != nil {
		for _, at := range active.confs {
			hold(at)
		}
		through = ld.state.segments[len(ld.state.segments)-1].first - 1
	}
	from := max(ld.manifest.HardState.Commit, known) + 1
	through = min(through, ld.commit)
	if from > through {
		return nil
	}
	for _, gap := range ld.withoutRows(from, through) {
		ld.walkReadable(gap.first, gap.last, func(e *Entry) bool {
			if e.Kind == KindConf {
				hold(e.Index)
			}
			return true
		})
	}
	return nil
}

// walkReadable walks the entries from lo to hi that can be read. The damage that it passes over, files that cannot be
// opened too, the load finds by its own walks.
func (ld *loading) walkReadable(lo, hi uint64, fn func(*Entry) bool) {
	_ = ld.walkEntries(lo, hi, func(Damage) {}, func(e *Entry, _ index.Loc) bool { return fn(e) })
}

// indexRange is the indexes from first to last.
type indexRange struct{ first, last uint64 }

// withoutRows are the indexes of sealed segments between two that are neither a put nor a delete, as far as hints tell.
func (ld *loading) withoutRows(first, last uint64) (out []indexRange) {
	versions := make([]bool, last-first+1)
	for i, m := range ld.manifest.Segments {
		if !m.Sealed() || m.LastIndex < first || m.FirstIndex > last {
			continue
		}
		hint := ld.readHint(m)
		if ld.early == nil {
			ld.early = make(map[uint64]*Hint)
		}
		ld.early[m.Number] = hint
		if hint == nil {
			continue
		}
		for _, delta := range hint.Indexes {
			if at := hint.FirstIndex + uint64(delta); at >= first && at <= min(last, ld.through(i)) {
				versions[at-first] = true
			}
		}
	}
	for i, isVersion := range versions {
		at := first + uint64(i)
		switch n := len(out); {
		case isVersion:
		case n > 0 && out[n-1].last == at-1:
			out[n-1].last = at
		default:
			out = append(out, indexRange{at, at})
		}
	}
	return out
}

// findTailIDs looks for the records with an entry above the commit. Where one of these entries is damaged, all up to
// it count as committed: Raft cannot be given what is lost, and with a single voter what was synced was committed.
// With several it may have been cut off, or be what made a quorum: ErrTailDamaged.
func (ld *loading) findTailIDs() error {
	ld.tailIDs = make(map[int64]struct{})
	commit := ld.commit
	next := ld.commit + 1
	ld.walkReadable(next, ld.state.last, func(e *Entry) bool {
		if e.Index > next {
			ld.commit = e.Index - 1
		}
		next = e.Index + 1
		if e.Kind.isVersion() {
			ld.tailIDs[e.ID] = struct{}{}
		}
		return true
	})
	if next <= ld.state.last {
		ld.commit = ld.state.last
	}
	if len(votersOf(ld.manifest.Conf)) > 1 && (ld.commit != commit || ld.voteLost) {
		return ErrTailDamaged
	}
	return nil
}
