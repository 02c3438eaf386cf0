package group

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/index"
)

// loading is what Load gathers before the log is complete.
type loading struct {
	*Log
	ctx      context.Context
	progress *Progress
	manifest *Manifest
	sizes    []int64   // of the files, by segment; -1: gone
	parts    []*loaded // by segment
	report   Report
	commit   uint64
	ids      []damagedID
	damages  []*Damage
	// tailIDs are the records with an entry above the commit. Its used flags may have been cleared for an entry that is not
	// known to be committed yet.
	tailIDs  map[int64]struct{}
	voteLost bool // bytes are bad in which a vote may have been
}

// loaded is what loading one segment gave.
type loaded struct {
	terms      []TermRun
	blobs      []HintBlob
	lastCommit int64
	damages    []*Damage
	ids        []damagedID
	hintGone   bool // it can and must be written
}

// Load opens a group: recovers the tail, reads hints or data, builds the index of all entries up to the commit known
// on disk. Entries above it stay unapplied (Unapplied) until Apply.
func Load(ctx context.Context, opts Options, progress *Progress) (*Log, Report, error) {
	opts = opts.withDefaults()
	if progress == nil {
		progress = new(Progress)
	}
	fail := func(err error) (*Log, Report, error) {
		return nil, Report{}, fmt.Errorf("load group %s from %s: %w", opts.Identity.Name, opts.Dir, err)
	}
	m, err := ReadManifest(opts.FS, opts.Dir)
	if err != nil {
		return fail(err)
	}
	if err := checkIdentity(m.Identity, opts.Identity); err != nil {
		return fail(err)
	}
	opts.Identity = m.Identity
	member, err := joinJournal(opts)
	if err != nil {
		return fail(err)
	}
	need, err := planLoad(opts, m)
	if err != nil {
		return fail(err)
	}
	l, err := newLog(opts, m, need)
	if err != nil {
		return fail(err)
	}
	l.journal = member
	progress.BytesTotal.Add(need.LoadBytes)
	ld := &loading{Log: l, ctx: ctx, progress: progress, manifest: m}
	if err := ld.run(); err != nil {
		l.abandon()
		return fail(err)
	}
	l.endInstall()
	return l, ld.report, nil
}

func checkIdentity(is, want Identity) error {
	switch {
	case is.Store != want.Store:
		return fmt.Errorf("%w: store is %s, not %s", ErrForeign, is.Store, want.Store)
	case is.Group != want.Group:
		return fmt.Errorf("%w: group is %s, not %s", ErrForeign, is.Group, want.Group)
	case want.Name != "" && is.Name != want.Name:
		return fmt.Errorf("%w: group is named %q, not %q", ErrForeign, is.Name, want.Name)
	}
	return nil
}

// run is the recovery of docs/format.md: its steps 2 to 8.
func (ld *loading) run() error {
	if err := ld.removeGarbage(); err != nil { // 2
		return err
	}
	if err := ld.openSegments(); err != nil { // 3
		return err
	}
	active, err := ld.recoverLast() // 5; before 4, because the commit is there
	if err != nil {
		return err
	}
	ld.voteLost = active != nil && active.voteLost
	if err := ld.holdBackConf(active); err != nil {
		return err
	}
	if err := ld.findTailIDs(); err != nil {
		return err
	}
	if err := ld.loadSealed(); err != nil { // 4
		return err
	}
	if err := ld.assemble(active); err != nil { // 6
		return err
	}
	if err := ld.collectBlobs(); err != nil { // 7
		return err
	}
	ld.conclude() // 8
	return nil
}

