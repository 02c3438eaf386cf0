package group

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// loading is the state of one Load call: intermediate results, and the parts of the log that it fills.
type loading struct {
	*parts
	log *Log // nil until the memory budget has granted the memory

	ctx      context.Context
	opts     Options
	progress *Progress
	plan     *Plan // the parts of the folder that were read before the load, or nil if none were
	manifest *format.Manifest
	member   *journal.Member // nil if the volume has no journal
	active   *activeFile
	names    []string          // names in the folder before garbage was removed
	last     *replay.Recovered // result of recovering the last segment, or nil if the manifest has no active segment
	// sizes are the sizes of the segments' files, in manifest order. They do not include preallocated space at the end
	// of the active segment. A size is 0 if the file is missing.
	sizes []int64
	// early holds hints that were read before the segments, by segment number. A hint that cannot be used is nil.
	early  map[uint64]*format.Hint
	loaded []*loaded // the result of loading each segment
	report Report
	commit uint64             // entries up to this index are applied
	ids    []replay.DamagedID // records with damaged entries
	found  []*format.Damage   // all damage
	// tailIDs contains the records that have an entry above the commit. It is not known whether such an entry is
	// committed, but used flags of the record may already have been cleared because of it.
	tailIDs map[int64]bool
}

// loaded is the result of loading one segment.
type loaded struct {
	terms      []format.TermRun
	blobs      []format.HintBlob
	lastCommit int64            // the greatest commit time of the segment's entries
	header     []*format.Damage // damage to the header, which destroys no entry
	damages    []*format.Damage
	ids        []replay.DamagedID
	hintGone   bool // the segment is undamaged but has no hint, so a hint must be written
}

// Load opens a group. It recovers the tail, reads hints or data, and builds the index of all entries up to the commit
// index that is known on disk. Apply makes later entries visible. The numbers of the steps are those of the recovery in
// docs/format.md.
func Load(ctx context.Context, opts Options, progress *Progress) (*Log, Report, error) {
	opts = opts.withDefaults()
	if progress == nil {
		progress = new(Progress)
	}
	ld := &loading{ctx: ctx, opts: opts, progress: progress, plan: opts.Plan}
	for _, step := range []func() error{
		ld.readManifest,  // step 1
		ld.writeJournal,  // step 2
		ld.findDataEnd,   // step 3
		ld.makeLog,       // step 4
		ld.removeGarbage, // step 5
		ld.recoverLast,   // step 6
		ld.findCommit,    // step 7
		ld.loadSealed,    // step 8
		ld.dropVoid,      // step 9
		ld.endLast,       // step 10
		ld.readTail,      // step 11
		ld.removeBlobs,   // step 12
		ld.endInstall,    // step 13
		ld.conclude,      // step 14
	} {
		if err := step(); err != nil {
			return nil, Report{}, fmt.Errorf("load group %s from %s: %w", opts.Identity.Name, opts.Dir,
				errors.Join(err, ld.abandon()))
		}
	}
	return ld.log, ld.report, nil
}

// abandon releases everything that a failed load has acquired.
func (ld *loading) abandon() (err error) {
	if ld.active != nil {
		err = ld.active.close()
	}
	if l := ld.log; l != nil {
		l.closed.Store(true)
		l.cancel()
		l.release()
	}
	return err
}

// readManifest reads the manifest, and compares it with the expected identity.
func (ld *loading) readManifest() (err error) {
	if ld.manifest, err = readManifest(ld.opts); err == nil {
		ld.opts.Identity = ld.manifest.Identity
	}
	return err
}

// writeJournal writes the group's data in the volume's journal to the last segment, and registers the log with the
// journal.
func (ld *loading) writeJournal() error {
	j := ld.opts.Journal
	if j == nil {
		return nil
	}
	member, rest, err := j.Join(ld.opts.Identity.Group)
	ld.member = member
	if err != nil || rest == nil {
		return err
	}
	// The plan is outdated, because writing the journal's data moves the mark and the end of the data.
	ld.opts.Plan = nil
	// If the folder does not exist, because it was removed after the plan was created, the journal must keep the data.
	if _, err := ld.opts.FS.Stat(ld.opts.Dir); err != nil {
		return fmt.Errorf("folder of a group that the journal holds data of: %w", err)
	}
	if err := redoShare(ld.opts.FS, ld.opts.Dir, ld.manifest, rest.Share); err != nil {
		return fmt.Errorf("what %s holds, which was acknowledged, cannot be written to the group's segment: %w", rest.Where,
			err)
	}
	return rest.Done()
}

// findDataEnd determines where the last segment's data ends, and starts to sync that segment.
func (ld *loading) findDataEnd() (err error) {
	ld.active, err = openActiveFile(ld.opts, ld.manifest)
	return err
}

