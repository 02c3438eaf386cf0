package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"slices"

	"sheaf.dev/sheaf/internal/vfs"
)

// ownLog is what the folder holds into which a group is to be installed.
type ownLog struct {
	fs       vfs.FS
	dir      string
	manifest *Manifest // nil: nothing that counts

	// Known after readTail. An entry that may be there counts as one that is.
	hard  StateRecord
	last  uint64
	walk  *segmentWalk // of the active segment; nil: there is none
	whole bool         // nothing in the active segment is bad
}

// readOwn looks at the folder, and at whether it is that of the replica.
func readOwn(fs vfs.FS, dir string, identity Identity, replica ReplicaFile) (*ownLog, error) {
	own := &ownLog{fs: fs, dir: dir}
	was, found, err := ReadReplicaFile(fs, dir)
	if err != nil {
		return nil, err
	}
	if found && (was.RaftID != replica.RaftID || was.Volume != replica.Volume || was.Store != replica.Store || was.Group != replica.Group) {
		return nil, fmt.Errorf("%w: the folder is that of replica %016x on volume %s, not of %016x on %s", ErrForeign,
			was.RaftID, was.Volume, replica.RaftID, replica.Volume)
	}
	m, err := ReadManifest(fs, dir)
	switch {
	case errors.Is(err, iofs.ErrNotExist) && (!found || was.Joining):
		return own, nil
	case errors.Is(err, iofs.ErrNotExist), errors.Is(err, ErrCorrupt):
		return nil, fmt.Errorf("%w: what was voted for and acknowledged is not known any more, because the manifest is lost: %w", ErrInstallBehind, err)
	case err != nil:
		return nil, err
	}
	own.manifest = m
	if err := checkIdentity(m.Identity, identity); err != nil {
		return nil, err
	}
	if !found && !slices.Contains(m.Conf.GetVoters(), replica.RaftID) {
		return nil, fmt.Errorf("%w: the folder without a replica file is that of voters %v, not of %016x", ErrForeign, m.Conf.GetVoters(), replica.RaftID)
	}
	return own, nil
}

// lists tells whether the manifest lists a segment.
func (o *ownLog) lists(number uint64) bool {
	return o.manifest != nil && slices.ContainsFunc(o.manifest.Segments, func(s ManifestSegment) bool { return s.Number == number })
}

// holds tells whether an export is installed: its commit point was passed.
func (o *ownLog) holds(m *Manifest) bool {
	if o.manifest == nil || len(o.manifest.Segments) != len(m.Segments)+1 || o.manifest.HardState.Commit < m.HardState.Commit {
		return false
	}
	return slices.EqualFunc(o.manifest.Segments[:len(m.Segments)], m.Segments, func(a, b ManifestSegment) bool {
		return a.ID == b.ID && a.Bytes == b.Bytes
	})
}

// checkCommit tells ErrInstallBehind where the manifest says that more is committed.
func (o *ownLog) checkCommit(m *Manifest) error {
	if o.manifest == nil {
		return nil
	}
	if has := max(o.manifest.HardState.Commit, o.manifest.CompactedThrough); has > m.HardState.Commit {
		return fmt.Errorf("%w: index %d is committed here, the export ends at %d", ErrInstallBehind, has, m.HardState.Commit)
	}
	return nil
}

// readTail learns the hard state and the last entry.
func (o *ownLog) readTail() error {
	m := o.manifest
	if m == nil {
		return nil
	}
	o.hard, o.last, o.whole = m.HardState, m.CompactedThrough, true
	for _, s := range m.Segments {
		o.last = max(min(o.last, s.FirstIndex-1), s.LastIndex, m.CompactedThrough) // what it cuts off is void
	}
	n := len(m.Segments)
	if n == 0 || m.Segments[n-1].Sealed() {
		return nil
	}
	active := m.Segments[n-1]
	mark, found, _, err := ReadMark(o.fs, o.dir)
	if err != nil {
		return err
	}
	if found && mark.Segment == active.ID {
		o.last = max(o.last, mark.Index)
	}
	f, err := o.fs.OpenDirect(path.Join(o.dir, SegmentName(active.Number)))
	if errors.Is(err, iofs.ErrNotExist) {
		return fmt.Errorf("%w: what was voted for and acknowledged is not known any more, because the active segment is gone", ErrInstallBehind)
	}
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil {
		r := NewFrameReader(f, active.ID, SegmentHeaderBytes, max(size, SegmentHeaderBytes))
		o.walk, err = walkSegment(r, active.FirstIndex, size, false)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	o.whole = len(o.walk.bad) == 0
	synced := o.walk.synced
	if found && mark.Segment == active.ID {
		synced = max(synced, mark.Offset)
	}
	if o.walk.lostState(synced) {
		return fmt.Errorf("%w: what was voted for is not known any more, because the end of the active segment is damaged", ErrInstallBehind)
	}
	o.last = max(o.last, o.walk.last, o.walk.syncedIndex)
	if o.walk.states {
		o.hard.MergeHardState(o.walk.state)
	}
	return nil
}

// checkTail tells ErrInstallBehind where entries may be lost that this replica has acknowledged to a leader: those behind the
// export's end, in a log that holds the export's last entry. In another log they are void: what is committed has that entry.
func (o *ownLog) checkTail(m *Manifest, term uint64) error {
	if o.manifest == nil {
		return nil
	}
	at := m.HardState.Commit
	if o.hard.Commit > at {
		return fmt.Errorf("%w: index %d is committed here, the export ends at %d", ErrInstallBehind, o.hard.Commit, at)
	}
	if o.last <= at {
		return nil
	}
	own, known := o.termAt(at)
	if known && own != term {
		return nil
	}
	return fmt.Errorf("%w: entries up to index %d may have been acknowledged, the export ends at %d", ErrInstallBehind, o.last, at)
}

// termAt is the term of an entry; false: not known.
func (o *ownLog) termAt(at uint64) (term uint64, known bool) {
	m := o.manifest
	if at == m.CompactedThrough {
		return m.CompactedTerm, true
	}
	var runs []TermRun
	n := len(m.Segments)
	if at < m.CompactedThrough || n == 0 {
		return 0, false
	}
	switch last := m.Segments[n-1]; {
	case at >= last.FirstIndex && o.walk != nil:
		if !o.whole {
			return 0, false
		}
		runs = o.walk.terms
	default:
		k := n - 1
		for k > 0 && m.Segments[k].FirstIndex > at {
			k--
		}
		h, err := ReadHint(o.fs, o.dir, m.Segments[k])
		if err != nil {
			return 0, false
		}
		runs = h.Terms
	}
	for _, run := range runs {
		if run.FirstIndex > at {
			break
		}
		term = run.Term
	}
	return term, term != 0
}
