package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"slices"
)

// An open log does not read its small files again: manifest, replica file and mark are kept twice, and a hint can be made anew. One bad
// place in them loses nothing, but a second one may. So what is bad is written anew when everything is read.

// renew reads the small files and writes anew what is bad; found is what was found so far, hints too. It gives what else is bad.
func (l *Log) renew(found []Damage) ([]Damage, error) {
	var bad []Damage
	for _, do := range []func() ([]Damage, error){l.renewManifest, l.renewReplica, l.renewMark} {
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
func (l *Log) copyDamages(file string, bytes int64, bad [2]error) (out []Damage) {
	for i, why := range bad {
		if why == nil {
			continue
		}
		d := Damage{Group: l.opts.Identity.Name, File: file, Offset: int64(i) * bytes, Length: bytes,
			What: fmt.Sprintf("copy %d does not count, it is written anew: %v", i, why)}
		l.logger.Warn("stored bytes are bad", "damage", d.String())
		out = append(out, d)
	}
	return out
}

func (l *Log) renewManifest() ([]Damage, error) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	if err := l.settle(); err != nil {
		return nil, err
	}
	var copies [2]error
	b, err := readAll(l.fs, path.Join(l.dir, ManifestName), manifestBytesMax)
	if err == nil {
		_, copies, err = DecodeManifest(b)
	}
	if err != nil {
		copies = [2]error{err, err} // the log itself knows what to write
	}
	bad := l.copyDamages(ManifestName, int64(len(b)/2), copies)
	if len(bad) == 0 {
		return nil, nil
	}
	return bad, l.writeManifest(func(*Manifest) {})
}

// renewReplica cannot help where no copy counts: the log does not know which incarnation it is.
func (l *Log) renewReplica() ([]Damage, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	b, err := readAll(l.fs, path.Join(l.dir, ReplicaName), 2*ReplicaFileBytes)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	var copies [2]error
	var f ReplicaFile
	if err == nil {
		f, copies, err = DecodeReplicaFile(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ReplicaName, err)
	}
	bad := l.copyDamages(ReplicaName, blockBytes, copies)
	if len(bad) == 0 {
		return nil, nil
	}
	return bad, WriteReplicaFile(l.fs, l.dir, f)
}

func (l *Log) renewMark() ([]Damage, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	slots, err := l.marks.renew()
	bad := l.copyDamages(MarkName, blockBytes, slots)
	if err != nil {
		return bad, fmt.Errorf("%s: %w", MarkName, err)
	}
	if len(bad) > 0 {
		err = l.Tick()
	}
	return bad, err
}

// renew makes the file anew where a slot is bad, with the newest mark that is known.
func (f *markFile) renew() (bad [markSlots]error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mark, found, bad, err := ReadMark(f.fs, f.dir)
	if err != nil || bad == [markSlots]error{} {
		return bad, err
	}
	if f.last.Offset > 0 {
		mark, found = f.last, true
	}
	content := make([]byte, MarkFileBytes)
	if found {
		mark.Sequence = f.sequence // the next one goes into the other slot
		copy(content[mark.Sequence%markSlots*blockBytes:], EncodeMark(mark))
	}
	f.closeFile()
	err = writeReplace(f.fs, f.dir, MarkName, content)
	f.broken = err != nil
	return bad, err
}

// renewActiveHint writes the hint of the active segment anew where it tells less than was written, or is among what was
// found.
func (l *Log) renewActiveHint(found []Damage) []Damage {
	l.wmu.Lock()
	part, s := l.w.hinted, l.w.active.manifest()
	l.wmu.Unlock()
	told := slices.ContainsFunc(found, func(d Damage) bool { return d.File == ActiveHintName })
	whole := func() bool {
		h, err := readPieces(l.fs, l.dir, s)
		return err == nil && h != nil && h.bytes >= part.bytes && !told
	}
	if part.bytes == 0 || whole() {
		return nil
	}
	l.wmu.Lock()
	defer l.wmu.Unlock()
	w := &l.w
	if l.closed.Load() || w.active.id != s.ID || w.hinted.end < part.end || whole() {
		return nil // that one is gone, or was written anew meanwhile
	}
	w.hinted, w.hintTried = hintPart{}, 0
	l.hintActive()
	l.logger.Warn("the hint of the active segment was bad and is made anew", "group", l.opts.Identity.Name, "segment", s.Number)
	if told {
		return nil
	}
	return []Damage{{Group: l.opts.Identity.Name, File: ActiveHintName, Length: part.bytes, What: "a piece does not count, it is written anew"}}
}

// renewHints makes the hints anew that were found bad.
func (l *Log) renewHints(found []Damage) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	views := l.views(0, ^uint64(0))
	defer unpinAll(views)
	for _, v := range views {
		name := HintName(v.number)
		if v.active || !slices.ContainsFunc(found, func(d Damage) bool { return d.File == name }) {
			continue
		}
		l.hintTurn.Lock()
		err := l.writeHint(v.segment)
		l.hintTurn.Unlock()
		if errors.Is(err, ErrCorrupt) {
			continue // the segment's bytes are bad too: its repair makes another segment
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.logger.Warn("a hint was bad and is made anew", "group", l.opts.Identity.Name, "segment", v.number)
	}
	return nil
}

// remakeHint makes the hint of a sealed segment from its own bytes. Where some of them are bad, there is to be none: the next load would
// not see the damage.
func (l *Log) remakeHint(s *segment, m ManifestSegment) (*Hint, error) {
	w, err := l.walkFile(s, m.Bytes, true)
	if err != nil {
		return nil, err
	}
	if len(w.bad) > 0 {
		return nil, fmt.Errorf("%w: the segment of a bad hint is damaged too", ErrCorrupt)
	}
	return w.rows.hint(m, w.terms), nil
}