// removeGarbage removes the files that no manifest lists. Blobs are looked at when all references are known.
func (ld *loading) removeGarbage() error {
	names, err := ld.fs.List(ld.dir)
	if err != nil {
		return err
	}
	listed := make(map[string]bool)
	for _, s := range ld.manifest.Segments {
		listed[SegmentName(s.Number)] = true
		listed[HintName(s.Number)] = s.Sealed()
	}
	removed := 0
	for _, name := range names {
		_, isSegment := ParseSegmentName(name)
		_, isHint := ParseHintName(name)
		if !strings.HasSuffix(name, TmpSuffix) && (!isSegment && !isHint || listed[name]) {
			continue
		}
		ld.logger.Debug("garbage is removed", "group", ld.opts.Identity.Name, "file", name)
		if err := ld.fs.Remove(path.Join(ld.dir, name)); err != nil {
			return fmt.Errorf("garbage file %s: %w", name, err)
		}
		removed++
	}
	if removed > 0 {
		return ld.fs.SyncDir(ld.dir)
	}
	return nil
}

// openSegments makes the segments and compares headers and sizes with the manifest.
func (ld *loading) openSegments() error {
	st := &ld.state
	ld.parts = make([]*loaded, len(ld.manifest.Segments))
	ld.sizes = make([]int64, len(ld.manifest.Segments))
	for i, m := range ld.manifest.Segments {
		s := newSegment(ld.fs, ld.dir, m, ordinalStep*uint32(i+1))
		st.segments = append(st.segments, s)
		ld.parts[i] = new(loaded)
		if err := ld.openSegment(i, s, m); err != nil {
			return err
		}
	}
	ld.publishSegments()
	return nil
}

func (ld *loading) openSegment(i int, s *segment, m ManifestSegment) error {
	damage := func(offset, length int64, what string) {
		d := &Damage{Group: ld.opts.Identity.Name, File: SegmentName(m.Number), Offset: offset, Length: length, What: what}
		ld.damages = append(ld.damages, d)
	}
	f, err := s.reader()
	if errors.Is(err, iofs.ErrNotExist) {
		ld.sizes[i] = 0
		damage(0, SegmentHeaderBytes, "the file is gone")
		return nil
	}
	if err != nil {
		return err
	}
	if m.Sealed() {
		s.adviseRandom(f)
		if ld.opts.Residency == Index {
			s.cold = &coldFile{bytes: m.Bytes}
		}
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	ld.sizes[i] = size
	header := make([]byte, SegmentHeaderBytes)
	err = readFull(f, header, 0)
	if err == nil {
		err = CheckSegmentHeader(header, ld.opts.Identity, m)
	}
	if errors.Is(err, ErrFormatVersion) || errors.Is(err, ErrForeign) {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	if err != nil {
		damage(0, SegmentHeaderBytes, err.Error())
	}
	if m.Sealed() && size > m.Bytes {
		// What a sealed segment has too much was cut off by the manifest, for example after a failed sync.
		ld.logger.Debug("segment is longer than the manifest says", "group", ld.opts.Identity.Name, "segment", m.Number)
		ld.sizes[i] = m.Bytes
	}
	return nil
}

// recoverLast recovers the active segment and with it the commit. Nil where the manifest has no active segment.
func (ld *loading) recoverLast() (*recovered, error) {
	mark, found, bad, err := ReadMark(ld.fs, ld.dir)
	if err != nil {
		return nil, err
	}
	for slot, e := range bad {
		if e != nil {
			ld.logger.Info("a slot of the mark file is not whole: torn by a crash, or damaged", "group", ld.opts.Identity.Name,
				"slot", slot, "error", e)
		}
	}
	ld.marks.sequence = mark.Sequence
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
	r, err := ld.recoverActive(s, ld.sizes[n-1], mark, found, ld.walkActive(s, ld.sizes[n-1]))
	if err != nil {
		return nil, err
	}
	if r.states {
		hard.MergeHardState(r.state)
		hard.SyncedOffset, hard.SyncedIndex = 0, 0
	}
	s.rows, s.incomplete = &r.rows, lostEntries(r.damages)
	ld.parts[n-1] = &loaded{terms: r.terms, blobs: r.rows.blobs, lastCommit: r.rows.lastCommit, damages: r.damages, ids: r.ids}
	ld.state.last, ld.state.end = r.last, r.end
	for _, d := range r.damages {
		ld.state.last = max(ld.state.last, d.IndexLast)
	}
	ld.commit = min(hard.Commit, ld.state.last)
	return r, nil
}

// lostEntries tells whether damage has hit entries.
func lostEntries(damages []*Damage) bool {
	return slices.ContainsFunc(damages, func(d *Damage) bool { return d.IndexLast != 0 })
}

// walkActive walks the active segment from its begin: in Resident residency from the image, which the first walk loads.
func (ld *loading) walkActive(s *segment, size int64) func(through int64) (*segmentWalk, error) {
	return func(through int64) (*segmentWalk, error) {
		switch {
		case ld.opts.Residency != Resident || size <= SegmentHeaderBytes:
			w, err := ld.walkFile(s, through, true)
			if through == size {
				ld.read(size)
			}
			return w, err
		case s.image == nil:
			return ld.walkImage(ld.ctx, s, size, max(ld.opts.SegmentBytes, size), func() bool { return true }, ld.read)
		default:
			return walkSegment(NewFrameReaderBytes(s.image[:through], s.id, SegmentHeaderBytes), s.first, through, true)
		}
	}
}

// holdBackConf lowers the commit below a membership change that the manifest does not know yet, so that Raft gives it out
// again. The manifest's commit is never above what was applied when it was written, so only what follows can hold one.
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
	return ld.walkEntries(from, through, true, func(e *Entry, _ index.Loc) bool {
		if e.Kind == KindConf {
			hold(e.Index)
		}
		return true
	})
}

// findTailIDs looks for the records with an entry above the commit. Where one of these entries is damaged, all up to it
// count as committed: Raft cannot be given what is lost, and with a single voter what was synced was committed. With several
// it may have been cut off, or be what made a quorum: ErrTailDamaged.
func (ld *loading) findTailIDs() error {
	ld.tailIDs = make(map[int64]struct{})
	commit := ld.commit
	next := ld.commit + 1
	err := ld.walkEntries(next, ld.state.last, true, func(e *Entry, _ index.Loc) bool {
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
		return errors.Join(err, ErrTailDamaged)
	}
	return err
}

// through is the last index of a segment that is not void: a later segment may have cut the log.
func (l *Log) through(i int) uint64 {
	if i+1 < len(l.state.segments) {
		return l.state.segments[i+1].first - 1
	}
	return math.MaxUint64
}

// loadSealed loads the sealed segments in parallel: the higher index wins.
func (ld *loading) loadSealed() error {
	g, ctx := errgroup.WithContext(ld.ctx)
	g.SetLimit(min(8, max(2, runtime.GOMAXPROCS(0))))
	for i, m := range ld.manifest.Segments {
		if !m.Sealed() {
			continue
		}
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			part, err := ld.loadSegment(ctx, i, m)
			ld.parts[i] = part
			return err
		})
	}
	return g.Wait()
}

