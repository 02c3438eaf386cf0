package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"slices"

	"sheaf.dev/sheaf/internal/group/format"
)

// An open log does not read its small files again: manifest, replica file and mark are kept twice, and a hint can be
// made anew. One bad place in them loses nothing, but a second one may. So what is bad is written anew when everything
// is read.

// renew reads the small files and writes anew what is bad; found is what was found so far, hints too. It gives what
// else is bad.
func (l *Log) renew(found []format.Damage) ([]format.Damage, error) {
	var bad []format.Damage
	for _, do := range []func() ([]format.Damage, error){l.renewManifest, l.renewReplica, l.renewMark} {
		more, err := do()
		bad = append(bad, more...)
		if err != nil {
			return bad, err
		}
	}
	bad = append(bad, l.renewActiveHint(found)...)
	return bad, l.renewHints(found)
}

// copyDamages names the bad ones of two copies.
func (l *Log) copyDamages(file string, bytes int64, bad [2]error) []format.Damage {
	out := format.CopyDamages(file, bytes, bad)
	for i := range out {
		out[i].Group = l.opts.Identity.Name
		l.logger.Warn("stored bytes are bad: they are written anew", "damage", out[i].String())
	}
	return out
}

func (l *Log) renewManifest() ([]format.Damage, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	if err := l.w.settle(); err != nil {
		return nil, err
	}
	var copies [2]error
	b, err := format.ReadAll(l.folder.fs, path.Join(l.folder.dir, format.ManifestName), format.ManifestBytesMax)
	if err == nil {
		_, copies, err = format.DecodeManifest(b)
	}
	if err != nil {
		copies = [2]error{err, err} // the log itself knows what to write
	}
	bad := l.copyDamages(format.ManifestName, int64(len(b)/2), copies)
	if len(bad) == 0 {
		return nil, nil
	}
	return bad, l.folder.writeManifest(func(*format.Manifest) {})
}

// renewReplica cannot help where no copy counts: the log does not know which incarnation it is.
func (l *Log) renewReplica() ([]format.Damage, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	b, err := format.ReadAll(l.folder.fs, path.Join(l.folder.dir, format.ReplicaName), 2*format.ReplicaFileBytes)
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
	bad := l.copyDamages(format.ReplicaName, format.BlockBytes, copies)
	if len(bad) == 0 {
		return nil, nil
	}
	return bad, format.WriteReplicaFile(l.folder.fs, l.folder.dir, f)
}

func (l *Log) renewMark() ([]format.Damage, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	slots, err := l.marks.renew()
	bad := l.copyDamages(format.MarkName, format.BlockBytes, slots)
	if err != nil {
		return bad, fmt.Errorf("%s: %w", format.MarkName, err)
	}
	if len(bad) > 0 {
		err = l.Tick()
	}
	return bad, err
}

// renew makes the file anew where a slot is bad, with the newest mark that is known.
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
		mark.Sequence = f.sequence // the next one goes into the other slot
		copy(content[mark.Sequence%format.MarkSlots*format.BlockBytes:], format.EncodeMark(mark))
	}
	f.closeFile()
	err = format.WriteReplace(f.fs, f.dir, format.MarkName, content)
	f.broken = err != nil
	return bad, err
}

// renewActiveHint writes the hint of the active segment anew where it tells less than was written, or is among what was
// found.
func (l *Log) renewActiveHint(found []format.Damage) []format.Damage {
	l.w.mu.Lock()
	part, s := l.w.hint.told, l.w.active.manifest()
	l.w.mu.Unlock()
	told := slices.ContainsFunc(found, func(d format.Damage) bool { return d.File == format.ActiveHintName })
	whole := func() bool {
		h, err := format.ReadPieces(l.folder.fs, l.folder.dir, s)
		return err == nil && h != nil && h.Bytes >= part.Bytes && !told
	}
	if part.Bytes == 0 || whole() {
		return nil
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	w := &l.w
	if l.closed.Load() || w.active.id != s.ID || w.hint.told.End < part.End || whole() {
		return nil // that one is gone, or was written anew meanwhile
	}
	w.hint.told, w.hint.tried = format.HintPart{}, 0
	l.w.growHint()
	l.logger.Warn("the hint of the active segment was bad and is made anew", "group", l.opts.Identity.Name, "segment", s.Number)
	if told {
		return nil
	}
	return []format.Damage{{Group: l.opts.Identity.Name, File: format.ActiveHintName, Length: part.Bytes, What: "a piece does not count, it is written anew"}}
}

// renewHints makes the hints anew that were found bad.
func (l *Log) renewHints(found []format.Damage) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	views := l.reader.views(0, ^uint64(0))
	defer unpinAll(views)
	for _, v := range views {
		name := format.HintName(v.number)
		if v.active || !slices.ContainsFunc(found, func(d format.Damage) bool { return d.File == name }) {
			continue
		}
		l.hints.turn.Lock()
		err := l.hints.write(v.segment)
		l.hints.turn.Unlock()
		if errors.Is(err, format.ErrCorrupt) {
			continue // the segment's bytes are bad too: its repair makes another segment
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.logger.Warn("a hint was bad and is made anew", "group", l.opts.Identity.Name, "segment", v.number)
	}
	return nil
}
