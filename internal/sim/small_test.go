package sim

import (
	"bytes"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/group"
)

// smallKind tells which of the small files of a group it is: those that are kept twice, or can be made anew. Empty: none.
func smallKind(file string) string {
	_, isHint := group.ParseHintName(file)
	switch {
	case isHint:
		return "hint"
	case slices.Contains([]string{group.ManifestName, group.MarkName, group.ReplicaName}, file):
		return file
	}
	return ""
}

var smallKinds = []string{"hint", group.ManifestName, group.MarkName, group.ReplicaName}

// rotSmall lets bytes rot in a small file, of which only one place is bad at a time. By that alone nothing is damaged: the replica is
// loaded and leads as if nothing were, and in the end the file is whole.
func (w *world) rotSmall(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	w.mu.Lock()
	disk, raftID := m.disk, m.raftID
	w.mu.Unlock()
	if file, found, err := group.ReadReplicaFile(disk, groupDir); err != nil || !found || file.Joining || file.RaftID != raftID {
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
	// Who lost an end that was synced, and the mark that says so, cannot tell: that is one rot too many.
	hit := kind == group.MarkName && m.isHit() || slices.ContainsFunc(m.rots, func(r rot) bool { return r.file == name })
	if m.disk == disk && !hit {
		disk.Rot(path.Join(groupDir, name), from, length, func(b []byte) {
			was := bytes.Clone(b)
			change(b)
			changed = !bytes.Equal(was, b)
		})
	}
	if changed {
		m.rots = append(m.rots, rot{file: name, at: moments.Add(1), small: true})
	}
	w.mu.Unlock()
	if !changed {
		return false
	}
	w.trace("%v: %s is bad from %d to %d", m, name, from, from+length)
	w.fire("rot in a " + kind)
	if r.IntN(2) == 0 { // it is loaded so
		m.cutPower(survival(r))
		w.startLater(m, between(r, 10*time.Millisecond, time.Second))
	}
	return true
}