// makeLog takes the memory that the load needs, and creates the log with its segments.
func (ld *loading) makeLog() (err error) {
	plan := ld.opts.Plan
	ld.opts.Plan = nil // frees the plan, which will be outdated when the open log changes the folder
	var need Need
	if plan != nil && plan.mark != nil {
		need = plan.Need
	} else if need, err = needOf(ld.opts, ld.manifest, ld.active); err != nil {
		return err
	}
	if ld.log, err = newLog(ld.opts, ld.manifest, need); err != nil {
		return err
	}
	ld.parts = &ld.log.parts
	ld.w.share.member = ld.member
	ld.progress.BytesTotal.Add(need.LoadBytes)
	ld.openSegments()
	return nil
}

// removeGarbage removes files that the manifest does not list. Blobs are removed later, when all references to them are
// known.
func (ld *loading) removeGarbage() (err error) {
	if ld.names, err = ld.opts.FS.List(ld.opts.Dir); err != nil {
		return err
	}
	listed := make(map[string]bool)
	for _, s := range ld.manifest.Segments {
		listed[format.SegmentName(s.Number)] = true
		listed[format.HintName(s.Number)] = s.Sealed()
	}
	var garbage []string
	for _, name := range ld.names {
		_, isSegment := format.ParseSegmentName(name)
		_, isHint := format.ParseHintName(name)
		if strings.HasSuffix(name, format.TmpSuffix) || (isSegment || isHint) && !listed[name] {
			ld.folder.logger.Debug("garbage is removed", "file", name)
			garbage = append(garbage, name)
		}
	}
	return ld.folder.clear(garbage)
}

// openSegments creates the segments in memory.
func (ld *loading) openSegments() {
	st := &ld.state
	ld.loaded = make([]*loaded, len(ld.manifest.Segments))
	ld.sizes = make([]int64, len(ld.manifest.Segments))
	for i, m := range ld.manifest.Segments {
		s := newSegment(ld.folder.fs, ld.folder.dir, m, ordinalStep*uint32(i+1))
		st.segments = append(st.segments, s)
		ld.loaded[i] = new(loaded)
		if f := ld.active.file; !m.Sealed() && f != nil {
			vfs.ReadAtRandom(f)
			s.file.Store(&openFile{ld.active.take()})
			ld.sizes[i] = ld.active.end
		}
	}
	ld.places.publish(ld.state.listed())
}

// openSealed opens a sealed segment's file and compares its size with the manifest. It returns false if the file is
// missing.
func (ld *loading) openSealed(s *segment, i int, m format.ManifestSegment) (bool, error) {
	f, err := s.reader()
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	vfs.ReadAtRandom(f)
	size, err := f.Size()
	if err != nil {
		return false, err
	}
	if size > m.Bytes {
		// A longer file is not damage. For example, a segment is sealed at its synced size after a failed sync, but its file
		// is not truncated.
		ld.folder.logger.Debug("segment is longer than the manifest says", "segment", m.Number)
	}
	ld.sizes[i] = min(size, m.Bytes) // min limits the size, for which memory is allocated, to the size of the file
	if ld.opts.Residency == Index {
		s.cold = ld.images.loader.ColdFile(ld.folder.fs, s.path, ld.sizes[i])
	}
	return true, nil
}

// checkHeader compares a segment's header with the manifest. The argument `there` is true if the segment's file exists.
// If the segment has an image, checkHeader reads the header from the image. If the file is missing or its header
// differs from the manifest, checkHeader returns damage, which affects only the header. If the header belongs to
// another group or store, or has a newer version, checkHeader returns an error.
func (ld *loading) checkHeader(s *segment, m format.ManifestSegment, there bool) (*format.Damage, error) {
	damage := func(what string) *format.Damage {
		return &format.Damage{Group: ld.opts.Identity.Name, File: format.SegmentName(m.Number),
			Length: format.SegmentHeaderBytes, What: what}
	}
	if !there {
		return damage("the file is gone"), nil
	}
	var header []byte
	var err error
	if s.image != nil {
		header = s.image[:min(format.SegmentHeaderBytes, int64(len(s.image)))]
	} else {
		header = make([]byte, format.SegmentHeaderBytes)
		for range segio.BlockTries {
			if err = format.ReadFull(s.file.Load(), header, 0); err == nil {
				break
			}
		}
	}
	if err == nil {
		err = format.CheckSegmentHeader(header, ld.opts.Identity, m)
	}
	switch {
	case errors.Is(err, format.ErrFormatVersion) || errors.Is(err, format.ErrForeign):
		return nil, fmt.Errorf("%s: %w", s.path, err)
	case err != nil:
		return damage(err.Error()), nil
	}
	return nil, nil
}

// loadSealed loads the sealed segments in parallel. They may finish in any order, because the version with the
// higher index takes precedence.
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
			ld.loaded[i] = part
			return err
		})
	}
	return g.Wait()
}

