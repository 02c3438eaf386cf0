package disk

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
)

// Find reads a group's folder, and returns the facts about the replica in the folder.
func (v *Disk) Find(id uuid.UUID) (g replicas.State) {
	dir := v.GroupDir(id)
	file, found, err := format.ReadReplicaFile(v.Log.FS, dir)
	if err == nil && found {
		g.RaftID, g.Founder = file.RaftID, file.Founder
		if err := v.checkReplicaFile(id, file); err != nil {
			g.Foreign, g.Standing = true, member.Standing{Reason: member.Foreign, Detail: err.Error()}
		}
		if file.Joining {
			g.Phase = member.Joining
			return g
		}
	}
	var m *format.Manifest
	if err == nil {
		m, err = format.ReadManifest(v.Log.FS, dir)
	}
	switch {
	case err != nil:
		// The group's name is in the manifest, which cannot be read. It can still be found in etcd, because the folder's
		// name is the group's UUID.
		g.Phase, g.Err, g.Unreadable = member.Failed, fmt.Errorf("reading its manifest: %w", err), true
		if found && (errors.Is(err, format.ErrCorrupt) || errors.Is(err, fs.ErrNotExist)) {
			g.Phase = member.DamagedTail
		}
		if !found && errors.Is(err, fs.ErrNotExist) {
			var listing error
			g.Empty, listing = group.HoldsNothing(v.Log.FS, dir)
			g.Err = errors.Join(g.Err, listing)
		}
		v.Logger.Error("group cannot be read", "uuid", id, "error", err)
		return g
	case m.Identity.Store != v.Store || m.Identity.Group != id:
		g.Standing = member.Standing{Reason: member.OtherGroup, Detail: fmt.Sprintf("it is group %s of store %s",
			m.Identity.Group, m.Identity.Store)}
		if g.Exchanged = fsck.Exchanged(v.Log.FS, dir); g.Exchanged != "" {
			g.Standing.Detail = g.Exchanged
			v.Logger.Error("a folder is not that of its group", "uuid", id, "reason", g.Exchanged)
		}
	}
	g.Plan = &group.Plan{Manifest: m, Replica: &file}
	g.Name, g.KnownIndex, g.Conf = m.Identity.Name, m.ConfIndex, m.Conf
	if !found && len(m.Conf.GetVoters()) == 1 {
		g.RaftID = m.Conf.GetVoters()[0]
	}
	return g
}