// loadSegment loads one sealed segment: from its hint, or by reading it.
func (ld *loading) loadSegment(ctx context.Context, i int, m ManifestSegment) (*loaded, error) {
	s := ld.state.segments[i]
	through := min(ld.commit, ld.through(i))
	// An image's first reads are in flight before its hint is asked for, so that the device does not wait for that.
	readHint := sync.OnceValue(func() *Hint { return ld.readHint(m) })
	noHint := func() bool { return readHint() == nil }
	var w *segmentWalk
	if ld.opts.Residency == Resident || noHint() || ld.sizes[i] < m.Bytes {
		var err error
		if w, err = ld.readSegment(ctx, s, i, m, noHint); err != nil {
			return nil, err
		}
	}
	hint, part := readHint(), new(loaded)
	if w != nil {
		part.damages, part.ids = w.damages(ld.opts.Identity.Name, m, m.LastIndex, hint, ld.w.manifest.mayHaveCuts())
	}
	if hint == nil {
		part.terms, part.blobs, part.lastCommit = w.terms, w.rows.blobs, w.rows.lastCommit
		s.terms = w.terms
		s.rows, s.incomplete = &w.rows, lostEntries(part.damages)
		s.rowCount.Store(int64(len(w.rows.ids)))
		if err := ld.insertRows(s, &w.rows, through, part.damages); err != nil {
			return nil, err
		}
		if len(w.bad) == 0 {
			// A hint made of what is left would hide the damage from the next load.
			part.hintGone = true
		}
		return part, nil
	}
	part.terms, part.blobs, part.lastCommit = hint.Terms, hint.Blobs, hint.LastCommit
	s.rowCount.Store(int64(len(hint.IDs)))
	ld.progress.BytesDone.Add(hintBytes(hint))
	return part, ld.insertHint(s, hint, through, w)
}

