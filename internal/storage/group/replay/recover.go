package replay

import "sheaf.dev/sheaf/internal/storage/group/format"

// Recovered is the result of recovering the last segment.
type Recovered struct {
	*Walk
	End           int64 // offset at which the log continues
	VoteMissing   bool  // a vote may be lost (see Walk.StateMissing)
	HasTornTail   bool  // a torn tail begins at End, and must be removed
	TornTailBytes int64 // size of the torn tail, without the zeros at its end
	// reach is the greatest index that the log's last entry can have (see Walk.mayEnd).
	reach   uint64
	Damages []*format.Damage
	IDs     []DamagedID
}

// Recover performs step 6 of the recovery in docs/format.md. The argument size is the offset at which the file's data
// ends. The function walk reads the segment up to a given offset.
func Recover(group string, m *format.Manifest, s format.ManifestSegment, size int64, mark format.Mark,
	walk func(through int64) (*Walk, error),
) (*Recovered, error) {
	w, err := walk(size)
	if err != nil {
		return nil, err
	}
	synced, syncedIndex := max(w.Synced, format.SegmentHeaderBytes), w.SyncedIndex
	if mark.Segment == s.ID && mark.Offset >= synced {
		synced, syncedIndex = mark.Offset, mark.Index
	}
	out := &Recovered{Walk: w, VoteMissing: w.StateMissing(synced),
		End: max(min(w.Zeros, size), format.SegmentHeaderBytes)}
	if hole, ok := w.firstHole(synced); ok {
		if out.Walk, err = walk(hole); err != nil {
			return nil, err
		}
		out.End, out.HasTornTail, out.TornTailBytes = hole, true, min(w.Zeros, size)-hole
		if out.Zeros < hole {
			out.End = out.Zeros
		}
	}
	last := max(out.Last, syncedIndex, out.mayReach())
	if out.End < synced { // the file has zeros in place of synced bytes, or ends before them
		out.Unknown(out.End, synced-out.End, "what was synced is gone", true)
		out.End = synced
	}
	if commit := max(m.HardState.Commit, out.State.Commit); commit > last {
		out.Unknown(out.End, 0, "committed entries are gone", true)
		last, out.VoteMissing = commit, true // the missing bytes may have held a vote
	}
	out.reach = out.mayEnd(last)
	out.Damages, out.IDs = out.Explain(group, s, last, nil, m.MayBeTruncated())
	return out, nil
}

// LastIndex returns the greatest index of an entry that is valid, or was valid before it was damaged. The index range
// of a Damage can extend further, because it may include entries that were made void.
func (r *Recovered) LastIndex() uint64 {
	last := r.Last
	for _, d := range r.Damages {
		last = max(last, min(d.IndexLast, r.reach)) // entries lost at the end were valid up to reach, so they count as well
	}
	return last
}
