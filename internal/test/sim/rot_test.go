package sim

import (
	"bytes"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// rot records a place on a disk at which bytes are bad. The record is removed when all bytes that matter at that
// place have been read and found intact.
type rot struct {
	file  string
	at    int64 // moment at which the bytes became bad, as counted by moments
	found bool
	small bool // whether the bytes are redundant, so that nothing is lost
}

// mayBeDamaged reports whether there may be damaged entries on the disk. The caller holds world.mu.
func (m *machine) mayBeDamaged() bool {
	return slices.ContainsFunc(m.rots, func(r rot) bool { return !r.small })
}

// place is a range of bytes that may rot. The bytes must have been synced, and the mark must record that they were.
type place struct {
	file          string
	offset, bytes int64
	segment       *format.ManifestSegment // segment that holds the bytes; nil for a blob
	synced        int64                   // number of synced bytes in the segment
}

// rotOne makes bytes on one disk rot. Nothing is lost, because the other disks hold the same data.
func (w *world) rotOne(o *operator, r *rand.Rand) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := w.one(r)
	if !w.mayLose(o, m) {
		return false
	}
	if !w.rotDisk(m, r, newest(r)) {
		return false
	}
	if r.IntN(2) == 0 { // in half of the cases, the machine restarts, and finds the damage when it loads the log
		m.cutPower(survival(r))
		w.startLater(m, between(r, 10*time.Millisecond, time.Second))
	}
	return true
}

const anyFrame = 1 << 30

// newest chooses at random how many of the newest frames may be damaged. Old frames are often superseded, and the
// very last ones may not be committed.
func newest(r *rand.Rand) int { return []int{1, 4, 20, anyFrame}[r.IntN(4)] }

// rotDisk damages one of the newest synced frames, or a blob, on a machine's disk.
func (w *world) rotDisk(m *machine, r *rand.Rand, newest int) bool {
	w.mu.Lock()
	disk, raftID := m.disk, m.raftID
	w.mu.Unlock()
	file, found, err := format.ReadReplicaFile(disk, groupDir)
	if err != nil || !found || file.Joining || file.RaftID != raftID {
		return false
	}
	// Only synced bytes are damaged, because damage to other bytes could not be distinguished from a torn write.
	segments, blobs, ok := places(disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}))
	if !ok || len(segments) == 0 {
		return false
	}
	all := segments[max(0, len(segments)-newest):]
	if newest == anyFrame && len(blobs) > 0 && r.IntN(4) > 0 {
		all = blobs
	}
	p := all[r.IntN(len(all))]
	kind, where := "bits flipped", "rot in a segment"
	change := func(b []byte) { b[r.IntN(len(b))] ^= 1 << r.IntN(8) }
	from, to := p.offset, p.offset+p.bytes
	if r.IntN(3) == 0 {
		const sector = 512
		kind, change = "sector zeroed", func(b []byte) { clear(b) }
		at := (from + r.Int64N(p.bytes)) / sector * sector
		from, to = max(at, format.SegmentHeaderBytes), at+sector
		if p.segment == nil {
			from, to = max(at, p.offset), min(at+sector, p.offset+p.bytes)
		} else {
			to = min(to, p.synced)
		}
	}
	was := []byte(nil)
	w.mu.Lock()
	if m.disk != disk || to <= from || !disk.Rot(path.Join(groupDir, p.file), from, to-from, func(b []byte) {
		was = bytes.Clone(b)
		change(b)
	}) {
		w.mu.Unlock()
		return false
	}
	m.rots, m.rotted = append(m.rots, rot{file: p.file, at: callSequence.Add(1)}), true
	w.mu.Unlock()
	if p.segment != nil && isWhole(disk, p, from, to) { // only padding was changed, or a flag that no checksum covers
		disk.Rot(path.Join(groupDir, p.file), from, to-from, func(b []byte) { copy(b, was) })
		return false
	}
	if p.segment == nil {
		where = "rot in a blob"
	}
	w.trace("%v: %s of %s from %d to %d", m, kind, p.file, from, to)
	w.fire(kind)
	w.fire(where)
	return true
}