// readHint answers nil where a segment has no hint that can be used.
func (ld *loading) readHint(m ManifestSegment) *Hint {
	hint, err := ReadHint(ld.fs, ld.dir, m)
	if err == nil {
		return hint
	}
	if !errors.Is(err, iofs.ErrNotExist) {
		ld.logger.Info("hint cannot be used: the segment is read instead", "group", ld.opts.Identity.Name,
			"segment", m.Number, "error", err)
	}
	return nil
}

// readSegment walks all frames of a sealed segment: those of the image in Resident residency, else of the file.
// rows as for walkImage.
func (ld *loading) readSegment(ctx context.Context, s *segment, i int, m ManifestSegment, rows func() bool) (*segmentWalk, error) {
	w := &segmentWalk{last: s.first - 1, zeros: m.Bytes}
	var err error
	size := min(ld.sizes[i], m.Bytes)
	switch {
	case size <= SegmentHeaderBytes: // no frame, or no file
		size = min(m.Bytes, SegmentHeaderBytes)
	case ld.opts.Residency == Resident:
		w, err = ld.walkImage(ctx, s, size, size, rows, ld.read)
	default:
		w, err = ld.walkFile(s, size, rows())
		ld.progress.BytesDone.Add(size)
	}
	if err != nil {
		return nil, err
	}
	if w.zeros < size { // in a sealed segment there is no room at the end
		w.bad = append(w.bad, lostRange{offset: w.zeros, bytes: size - w.zeros, what: FrameZeros.String(), before: w.last})
	}
	if size < m.Bytes {
		w.bad = append(w.bad, lostRange{offset: size, bytes: m.Bytes - size, what: "the file ends too early", before: w.last})
	}
	return w, nil
}

// read counts what was read for the progress.
func (ld *loading) read(bytes int64) { ld.progress.BytesDone.Add(bytes) }

// insertHint fills the index from a hint. Frames in bad ranges of the walk, which may be nil, are left out.
func (ld *loading) insertHint(s *segment, h *Hint, through uint64, w *segmentWalk) error {
	ordinal := index.Loc(s.ordinal) << 44
	skip := func(row int) bool {
		place := index.Loc(h.Places[row])
		switch {
		case h.FirstIndex+uint64(h.Indexes[row]) > through:
			return true
		case !h.IsUsed(row) && !ld.inTail(h.IDs[row]):
			ld.supersedeKnown(s, place|ordinal)
			return true
		}
		return w != nil && w.isBad(place.Offset())
	}
	_, err := ld.table.Fill(h.IDs, h.Places, s.ordinal, skip, ld.lose)
	return err
}

func (ld *loading) inTail(id int64) bool {
	if len(ld.tailIDs) == 0 {
		return false
	}
	_, ok := ld.tailIDs[id]
	return ok
}

// insertRows fills the index from rows. What damage may have made void is left out until it is repaired: it must not supersede what it may
// never have superseded. Reads of these records tell the damage either way.
func (ld *loading) insertRows(s *segment, r *rowTable, through uint64, damages []*Damage) error {
	ordinal, name := uint64(s.ordinal)<<44, SegmentName(s.number)
	for i, place := range r.places {
		at := s.first + uint64(r.indexes[i])
		if at > through {
			break
		}
		if slices.ContainsFunc(damages, func(d *Damage) bool { return d.mayVoid(name, index.Loc(place).Offset(), at) }) {
			continue
		}
		if err := ld.insert(r.ids[i], index.Loc(place|ordinal)); err != nil {
			return err
		}
	}
	return nil
}
