package transfer

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// ownLog is the log that was in the folder before the install.
type ownLog struct {
	fs       vfs.FS
	dir      string
	manifest *format.Manifest // nil if there is no manifest, in which case the folder's other files are ignored
	// hard is the hard state in the manifest. readTail combines it with the state records of the active segment.
	hard format.StateRecord

	// readTail sets the two fields below. If bad bytes may hold further entries, it assumes that they do.
	last uint64       // index of the last entry
	walk *replay.Walk // result of walking the active segment, or nil if there is none
}

// readOwn reads the folder's manifest and replica file, and checks that the folder belongs to the replica.
func readOwn(fs vfs.FS, dir string, identity format.Identity, replica format.ReplicaFile) (*ownLog, error) {
	own := &ownLog{fs: fs, dir: dir}
	was, found, err := format.ReadReplicaFile(fs, dir)
	if err != nil {
		return nil, err
	}
	if found && (was.RaftID != replica.RaftID || was.Volume != replica.Volume || was.Store != replica.Store ||
		was.Group != replica.Group) {
		return nil, fmt.Errorf("%w: the folder is that of replica %016x on volume %s, not of %016x on %s", format.ErrForeign,
			was.RaftID, was.Volume, replica.RaftID, replica.Volume)
	}
	m, err := format.ReadManifest(fs, dir)
	switch {
	case errors.Is(err, iofs.ErrNotExist) && (!found || was.Joining):
		return own, nil
	case errors.Is(err, iofs.ErrNotExist), errors.Is(err, format.ErrCorrupt):
		return nil, fmt.Errorf(
			"%w: what was voted for and acknowledged is not known any more, because the manifest is lost: %w", ErrBehind, err)
	case err != nil:
		return nil, err
	}
	own.manifest, own.hard = m, m.HardState
	if err := format.CheckIdentity(m.Identity, identity); err != nil {
		return nil, err
	}
	if !found && !slices.Contains(m.Conf.GetVoters(), replica.RaftID) {
		return nil, fmt.Errorf("%w: the folder without a replica file is that of voters %v, not of %016x", format.ErrForeign,
			m.Conf.GetVoters(), replica.RaftID)
	}
	return own, nil
}

// lists reports whether the manifest lists a segment.
func (o *ownLog) lists(number uint64) bool {
	return o.manifest != nil && slices.ContainsFunc(o.manifest.Segments, func(s format.ManifestSegment) bool {
		return s.Number == number
	})
}

// holds reports whether the folder already holds the export, because an earlier Finish has passed its commit point.
// It ignores the active segment, because an export has none.
func (o *ownLog) holds(m *format.Manifest) bool {
	if o.manifest == nil || len(o.manifest.Segments) != len(m.Segments)+1 ||
		o.manifest.HardState.Commit < m.HardState.Commit {
		return false
	}
	return slices.EqualFunc(o.manifest.Segments[:len(m.Segments)], m.Segments, func(a, b format.ManifestSegment) bool {
		return a.ID == b.ID && a.Bytes == b.Bytes
	})
}

// checkCommit returns ErrBehind if the log is known to have committed entries that the export does not have.
func (o *ownLog) checkCommit(m *format.Manifest) error {
	if o.manifest == nil {
		return nil
	}
	if has := max(o.hard.Commit, o.manifest.CompactedThrough); has > m.HardState.Commit {
		return fmt.Errorf("%w: index %d is committed here, the export ends at %d", ErrBehind, has, m.HardState.Commit)
	}
	return nil
}

// readTail determines the log's hard state and last entry.
func (o *ownLog) readTail() error {
	m := o.manifest
	if m == nil {
		return nil
	}
	o.last = m.CompactedThrough
	for _, s := range m.Segments {
		// Entries that this segment has made void do not count.
		o.last = max(min(o.last, s.FirstIndex-1), s.LastIndex, m.CompactedThrough)
	}
	n := len(m.Segments)
	if n == 0 || m.Segments[n-1].Sealed() {
		return nil
	}
	active := m.Segments[n-1]
	mark, _, _, err := format.ReadMark(o.fs, o.dir)
	if err != nil {
		return err
	}
	if mark.Segment != active.ID { // a mark in an earlier segment does not apply to the active one
		mark = format.Mark{}
	}
	f, err := o.fs.OpenDirect(path.Join(o.dir, format.SegmentName(active.Number)))
	if errors.Is(err, iofs.ErrNotExist) {
		return fmt.Errorf("%w: what was voted for and acknowledged is not known any more, because the active segment is gone",
			ErrBehind)
	}
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil {
		r := segio.NewFrameReader(f, active.ID, format.SegmentHeaderBytes, max(size, format.SegmentHeaderBytes))
		o.walk, err = replay.Segment(r, active.FirstIndex, size, false)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	// The header counts as synced, because it was synced before the manifest listed the segment.
	if o.walk.StateMissing(max(o.walk.Synced, mark.Offset, format.SegmentHeaderBytes)) {
		return fmt.Errorf("%w: what was voted for is not known any more, because the end of the active segment is damaged",
			ErrBehind)
	}
	o.last = max(o.last, o.walk.Last, o.walk.SyncedIndex, mark.Index)
	if o.walk.States {
		o.hard.MergeHardState(o.walk.State)
	}
	return nil
}

// checkTail returns ErrBehind if the install could lose entries that this replica has acknowledged to a leader. Such
// entries can exist only after the end of the export, in a log that has the export's last entry. If the log has a
// different entry at that index, its later entries are void, because the export's entry is committed.
func (o *ownLog) checkTail(m *format.Manifest, term uint64) error {
	if o.manifest == nil {
		return nil
	}
	at := m.HardState.Commit
	if err := o.checkCommit(m); err != nil {
		return err
	}
	if o.last <= at {
		return nil
	}
	own, known := o.termAt(at)
	if known && own != term {
		return nil
	}
	return fmt.Errorf("%w: entries up to index %d may have been acknowledged, the export ends at %d", ErrBehind, o.last,
		at)
}

// termAt returns the term of an entry. The result known is false if the term cannot be determined.
func (o *ownLog) termAt(at uint64) (term uint64, known bool) {
	m := o.manifest
	if at == m.CompactedThrough {
		return m.CompactedTerm, true
	}
	var runs []format.TermRun
	n := len(m.Segments)
	if at < m.CompactedThrough || n == 0 {
		return 0, false
	}
	switch last := m.Segments[n-1]; {
	case at >= last.FirstIndex && o.walk != nil:
		if len(o.walk.Bad) > 0 {
			return 0, false
		}
		runs = o.walk.Terms
	default:
		k := n - 1
		for k > 0 && m.Segments[k].FirstIndex > at {
			k--
		}
		h, err := format.ReadHint(o.fs, o.dir, m.Segments[k])
		if err != nil {
			return 0, false
		}
		runs = h.Terms
	}
	term = format.TermAt(runs, at)
	return term, term != 0
}
