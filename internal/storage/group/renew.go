package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// An open log does not reread its small files, so it does not notice when one of them goes bad. The manifest, the
// replica file and the mark are stored twice, and a hint can be recreated, so one bad sector loses nothing. A second
// bad sector may lose data. Therefore a check of the whole log rewrites every bad copy that it finds.

// renewal reads the small files, and rewrites the bad ones. It writes no segment, and does not change the log's
// content. For each file it locks writer.mu or enters the gate.
type renewal struct {
	gate   *gate
	w      *writer
	folder *folder
	marks  *markFile
	hints  *hints
	reader *reader
}

// run reads the small files and rewrites bad ones. The argument found is the damage that was found so far, including
// damage to hints. run returns the damage to the small files.
func (r *renewal) run(found []format.Damage) ([]format.Damage, error) {
	var bad []format.Damage
	for _, do := range []func() ([]format.Damage, error){r.manifest, r.replica, r.mark} {
		more, err := do()
		bad = append(bad, more...)
		if err != nil {
			return bad, err
		}
	}
	bad = append(bad, r.activeHint(found)...)
	return bad, r.sealedHints(found)
}

// copyDamages returns one Damage for each bad copy in a file that holds two copies, and logs it.
func (r *renewal) copyDamages(file string, bytes int64, bad [2]error) []format.Damage {
	out := format.CopyDamages(file, bytes, bad)
	for i := range out {
		out[i].Group = r.folder.identity.Name
		r.folder.logger.Warn("stored bytes are bad: they are written again", "damage", out[i].String())
	}
	return out
}

func (r *renewal) manifest() ([]format.Damage, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if err := r.gate.usable(); err != nil {
		return nil, err
	}
	if err := r.w.recover(); err != nil {
		return nil, err
	}
	var copies [2]error
	b, err := format.ReadAll(r.folder.fs, path.Join(r.folder.dir, format.ManifestName), format.ManifestBytesMax)
	if err == nil {
		_, copies, err = format.DecodeManifest(b)
	}
	if err != nil {
		copies = [2]error{err, err} // makes both copies count as bad, so that they are written again from memory
	}
	bad := r.copyDamages(format.ManifestName, int64(len(b)/2), copies)
	if len(bad) == 0 {
		return nil, nil
	}
	return bad, r.folder.writeManifest(func(*format.Manifest) {})
}

// replica reads the replica file. If no copy is valid, replica cannot repair the file, because the log does not know
// which incarnation it is.
func (r *renewal) replica() ([]format.Damage, error) {
	if err := r.gate.enter(); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	b, err := format.ReadAll(r.folder.fs, path.Join(r.folder.dir, format.ReplicaName), 2*format.ReplicaFileBytes)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	var copies [2]error
	var f format.ReplicaFile
	if err == nil {
		f, copies, err = format.DecodeReplicaFile(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format.ReplicaName, err)
	}
	bad := r.copyDamages(format.ReplicaName, format.BlockBytes, copies)
	if len(bad) == 0 {
		return nil, nil
	}
	return bad, format.WriteReplicaFile(r.folder.fs, r.folder.dir, f)
}

func (r *renewal) mark() ([]format.Damage, error) {
	if err := r.gate.enter(); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	slots, err := r.marks.renew()
	bad := r.copyDamages(format.MarkName, format.BlockBytes, slots)
	if err != nil {
		return bad, fmt.Errorf("%s: %w", format.MarkName, err)
	}
	if len(bad) > 0 {
		err = r.marks.follow(r.w.state)
	}
	return bad, err
}

// renew rewrites the mark file with the newest known mark if a slot is bad. The result bad says for each slot why it
// is invalid.
func (f *markFile) renew() (bad [format.MarkSlots]error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mark, found, bad, err := format.ReadMark(f.fs, f.dir)
	if err != nil || bad == [format.MarkSlots]error{} {
		return bad, err
	}
	if f.last.Offset > 0 {
		mark, found = f.last, true
	}
	content := make([]byte, format.MarkFileBytes)
	if found {
		mark.Sequence = f.sequence // makes the next mark go into the other slot of the file
		copy(content[mark.Sequence%format.MarkSlots*format.BlockBytes:], format.EncodeMark(mark))
	}
	f.closeFile()
	err = format.WriteReplace(f.fs, f.dir, format.MarkName, content)
	f.broken = err != nil
	return bad, err
}

// activeHint checks the active segment's hint. It rewrites the hint if the file has fewer whole pieces than were
// written, or if the damage in found includes this hint.
func (r *renewal) activeHint(found []format.Damage) []format.Damage {
	r.w.mu.Lock()
	part, s := r.w.hint.covered, r.w.active.manifest()
	r.w.mu.Unlock()
	told := slices.ContainsFunc(found, func(d format.Damage) bool { return d.File == format.ActiveHintName })
	whole := func() bool {
		h, err := format.ReadPieces(r.folder.fs, r.folder.dir, s)
		return err == nil && h != nil && h.Bytes >= part.Bytes && !told
	}
	if part.Bytes == 0 || whole() {
		return nil
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.gate.closed.Load() || r.w.active.id != s.ID || r.w.hint.covered.End < part.End || whole() {
		return nil // the hint was removed or rewritten in the meantime
	}
	r.w.hint.covered, r.w.hint.tried = format.HintPart{}, 0
	r.w.growHint()
	r.folder.logger.Warn("the hint of the active segment was bad and is created again", "segment", s.Number)
	if told {
		return nil
	}
	return []format.Damage{{Group: r.folder.identity.Name, File: format.ActiveHintName, Length: part.Bytes,
		What: "a piece does not count, it is written again"}}
}

// sealedHints rewrites the hints that were found to be bad.
func (r *renewal) sealedHints(found []format.Damage) error {
	if err := r.gate.enter(); err != nil {
		return err
	}
	defer r.gate.leave()
	views := r.reader.views(0, ^uint64(0))
	defer unpinAll(views)
	for _, v := range views {
		name := format.HintName(v.number)
		if v.active || !slices.ContainsFunc(found, func(d format.Damage) bool { return d.File == name }) {
			continue
		}
		r.hints.turn.Lock()
		err := r.hints.write(v.segment)
		r.hints.turn.Unlock()
		if errors.Is(err, format.ErrCorrupt) {
			continue // the segment is also damaged, and its repair creates a new segment
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.folder.logger.Warn("a hint was bad and is created again", "segment", v.number)
	}
	return nil
}
