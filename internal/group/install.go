package group

import (
	"context"
	"errors"
	"io"
	"path"
)

// ErrInstallBehind says that the folder holds, or may hold, entries behind the end of the export that must not be lost. Take a newer
// export; where there is none, the replica is to be removed and joins anew with another Raft id.
var ErrInstallBehind = errors.New("the log holds more than what is to be installed")

// Install makes the folder of a replica out of the files of an Export. They are gathered in the folder IncomingName, beside a
// log that may be open until Finish, and may be gathered in several tries, over restarts, from several Exports. Not safe for
// concurrent use, but files may be written by several goroutines.
type Install struct{}

// NewInstall begins or resumes. manifest is Export.Manifest; replica is what the file will say once it is whole (Joining is
// ignored). It looks at what earlier tries left. opts are those of Load, Identity without a name is that of the manifest.
// Errors: ErrForeign, ErrCorrupt, ErrFormatVersion, ErrInstallBehind, ErrNoSpace (checked for all that is missing).
func NewInstall(ctx context.Context, opts Options, replica ReplicaFile, manifest []byte) (*Install, error) {
	return nil, errors.ErrUnsupported
}

// Missing lists what is still wanted: first segments; when they are there, the blobs that they refer to; nil: Finish.
// Have says from where on. Asked again after each file.
func (i *Install) Missing() []ExportFile { return nil }

// File receives a missing file from its Have on. Commit, which the receiver calls at the file's end, checks every byte
// (checksums, identity, order) and makes it durable; a bad one is removed, and missing again from its begin: ErrCorrupt.
// Close without Commit keeps what was written, for the next try.
func (i *Install) File(f ExportFile) (InstallFile, error) { return nil, errors.ErrUnsupported }

// InstallFile is a file being received.
type InstallFile interface {
	io.Writer
	Commit() error
	io.Closer
}

// Finish swaps the new state in: the rename of the manifest is the commit point. No log may be open on the folder. Before and
// after it, a crash leaves the folder as it was, or as it will be. The term is the greater one of the folder's and of the
// export's; a vote of that term is kept. ErrInstallBehind as for NewInstall. The folder's new state is loaded by Load.
func (i *Install) Finish(ctx context.Context) error { return errors.ErrUnsupported }

// Discard removes what was gathered.
func (i *Install) Discard() error { return errors.ErrUnsupported }

// endInstall ends what a crash behind an Install's commit point left: the replica is a member. Best effort: a joining file beside
// a manifest reads as a member's.
func (l *Log) endInstall() {
	b, err := readAll(l.fs, path.Join(l.dir, ReplicaName), 2*ReplicaFileBytes)
	if err != nil {
		return
	}
	if f, _, err := DecodeReplicaFile(b); err == nil && f.Joining {
		f.Joining = false
		if err := WriteReplicaFile(l.fs, l.dir, f); err != nil {
			l.logger.Warn("the replica file still says joining, which its manifest overrides", "group", l.opts.Identity.Name, "error", err)
		}
	}
}
