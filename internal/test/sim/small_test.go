package sim

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// smallKind returns the kind of a file, if the file is one of a group's small files. These are kept twice or can be
// created again. For any other file, smallKind returns "".
func smallKind(file string) string {
	_, isHint := format.ParseHintName(file)
	switch {
	case isHint || file == format.ActiveHintName:
		return "hint"
	case slices.Contains([]string{format.ManifestName, format.MarkName, format.ReplicaName}, file):
		return file
	}
	return ""
}

var smallKinds = []string{"hint", format.ManifestName, format.MarkName, format.ReplicaName}

// rotSmall damages a small file, in one place at a time. The replica must still load and lead, and the file must be
// repaired in the end.
func (w *world) rotSmall(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	w.mu.Lock()
	disk, raftID := m.disk, m.raftID
	w.mu.Unlock()
	if file, found, err := format.ReadReplicaFile(disk, groupDir); err != nil || !found || file.Joining ||
		file.RaftID != raftID {
		return false
	}
	names, err := disk.List(groupDir)
	if err != nil {
		return false
	}
	kind := smallKinds[r.IntN(len(smallKinds))]
	names = slices.DeleteFunc(names, func(name string) bool { return smallKind(name) != kind })
	if len(names) == 0 {
		return false
	}
	name := names[r.IntN(len(names))]
	info, err := disk.Stat(path.Join(groupDir, name))
	if err != nil || info.Size() == 0 {
		return false
	}
	from, length := r.Int64N(info.Size()), int64(1)
	change := func(b []byte) { b[0] ^= 1 << r.IntN(8) }
	if r.IntN(2) == 0 {
		const sector = 512
		from = from / sector * sector
		length, change = min(sector, info.Size()-from), func(b []byte) { clear(b) }
	}
	changed := false
	w.mu.Lock()
	// The mark records where the synced part of the log ends. If both the mark and the end of the log were bad, no
	// replica could notice that entries are lost. Therefore only one of the two is damaged at a time.
	hit := kind == format.MarkName && m.mayBeDamaged() ||
		slices.ContainsFunc(m.rots, func(r rot) bool { return r.file == name })
	if m.disk == disk && !hit {
		disk.Rot(path.Join(groupDir, name), from, length, func(b []byte) {
			was := bytes.Clone(b)
			change(b)
			changed = !bytes.Equal(was, b)
		})
	}
	if changed {
		m.rots = append(m.rots, rot{file: name, at: callSequence.Add(1), small: true})
	}
	w.mu.Unlock()
	if !changed {
		return false
	}
	w.trace("%v: %s is bad from %d to %d", m, name, from, from+length)
	w.fire("rot in a " + kind)
	if r.IntN(2) == 0 { // in half of the cases, the machine restarts and loads the bad file
		m.cutPower(survival(r))
		w.startLater(m, between(r, 10*time.Millisecond, time.Second))
	}
	return true
}

// rotBoth damages both copies of the manifest, or both slots of the mark, after a power cut. Without a manifest
// nobody knows how the replica has voted, so another incarnation replaces it. Without a mark, nothing is lost.
func (w *world) rotBoth(o *operator, r *rand.Rand) bool {
	return w.cfg.copies > 1 && w.powerCutOne(o, r, func(m *machine) bool {
		file, found, err := format.ReadReplicaFile(m.disk, groupDir)
		if err != nil || !found || file.Joining || file.RaftID != m.raftID {
			return false
		}
		name, isMark := format.ManifestName, r.IntN(2) == 0
		if isMark {
			name = format.MarkName
		}
		hit := slices.ContainsFunc(m.rots, func(r rot) bool { return r.file == name })
		info, err := m.disk.Stat(path.Join(groupDir, name))
		if err != nil || info.Size() == 0 || hit || isMark && m.mayBeDamaged() {
			return false
		}
		const every = 8
		if !m.disk.Rot(path.Join(groupDir, name), 0, info.Size(), func(b []byte) {
			for i := r.IntN(every); i < len(b); i += every {
				b[i] ^= 1 << r.IntN(8)
			}
		}) {
			return false
		}
		m.rots = append(m.rots, rot{file: name, at: callSequence.Add(1), small: isMark})
		m.rotted = m.rotted || !isMark
		w.fired["both copies bad: "+name]++
		return true
	})
}

// isWithoutManifest reports whether both copies of the manifest on a disk are bad. Nothing on such a disk is loaded,
// and its replica is given up.
func (m *machine) isWithoutManifest(disk *vfstest.Mem, file format.ReplicaFile) bool {
	w := m.world
	if _, err := format.ReadManifest(disk, groupDir); !errors.Is(err, format.ErrCorrupt) {
		return false
	}
	log, _, err := group.Load(context.Background(), m.options(disk), nil)
	switch {
	case err == nil:
		_ = log.Close(false)
		w.violate(oracleDisk, "%v: a group without a manifest is loaded", m)
	case disk.Crashed():
	case !w.mayHaveRot(m):
		w.violate(oracleDisk, "%v: no manifest, and its disk is good: %v", m, err)
	default:
		w.mu.Lock()
		defer w.mu.Unlock()
		if m.disk == disk && m.process == nil {
			m.kill()
			m.empty()
			m.raftID = 0
			w.lost[file.RaftID] = true
			w.fired["replica without a manifest given up"]++
		}
	}
	return true
}
