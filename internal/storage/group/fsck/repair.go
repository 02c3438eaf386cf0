package fsck

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"path"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// RepairReport is the result of RepairDir.
type RepairReport struct {
	Before      VerifyReport // result of VerifyDir before the repair
	After       VerifyReport // result of VerifyDir after the repair; zero if no repair was necessary
	Quarantined []string     // names of the copied files in the group's quarantine folder
	Rewritten   []string     // names of the segments that were replaced
	Dropped     int64        // number of valid entries that were dropped because their blob is damaged
	NextIndex   uint64       // index of the next entry if entries were given up, or 0 if none were
}

// RepairDir gives up the damaged parts of a group that no log has open, so that the rest loads without damage. It may
// run only if an administrator requests it, because data should be restored from a peer or a backup if one of them
// still has it. RepairDir first copies the damaged ranges and their files to the group's folder quarantine/.
// docs/format.md lists the steps. The argument progress is as in VerifyDir. If nothing is damaged, nothing is changed.
//
// RepairDir refuses the repair, and changes nothing, if there is no manifest, if the manifest belongs to a different
// group than the folder does, if the membership changed after the manifest was written, or if there is not enough free
// space (ErrNoSpace).
func RepairDir(ctx context.Context, fs vfs.FS, dir string, progress func(bytes int64)) (RepairReport, error) {
	v := newVerifier(ctx, fs, dir, VerifyOptions{Progress: progress})
	if err := v.run(); err != nil {
		return RepairReport{Before: v.report}, fmt.Errorf("repair %s: %w", dir, err)
	}
	if why := v.report.Exchanged; why != "" {
		return RepairReport{Before: v.report}, fmt.Errorf("repair %s: nothing is given up here: %s", dir, why)
	}
	r := &repairer{verifier: v, report: RepairReport{Before: v.report}}
	if len(v.report.Damages) == 0 {
		return r.report, nil
	}
	if err := r.repair(); err != nil {
		return r.report, fmt.Errorf("repair %s: %w", dir, err)
	}
	after, err := VerifyDir(ctx, fs, dir, progress)
	r.report.After = after
	if err == nil && len(after.Damages) > 0 {
		err = fmt.Errorf("%d places are still damaged, the first: %s", len(after.Damages), after.Damages[0])
	}
	if err != nil {
		return r.report, fmt.Errorf("repair %s: check of the result: %w", dir, err)
	}
	return r.report, nil
}

// repairer repairs a group after a verifier has found its damage.
type repairer struct {
	*verifier
	report RepairReport

	newest   map[int64]uint64      // for each id, the greatest index among the entries that are kept
	rewrite  map[*segmentScan]bool // the segments that must be replaced
	greatest uint64                // the greatest index that any entry has or had, as far as is known
	term     uint64                // the greatest term that was found
	next     format.Manifest       // the new manifest
	garbage  []string              // names of the files to remove after the commit point
}

