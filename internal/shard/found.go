package shard

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/fsck"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// findGroups learns which groups have a folder on the volume.
func (s *Shard) findGroups() error {
	ids, err := s.volume.Groups()
	if err != nil {
		return err
	}
	for _, id := range ids {
		s.groups[id] = s.foundGroup(id)
	}
	return nil
}

// foundGroup looks into the folder of a group.
func (s *Shard) foundGroup(id uuid.UUID) *groupReplica {
	g := s.newReplica(placement.Group{UUID: id})
	file, found, err := format.ReadReplicaFile(s.cfg.FS, g.Dir)
	if err == nil && found {
		g.RaftID = file.RaftID
		if err := s.checkReplicaFile(g, file); err != nil {
			g.Foreign, g.Standing = true, member.Standing{Reason: member.Foreign, Detail: err.Error()}
		}
		if file.Joining {
			g.Phase = member.Joining
			return g
		}
	}
	var m *format.Manifest
	if err == nil {
		m, err = format.ReadManifest(s.cfg.FS, g.Dir)
	}
	switch {
	case err != nil:
		// The folder's name still says which group it is; etcd may know its name.
		g.Phase, g.Err, g.Unreadable = member.Failed, fmt.Errorf("reading its manifest: %w", err), true
		if found && (errors.Is(err, format.ErrCorrupt) || errors.Is(err, fs.ErrNotExist)) {
			g.Phase = member.Torn
			s.metrics.tails.WithLabelValues(tailFound).Inc()
		}
		s.logger.Error("group cannot be read", "uuid", id, "error", err)
		return g
	case m.Identity.Store != s.store || m.Identity.Group != id:
		g.Standing = member.Standing{Reason: member.OtherGroup, Detail: fmt.Sprintf("it is group %s of store %s", m.Identity.Group, m.Identity.Store)}
		if g.Exchanged = fsck.Exchanged(s.cfg.FS, g.Dir); g.Exchanged != "" {
			g.Standing.Detail = g.Exchanged
			s.logger.Error("a folder is not that of its group", "uuid", id, "reason", g.Exchanged)
		}
	}
	g.Name, g.ConfIndex, g.Conf = m.Identity.Name, m.ConfIndex, m.Conf
	if !found && len(m.Conf.GetVoters()) == 1 {
		g.RaftID = m.Conf.GetVoters()[0]
	}
	return g
}
