package group

import (
	"errors"
	"path"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/transfer"
)

// endInstall ends what a crash behind an Install's commit point left, and removes what was gathered for one that the
// log does not need any more, where there is a folder of it. Best effort: a joining file beside a manifest reads as a
// member's, and the rest costs room.
func (l *Log) endInstall(incoming bool) {
	err := l.endJoining()
	if incoming {
		m, readErr := format.ReadManifest(l.folder.fs, path.Join(l.folder.dir, format.IncomingName))
		if readErr != nil || m.HardState.Commit <= l.state.applied.Load() {
			err = errors.Join(err, transfer.RemoveIncoming(l.folder.fs, l.folder.dir))
		}
	}
	if err != nil {
		l.logger.Warn("what an install has left could not be put in order", "group", l.opts.Identity.Name, "error", err)
	}
}

func (l *Log) endJoining() error {
	b, err := format.ReadAll(l.folder.fs, path.Join(l.folder.dir, format.ReplicaName), 2*format.ReplicaFileBytes)
	if err != nil {
		return nil //nolint:nilerr // there is none, or whoever asks who the replica is learns it
	}
	f, _, err := format.DecodeReplicaFile(b)
	if err != nil || !f.Joining {
		return nil //nolint:nilerr // as above
	}
	f.Joining = false
	return format.WriteReplicaFile(l.folder.fs, l.folder.dir, f)
}