// repair performs the steps in docs/format.md, "Accepted loss and repair". The numbers in this function's comments are
// the numbers of those steps.
func (r *repairer) repair() error {
	if r.manifest == nil {
		return errors.New("without a manifest it is not known which segments live: restore the group from a peer or a backup")
	}
	if r.badReplica && r.replica == nil {
		return errors.New("which replica this was is not known any more: remove the folder, and it joins again as " +
			"another one")
	}
	for _, s := range r.scans {
		for _, at := range s.Confs {
			if at > max(r.manifest.ConfIndex, r.manifest.CompactedThrough) {
				return fmt.Errorf(
					"the membership changed at index %d, after the manifest was written: start the shard once, so that "+
						"it is taken over, or repair from a peer", at)
			}
		}
	}
	r.plan()
	if n := len(format.VotersOf(r.manifest.Conf)); n > 1 && r.lost {
		return fmt.Errorf(
			"it is one of %d voters, and what it lost must come from the others: start the shard, which repairs it", n)
	}
	if err := r.checkSpace(); err != nil {
		return err
	}
	if err := r.quarantine(); err != nil { // 1
		return fmt.Errorf("quarantine: %w", format.MarkShortage(err))
	}
	if err := r.writeSegments(); err != nil { // 2, 3
		return format.MarkShortage(err)
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if err := format.WriteManifest(r.fs, r.dir, &r.next); err != nil { // step 4, the commit point
		return err
	}
	return r.finish()
}

// plan decides which entries are kept, and which segments must be replaced.
func (r *repairer) plan() {
	r.newest = make(map[int64]uint64)
	for _, s := range r.scans {
		r.dropBlobs(s)
		r.dropDoubtful(s)
		for row, id := range s.Rows.IDs {
			if s.counts(row) {
				r.newest[id] = max(r.newest[id], s.index(row))
			}
		}
		r.greatest = max(r.greatest, s.Last, s.manifest.LastIndex, s.SyncedIndex)
		r.term = max(r.term, s.Term)
	}
	for _, d := range r.report.Before.Damages {
		r.greatest = max(r.greatest, d.IndexLast)
	}
	m := r.manifest
	r.greatest = max(r.greatest, r.hard.Commit, r.mark.Index, m.CompactedThrough, m.AcceptedThrough)
	r.term = max(r.term, r.hard.Term, m.CompactedTerm)
	r.rewrite = make(map[*segmentScan]bool)
	for _, s := range r.scans {
		// A later segment may have made entries of this segment void. They must stay void even if the repair removes the
		// later segment.
		void := s.Last > s.through
		if len(s.Bad) > 0 || len(s.faults) > 0 || s.header != nil || s.fileBytes < 0 || s.dropped > 0 || void ||
			r.falseFrameFlag(s) {
			r.rewrite[s] = true
		}
	}
	r.lost = r.lost || r.report.Dropped > 0
}

// drop gives up a row's entry, if the entry is still valid.
func (r *repairer) drop(s *segmentScan, row int) {
	if s.counts(row) {
		s.gone[s.index(row)] = true
		s.dropped++
		r.report.Dropped++
	}
}

// dropBlobs drops the entries whose blob, or whose reference to a blob, is damaged.
func (r *repairer) dropBlobs(s *segmentScan) {
	for _, row := range s.unusedRows(s.badRefs) {
		r.drop(s, row)
	}
	for _, b := range s.Rows.Blobs {
		if r.badBlobs[b.Ref.ID] {
			r.drop(s, s.rowOf(b.Index))
		}
	}
}

// dropDoubtful drops the entries that a frame in later bad bytes may have made void. They are given up together with
// the bad bytes. Otherwise, a version that was never acknowledged could take the place of a lost one. A segment with a
// valid hint has no such entries, because the hint lists exactly the valid entries.
func (r *repairer) dropDoubtful(s *segmentScan) {
	for _, d := range r.damages(s) {
		for row := range s.Rows.IDs {
			if d.MayVoid(s.name, s.offset(row), s.index(row)) {
				r.drop(s, row)
			}
		}
	}
}

// falseFrameFlag reports whether any frame's used byte says "superseded" although its entry is now the newest one of
// the record.
func (r *repairer) falseFrameFlag(s *segmentScan) bool {
	return slices.ContainsFunc(s.unusedRows(s.frameUnused), func(row int) bool {
		return r.newest[s.Rows.IDs[row]] == s.index(row)
	})
}

// checkSpace returns an error if there is not enough free space for the copies and the new segments. It must be called
// before anything is written.
func (r *repairer) checkSpace() error {
	var need int64
	for name, damages := range r.damagedFiles() {
		info, err := r.fs.Stat(path.Join(r.dir, name))
		if err != nil {
			continue
		}
		need += info.Size() // space for a copy of the whole file; the copies of its bad ranges are added below
		for _, d := range damages {
			need += min(d.Length, info.Size())
		}
	}
	for s := range r.rewrite {
		need += max(s.fileBytes, 0)
	}
	return format.CheckFreeSpace(r.fs, r.dir, need, "quarantine with new segments")
}

// damagedFiles groups the damage by file.
func (r *repairer) damagedFiles() map[string][]format.Damage {
	files := make(map[string][]format.Damage)
	for _, d := range r.report.Before.Damages {
		files[d.File] = append(files[d.File], d)
	}
	return files
}

// quarantine copies each damaged file, and also copies each bad range into a separate file.
func (r *repairer) quarantine() error {
	folder := path.Join(r.dir, format.QuarantineName)
	if err := r.fs.MkdirAll(folder); err != nil {
		return err
	}
	there, err := r.fs.List(folder)
	if err != nil {
		return err
	}
	free := func(name string) string {
		for n, candidate := 0, name; ; candidate = fmt.Sprintf("%s.%d", name, n) {
			if !slices.Contains(there, candidate) {
				there = append(there, candidate)
				r.report.Quarantined = append(r.report.Quarantined, candidate)
				return candidate
			}
			n++
		}
	}
	files := r.damagedFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := r.quarantineFile(name, folder, files[name], free); err != nil {
			return err
		}
	}
	return r.fs.SyncDir(folder)
}

