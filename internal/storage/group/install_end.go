package group

import (
	"errors"
	"path"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// endInstall completes an Install that crashed after its commit point, and removes the files gathered for an install
// that the log does not need any more. Errors are ignored: if there is a manifest, a replica file that says joining is
// read as a member's; the other files only take space.
func (ld *loading) endInstall() error {
	err := ld.endJoining()
	if slices.Contains(ld.names, format.IncomingName) {
		m, readErr := format.ReadManifest(ld.folder.fs, path.Join(ld.folder.dir, format.IncomingName))
		if readErr != nil || m.HardState.Commit <= ld.state.applied.Load() {
			err = errors.Join(err, transfer.RemoveIncoming(ld.folder.fs, ld.folder.dir))
		}
	}
	if err != nil {
		ld.logger.Warn("what an install has left could not be put in order", "group", ld.opts.Identity.Name, "error", err)
	}
	return nil
}

func (ld *loading) endJoining() error {
	b, err := format.ReadAll(ld.folder.fs, path.Join(ld.folder.dir, format.ReplicaName), 2*format.ReplicaFileBytes)
	if err != nil {
		return nil //nolint:nilerr // there is none, or whoever asks who the replica is learns it
	}
	f, _, err := format.DecodeReplicaFile(b)
	if err != nil || !f.Joining {
		return nil //nolint:nilerr // as above
	}
	f.Joining = false
	return format.WriteReplicaFile(ld.folder.fs, ld.folder.dir, f)
}