// places returns the places on a disk at which bytes may rot: the frames that count as synced, and the blobs to which
// entries refer.
func places(disk *vfstest.Mem) (segments, blobs []place, ok bool) {
	manifest, err := format.ReadManifest(disk, groupDir)
	if err != nil {
		return nil, nil, false
	}
	mark, found, _, err := format.ReadMark(disk, groupDir)
	if err != nil {
		return nil, nil, false
	}
	for i := range manifest.Segments {
		s := &manifest.Segments[i]
		first, synced := len(segments), s.Bytes
		if found && mark.Segment == s.ID {
			synced = max(synced, mark.Offset)
		}
		walk := walkFile(disk, s, func(step *segio.FrameStep) {
			e := &step.Entry
			if e.Kind == format.KindState {
				if state, err := format.DecodeStateRecord(e.Data); err == nil && !s.Sealed() {
					synced = max(synced, state.SyncedOffset)
				}
			}
			segments = append(segments, place{file: format.SegmentName(s.Number), offset: step.Offset, bytes: step.Bytes,
				segment: s})
			if e.Kind != format.KindPut || e.Codec != format.CodecBlob {
				return
			}
			if ref, err := format.DecodeBlobRef(e.Data); err == nil && ref.Size > 0 {
				blobs = append(blobs, place{file: format.BlobName(ref.ID), bytes: format.BlobFileBytes(ref.Size)})
			}
		})
		if !walk {
			return nil, nil, false
		}
		segments = append(segments[:first], slices.DeleteFunc(segments[first:], func(p place) bool {
			return p.offset+p.bytes > synced
		})...)
		for k := first; k < len(segments); k++ {
			segments[k].synced = synced
		}
	}
	return segments, blobs, true
}

// walkFile calls do() for each complete frame of a segment.
func walkFile(disk *vfstest.Mem, s *format.ManifestSegment, do func(*segio.FrameStep)) bool {
	f, err := disk.Open(path.Join(groupDir, format.SegmentName(s.Number)))
	if err != nil {
		return false
	}
	defer f.Close()
	end := s.Bytes
	if end == 0 {
		if end, err = f.Size(); err != nil {
			return false
		}
	}
	frames := segio.NewFrameReader(f, s.ID, format.SegmentHeaderBytes, max(end, format.SegmentHeaderBytes))
	for frames.Next() {
		if step := frames.Step(); step.Status == segio.FrameWhole {
			do(step)
		}
	}
	return frames.Err() == nil
}

// isWhole reports whether every byte in the given range belongs to an intact frame.
func isWhole(disk *vfstest.Mem, p place, from, to int64) bool {
	covered := int64(0)
	walkFile(disk, p.segment, func(step *segio.FrameStep) {
		covered += max(0, min(to, step.Offset+step.Bytes)-max(from, step.Offset))
	})
	return covered == to-from
}

// mayHaveRot reports whether there may be damage on a machine's disk. If so, a read may fail because of the damage, but
// it must never return wrong bytes.
func (w *world) mayHaveRot(m *machine) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.rotted
}

// isRotten reports whether some bytes on a machine's disk are still bad.
func (w *world) isRotten(m *machine) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(m.rots) > 0
}

// noteFound records that bad bytes in a file were found. An empty file name stands for any segment or blob. It
// returns false if no bad bytes are known in the file.
func (w *world) noteFound(m *machine, how string, file string) (known bool) {
	w.mu.Lock()
	counted := false
	for i := range m.rots {
		if r := &m.rots[i]; r.file == file || file == "" && !r.small {
			counted, known = counted || !r.found && !r.small, true
			r.found = true
		}
	}
	w.mu.Unlock()
	if counted {
		w.fire("rot found " + how)
	}
	return known
}

// scrub verifies everything in a replica, and returns true if nothing is damaged.
func (w *world) scrub(p *process) bool {
	begun := callSequence.Add(1)
	report, err := p.log.Verify(w.ctx, 0)
	if err != nil {
		return false
	}
	whole := true
	for _, d := range report.Damages {
		kind := smallKind(d.File)
		small := kind != ""
		known := w.noteFound(p.machine, "by scrub", d.File)
		if kind == "hint" && !known {
			continue // the hint may still be being written
		}
		whole = false
		if small && known {
			w.fire("rot in a " + smallKind(d.File) + " found by scrub")
			continue // the replica will write this file again
		}
		if (small || !w.mayHaveRot(p.machine)) && !p.disk.Crashed() {
			w.violate(oracleDisk, "%v: scrub: %v, and its disk is good", p.machine, d)
		}
	}
	if !whole || p.log.Damaged() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.machine.process == p {
		p.machine.rots = slices.DeleteFunc(p.machine.rots, func(r rot) bool { return r.at < begun })
	}
	return true
}

// runScrubs verifies the replicas from time to time, until the run ends.
func (w *world) runScrubs() {
	r := rand.New(rand.NewPCG(w.seed, 7))
	for w.sleep(between(r, w.cfg.scrub/10, w.cfg.scrub)) {
		for _, p := range w.processes() {
			if w.isRotten(p.machine) || r.IntN(20) == 0 {
				w.scrub(p)
			}
		}
	}
}