// quarantineFile copies one file and its bad ranges. It does nothing if the file is missing. The function free returns
// a name that is similar to a given one and not in use yet.
func (r *repairer) quarantineFile(name, folder string, damages []format.Damage, free func(string) string) (err error) {
	f, err := r.fs.Open(path.Join(r.dir, name))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	if err := r.copyRange(f, 0, size, path.Join(folder, free(name))); err != nil {
		return err
	}
	for _, d := range damages {
		if length := min(d.Length, size-d.Offset); length > 0 && length < size {
			if err := r.copyRange(f, d.Offset, length, path.Join(folder,
				free(fmt.Sprintf("%s@%d", name, d.Offset)))); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyRange copies a range of a file into a new file and syncs it. In the copy, sectors that cannot be read are filled
// with bytes 0xff.
func (r *repairer) copyRange(f vfs.File, offset, length int64, name string) (err error) {
	out, err := vfs.CreateReplacing(r.fs, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffer := segio.FrameBuffers.Get().(*[]byte)
	defer segio.FrameBuffers.Put(buffer)
	w := segio.OpenWindow(countingFile{f, r.verifier}, offset, offset+length)
	w.UseBuffer(*buffer)
	for at := offset; at < offset+length; {
		b := w.Fill(at, min(segio.WindowBytes/2, offset+length-at))
		if w.Err() != nil {
			return w.Err()
		}
		if _, err := out.WriteAt(b, at-offset); err != nil {
			return err
		}
		at += int64(len(b))
	}
	return out.Sync()
}

// finish repairs the mark and removes the files that the new manifest does not list.
func (r *repairer) finish() error {
	if r.badMark || len(r.garbage) > 0 {
		if err := r.rewriteMark(); err != nil {
			return err
		}
	}
	for _, name := range r.garbage {
		if err := r.fs.Remove(path.Join(r.dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return err
		}
	}
	if r.badReplica {
		if err := format.WriteReplicaFile(r.fs, r.dir, *r.replica); err != nil {
			return err
		}
	}
	return r.fs.SyncDir(r.dir)
}

// rewriteMark writes a new mark file in which both slots have the content of the valid slot.
func (r *repairer) rewriteMark() error {
	if r.mark.Sequence == 0 {
		return format.CreateMark(r.fs, r.dir)
	}
	var slots [format.MarkSlots][]byte
	for i := range uint64(format.MarkSlots) {
		m := r.mark
		m.Sequence += i
		slots[m.Sequence%format.MarkSlots] = format.EncodeMark(m)
	}
	return format.WriteReplace(r.fs, r.dir, format.MarkName, slices.Concat(slots[:]...))
}
