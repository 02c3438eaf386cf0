package group

import (
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// take decodes and checks the peer's entries. It ignores entries that are undamaged in this log, and entries that have
// become void in this log since the request.
func (p *rangeRepair) take(entries []*raftpb.Entry) error {
	// An index that the peer was not asked for would look as if the peer had compacted it away.
	for _, lost := range p.s.lost {
		if !slices.ContainsFunc(p.asked, func(r IndexRange) bool { return r.First <= lost.First && lost.Last <= r.Last }) {
			return fmt.Errorf("%w: indexes %d to %d were hit since the peer was asked", ErrRepairLater, lost.First, lost.Last)
		}
	}
	in := func(ranges []IndexRange, at uint64) bool {
		return slices.ContainsFunc(ranges, func(r IndexRange) bool { return at >= r.First && at <= r.Last })
	}
	var before uint64
	p.state.mu.RLock()
	p.floor = p.state.floor
	p.state.mu.RUnlock()
	for _, r := range entries {
		e, err := format.DecodePayload(r)
		if err != nil {
			return err
		}
		if e.Index <= before {
			return fmt.Errorf("%w: index %d follows %d", format.ErrCorrupt, e.Index, before)
		}
		before = e.Index
		if !in(p.asked, e.Index) {
			return fmt.Errorf("%w: index %d was not asked for", format.ErrCorrupt, e.Index)
		}
		if kept := p.s.have[e.Index]; kept != nil && kept.term == e.Term || !in(p.s.lost, e.Index) {
			p.same[e.Index] = true
			continue
		}
		if p.isOnlyRequest(&e) {
			if e.RequestID == [16]byte{} {
				continue // compaction has dropped the entry from this log
			}
			e = format.RequestEntry(&e)
		}
		if err := p.checkKnown(&e); err != nil {
			return err
		}
		e.Used = e.Kind.IsVersion()
		p.given = append(p.given, e)
	}
	return nil
}

// isOnlyRequest reports whether the peer still has a version that compaction has already removed from this log.
// Compaction has either dropped the version, or replaced it with a remembered request.
func (p *rangeRepair) isOnlyRequest(e *format.Entry) bool {
	k, known := p.s.known[e.Index]
	return e.Kind.IsVersion() && p.s.rows && e.Index <= p.floor && (!known || !k.version)
}

// checkKnown compares a peer's entry with the description of the entry in the header and the hint. Its errors must not
// contain record ids, because they become shard problems that are visible over HTTP.
func (p *rangeRepair) checkKnown(e *format.Entry) error {
	k, known := p.s.known[e.Index]
	what := ""
	switch {
	case !known && e.Kind.IsVersion() && p.s.rows:
		what = "it is a version of a record, and the hint has none"
	case !known && e.Kind == format.KindRequest:
		p.s.known[e.Index] = knownEntry{id: e.ID, version: !p.s.rows, tombstone: format.RequestOf(e).Delete, term: e.Term}
	case !known:
	case k.term != 0 && k.term != e.Term:
		what = fmt.Sprintf("term %d was %d", e.Term, k.term)
	// The peer's compaction has replaced this version with a remembered request.
	case k.version && e.Kind == format.KindRequest && k.id == e.ID && k.tombstone == format.RequestOf(e).Delete:
	case k.version != e.Kind.IsVersion() || k.id != e.ID || k.version && k.tombstone != (e.Kind == format.KindDelete):
		what = fmt.Sprintf("it is a %s now, and was another entry or of another record", e.Kind)
	case k.length != 0 && k.length != index.MakeLoc(0, 0, format.FrameBytes(len(e.Attributes), len(e.Data)), false).
		LengthBound():
		what = "it has another length"
	case k.crc != nil && *k.crc != entryChecksum(e):
		what = "it has another checksum"
	}
	if what != "" {
		return fmt.Errorf("%w: index %d: %s", format.ErrCorrupt, e.Index, what)
	}
	ref, err := e.BlobRef()
	if err != nil {
		return fmt.Errorf("index %d: %w", e.Index, err)
	}
	if ref == nil {
		return nil
	}
	has, err := p.blobs.has(*ref)
	if err == nil && !has {
		err = fmt.Errorf("index %d refers to blob %s, which is not here: fetch it first", e.Index, ref.ID)
	}
	return err
}

// entryChecksum returns the entry CRC that is stored in an entry's frame.
func entryChecksum(e *format.Entry) uint32 {
	b := format.AppendFrame(nil, format.SegmentID{}, 0, e)
	return format.Checksum(b[format.AtKind : format.FrameHeaderBytes+len(e.Attributes)+len(e.Data)])
}

// checkAbsent decides whether entries that the peer has compacted away may also be dropped from this log. A put that
// the peer does not have was superseded by an entry that this log has applied, so the put may be dropped. A tombstone
// may be dropped only if this log stores no older version of the record, because that version would become visible
// again. An entry that is whole but may be void is also dropped if the peer has no entry with its index, because it is
// not known whether another entry replaced it.
func (p *rangeRepair) checkAbsent() error {
	// given contains the indexes of the entries that the peer has. If the peer has only the remembered request of a
	// version, the version counts as absent.
	given := make(map[uint64]bool)
	for i := range p.given {
		e := &p.given[i]
		given[e.Index] = e.Kind != format.KindRequest || !p.s.known[e.Index].version
	}
	p.state.mu.RLock()
	p.floor = p.state.floor
	ahead := slices.Clone(p.state.confsAhead)
	p.state.mu.RUnlock()
	var deleted []row
	absent := uint64(0)
	for _, r := range p.s.lost {
		for at := r.First; at <= r.Last; at++ {
			if k := p.s.have[at]; given[at] || k != nil && (k.sure || p.same[at]) {
				continue
			}
			k, known := p.s.known[at]
			if kept := p.s.have[at]; kept != nil {
				k, known = kept.knownEntry, true
				delete(p.s.have, at)
			}
			absent = at
			switch {
			case !known && !p.s.rows:
				return fmt.Errorf("%w: the peer has no entry with index %d, and it is not known what it was", ErrRepairByInstall,
					at)
			case known && k.tombstone:
				deleted = append(deleted, row{id: k.id, index: at})
				p.tombstones = max(p.tombstones, at)
			}
			if k.version {
				p.gone = append(p.gone, k.id)
			}
		}
	}
	switch {
	case absent == 0:
		return nil
	case p.state.applied.Load() < p.peer, len(ahead) > 0 && ahead[0] <= absent:
		return ErrRepairLater
	}
	p.dropped = true
	if err := p.raiseFloor(absent, given); err != nil {
		return err
	}
	return p.checkDeleted(deleted)
}

// raiseFloor raises Raft's floor to an index that is at or above the last absent index and whose term is certain.
func (p *rangeRepair) raiseFloor(absent uint64, given map[uint64]bool) error {
	if absent <= p.floor {
		return nil
	}
	if p.s.term(absent) != 0 {
		p.floor = absent
		return nil
	}
	for at := absent + 1; at <= p.v.through; at++ {
		if given[at] || p.s.have[at] != nil {
			p.floor = at
			return nil
		}
	}
	return fmt.Errorf("%w: the term of index %d, which the peer has not any more, is not known", ErrRepairByInstall,
		absent)
}

// checkDeleted returns an error if this log stores an older version of a record whose tombstone is lost.
func (p *rangeRepair) checkDeleted(deleted []row) error {
	for _, d := range deleted {
		newest := uint64(0)
		for i := range p.given {
			if e := &p.given[i]; e.Kind.IsVersion() && e.ID == d.id {
				newest = max(newest, e.Index)
			}
		}
		err := p.reader.history(d.id, 0, p.state.applied.Load(), func(v view, at uint64, _ index.Loc) (bool, error) {
			if v.number != p.v.number || p.s.have[at] != nil {
				newest = max(newest, at)
			}
			return true, nil
		})
		if err != nil {
			return err
		}
		if newest > 0 && newest < d.index {
			return fmt.Errorf(
				"%w: a record was deleted by index %d, which the peer has not any more, and version %d of it is stored here",
				ErrRepairByInstall, d.index, newest)
		}
	}
	return nil
}

// checkOrder drops this log's entries for which the peer has given an entry, and checks that the result is a valid log.
func (p *rangeRepair) checkOrder() error {
	given := make(map[uint64]bool)
	for i := range p.given {
		given[p.given[i].Index] = true
	}
	p.s.kept = slices.DeleteFunc(p.s.kept, func(k keptFrame) bool { return given[k.index] || p.s.have[k.index] == nil })
	all := make([]format.TermRun, 0, len(p.s.kept)+len(p.given)) // one element for each entry
	for _, k := range p.s.kept {
		all = append(all, format.TermRun{FirstIndex: k.index, Term: k.term})
	}
	for i := range p.given {
		all = append(all, format.TermRun{FirstIndex: p.given[i].Index, Term: p.given[i].Term})
	}
	slices.SortFunc(all, func(a, b format.TermRun) int { return cmp.Compare(a.FirstIndex, b.FirstIndex) })
	next := max(p.v.first, p.floor+1) // the lowest index that must exist and has not been found yet
	term := uint64(0)
	for _, e := range all {
		if e.Term < term {
			return fmt.Errorf("%w: index %d has term %d, behind term %d", format.ErrCorrupt, e.FirstIndex, e.Term, term)
		}
		if e.Term > term {
			p.terms = append(p.terms, e)
		}
		term = e.Term
		if e.FirstIndex == next {
			next++
		}
	}
	if next <= p.v.through {
		return fmt.Errorf("%w: index %d is not among what the peer has", ErrRepairLater, next)
	}
	return nil
}