// loadSegment loads one sealed segment, using its hint or by reading all of it.
func (ld *loading) loadSegment(ctx context.Context, i int, m format.ManifestSegment) (*loaded, error) {
	s := ld.state.segments[i]
	through := min(ld.commit, ld.state.through(i))
	there, err := ld.openSealed(s, i, m)
	if err != nil {
		return nil, err
	}
	// The first reads of an image start before the segment's hint is read, so that the device is busy while the hint is
	// read.
	readHint := sync.OnceValue(func() *format.Hint { return ld.readHint(m) })
	noHint := func() bool { return readHint() == nil }
	var w *replay.Walk
	if ld.opts.Residency == Resident || noHint() || ld.sizes[i] < m.Bytes {
		if w, err = ld.readSegment(ctx, s, i, m, noHint); err != nil {
			return nil, err
		}
	}
	hint, part := readHint(), new(loaded)
	damage, err := ld.checkHeader(s, m, there)
	if err != nil {
		return nil, err
	}
	if damage != nil {
		part.header = append(part.header, damage)
	}
	if w != nil {
		part.damages, part.ids = w.Explain(ld.opts.Identity.Name, m, m.LastIndex, hint, ld.folder.manifest.MayBeTruncated())
	}
	if hint == nil {
		part.terms, part.blobs, part.lastCommit = w.Terms, w.Rows.Blobs, w.Rows.LastCommit
		s.terms = w.Terms
		s.rows, s.incomplete = &w.Rows, lostEntries(part.damages)
		s.counted(&w.Rows)
		if err := ld.insertRows(s, &w.Rows, through, part.damages); err != nil {
			return nil, err
		}
		if len(w.Bad) == 0 {
			// A damaged segment gets no hint, because such a hint would have only the remaining entries, and would hide the
			// damage from the next load.
			part.hintGone = true
		}
		return part, nil
	}
	part.terms, part.blobs, part.lastCommit = hint.Terms, hint.Blobs, hint.LastCommit
	s.rowCount.Store(int64(len(hint.IDs)))
	s.requestCount.Store(int64(hint.Requests))
	s.lastCommit.Store(hint.LastCommit)
	ld.progress.BytesDone.Add(hintBytes(hint))
	return part, ld.insertHint(s, hint, through, w)
}

// readHint returns a segment's hint, or nil if there is no usable hint.
func (ld *loading) readHint(m format.ManifestSegment) *format.Hint {
	if hint, ok := ld.early[m.Number]; ok {
		return hint
	}
	hint, err := format.ReadHint(ld.folder.fs, ld.folder.dir, m)
	if err == nil {
		return hint
	}
	if !errors.Is(err, iofs.ErrNotExist) {
		ld.folder.logger.Info("hint cannot be used: the segment is read instead", "segment", m.Number, "error", err)
	}
	return nil
}

// readSegment walks all frames of a sealed segment. If the residency is Resident, it reads them into an image. The
// function rows, which is called when the walk begins, reports whether the rows are needed.
func (ld *loading) readSegment(ctx context.Context, s *segment, i int, m format.ManifestSegment,
	rows func() bool) (*replay.Walk, error) {
	w := &replay.Walk{Last: s.first - 1, Zeros: m.Bytes}
	var err error
	size := min(ld.sizes[i], m.Bytes)
	switch {
	case size <= format.SegmentHeaderBytes: // there is no frame, or no file
		size = min(m.Bytes, format.SegmentHeaderBytes)
	case ld.opts.Residency == Resident:
		err = ld.images.walk(ctx, s, size, size, func() *replay.Walk {
			w = replay.New(s.first, rows())
			return w
		}, ld.read)
	default:
		w, err = s.walkFile(size, rows())
		ld.progress.BytesDone.Add(size)
	}
	if err != nil {
		return nil, err
	}
	w.EndAt(size, m.Bytes)
	return w, nil
}

// read adds a number of bytes to the progress.
func (ld *loading) read(bytes int64) { ld.progress.BytesDone.Add(bytes) }

// insertHint fills the index from a hint. It skips frames in bad ranges of the walk w, unless w is nil.
func (ld *loading) insertHint(s *segment, h *format.Hint, through uint64, w *replay.Walk) error {
	skip := func(row int) bool {
		place := index.Loc(h.Places[row])
		switch {
		case h.FirstIndex+uint64(h.Indexes[row]) > through:
			return true
		case !h.IsUsed(row) && !ld.tailIDs[h.IDs[row]]:
			ld.places.supersedeKnown(s, place.In(s.ordinal))
			return true
		}
		return w != nil && w.IsBad(place.Offset())
	}
	return ld.places.table.Fill(h.IDs, h.Places, s.ordinal, skip, ld.places.clearUsed)
}

// insertRows fills the index from rows. It skips rows whose entries may be void because of a damaged entry. Until the
// damage is repaired, such an entry must not supersede another version, because it may never have done so. Reads of
// these records report the damage in any case.
func (ld *loading) insertRows(s *segment, r *format.Rows, through uint64, damages []*format.Damage) error {
	name := format.SegmentName(s.number)
	for i, place := range r.Places {
		at := s.first + uint64(r.Indexes[i])
		if at > through {
			break
		}
		if slices.ContainsFunc(damages, func(d *format.Damage) bool {
			return d.MayVoid(name, index.Loc(place).Offset(), at)
		}) {
			continue
		}
		if err := ld.places.insert(r.IDs[i], index.Loc(place).In(s.ordinal)); err != nil {
			return err
		}
	}
	return nil
}
