package group

import (
	"context"
	"crypto/rand"
	"iter"
	"math"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// A scan sees the newest version of every record at the index of its snapshot. Compaction keeps the versions that
// open snapshots need. A snapshot expires if it makes compaction keep too many bytes, or if it is not used for longer
// than its time to live. When free space is low, the shard closes snapshots earlier (Scans, CloseScan).

// snapshotHeldPart and snapshotHeldMin limit how many superseded bytes one snapshot may make compaction keep. The
// limit is the number of stored bytes divided by snapshotHeldPart, but at least snapshotHeldMin.
const (
	snapshotHeldPart = 2
	snapshotHeldMin  = 1 << 30
	// snapshotsMax limits the number of snapshots per group. Each snapshot has an entry in memory for each superseded
	// version that it sees.
	snapshotsMax = 256
	// snapshotPlacesMax limits the total number of entries that all snapshots of a group have in memory. Each entry
	// takes about 30 bytes.
	snapshotPlacesMax = 4 << 20
)

// snapshot is the state of a group at one index. Guarded by state.mu.
//
// An entry is in the snapshot in two cases, both of which require that its index is at or below the snapshot's index.
// In the first case, the entry is still the newest version of its record, as the group's index says. In the second
// case, the entry was superseded after the snapshot's index, so its location is in held. All entries up to the
// snapshot's index were applied when the snapshot was taken.
type snapshot struct {
	index uint64
	// edge is a location at or after that of the snapshot's last entry. Entries at later locations are not in the
	// snapshot.
	edge index.Loc
	// held has, by record id, the locations of versions that were superseded after the snapshot's index. A version whose
	// index is above that of the snapshot may also be in held, and then the snapshot does not contain the record.
	held    map[int64]index.Loc
	past    bool  // whether the snapshot's index was below the applied index, so that the snapshot stands on the hold
	bytes   int64 // upper bound on the size of the entries in held
	limit   int64
	opened  time.Time
	used    time.Time // time of the last use
	readers int       // number of callers between EnterScan and LeaveScan
	ttl     time.Duration
	gone    bool // whether the snapshot was given up: held became too large, or a version that it sees was lost
	info    ScanInfo
}

// supersede must be called when the version at a location stops being its record's newest. If the snapshot may see
// that version, supersede adds the location to held. Of the versions of a record, the snapshot can only see the one
// that is superseded first. A delete is not added, because no reader needs it, and a compaction may drop it.
func (s *snapshot) supersede(id int64, old index.Loc) {
	if s.gone || old.Tombstone() || s.edge.Less(old) {
		return
	}
	if _, known := s.held[id]; known {
		return
	}
	if s.bytes += old.LengthBound(); s.bytes > s.limit {
		s.gone, s.held = true, nil
		return
	}
	if s.held == nil {
		s.held = make(map[int64]index.Loc)
	}
	s.held[id] = old
}

// moved updates the snapshot when an entry moves to another location.
func (s *snapshot) moved(id int64, from, to index.Loc, at uint64) {
	if held, ok := s.held[id]; ok && held == from && to != 0 {
		s.held[id] = to
	}
	if at <= s.index && s.edge.Less(to) {
		s.edge = to
	}
}

// endLost ends the snapshots that may see a version which a repair does not bring back. These are the ones that hold
// its location, and all of them if the version was the newest of its record. The caller holds mu.
func (st *state) endLost(r *rewrite) {
	stays, lost := make(map[index.Loc]bool), false
	for _, m := range slices.Concat(r.moves, r.restored) {
		stays[m.from] = m.to != 0
		lost = lost || m.to == 0
	}
	for _, s := range st.snapshots {
		ends := lost
		for _, loc := range s.held {
			ends = ends || loc.Ordinal() == r.old[0].ordinal && !stays[loc]
		}
		if ends {
			s.gone, s.held = true, nil
		}
	}
}

// OpenScan takes a snapshot and returns its id. If there are already snapshotsMax snapshots, OpenScan first closes
// one. It prefers snapshots that nobody is reading, and of these the least recently used one.
func (l *Log) OpenScan(ttl time.Duration) (ScanID, error) {
	if err := l.enter(); err != nil {
		return ScanID{}, err
	}
	defer l.leave()
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.openSnapshot(l.state.applied.Load(), ttl, l.now(), &l.places), nil
}

// openSnapshot adds a snapshot of an index that is at or below the applied index. The caller holds mu.
func (st *state) openSnapshot(at uint64, ttl time.Duration, now time.Time, places *places) (id ScanID) {
	_, _ = rand.Read(id[:]) // rand.Read never returns an error
	st.expireSnapshots(now)
	st.limitSnapshots()
	s := &snapshot{index: at, opened: now, used: now, ttl: ttl}
	stored := st.end
	for _, seg := range st.segments {
		stored += seg.bytes
		if seg.first <= s.index {
			s.edge = st.edgeOf(seg, s.index)
		}
	}
	s.limit = max(stored/snapshotHeldPart, snapshotHeldMin)
	s.info = ScanInfo{Index: s.index, Bytes: max(0, stored-places.superseded.Load()), Records: places.table.Live()}
	st.snapshots[id] = s
	return id
}

// isOver reports whether the snapshot can no longer be used.
func (s *snapshot) isOver(now time.Time) bool { return s.gone || now.After(s.used.Add(s.ttl)) }

// EnterScan tells the log that the caller is now reading a snapshot. The caller must call LeaveScan when it stops.
// EnterScan returns ErrCursorExpired if the snapshot no longer exists.
func (l *Log) EnterScan(id ScanID) error {
	return l.state.useSnapshot(id, l.now(), func(s *snapshot) { s.readers++ })
}

// LeaveScan tells the log that a caller of EnterScan has stopped reading the snapshot. It does nothing if the
// snapshot no longer exists.
func (l *Log) LeaveScan(id ScanID) {
	_ = l.state.useSnapshot(id, l.now(), func(s *snapshot) { s.readers-- })
}

// Scans returns the open snapshots, in no particular order.
func (l *Log) Scans() (open []OpenScan) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	now := l.now()
	l.state.expireSnapshots(now)
	for id, s := range l.state.snapshots {
		scan := OpenScan{ID: id, Opened: s.opened, Used: s.used, Read: s.readers > 0, Keeps: len(s.held) > 0}
		if scan.Read {
			scan.Used = now
		}
		open = append(open, scan)
	}
	return open
}

// ScanInfo describes an open snapshot. It returns ErrCursorExpired if the snapshot is gone.
func (l *Log) ScanInfo(id ScanID) (info ScanInfo, err error) {
	err = l.state.useSnapshot(id, l.now(), func(s *snapshot) { info = s.info })
	return info, err
}

// CloseScan releases a snapshot.
func (l *Log) CloseScan(id ScanID) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	if _, open := l.state.snapshots[id]; open {
		delete(l.state.snapshots, id)
		l.state.closed++
	}
}

// ScanSplits splits a snapshot into index ranges (first, last] of about splitBytes each. It returns the bounds of the
// ranges in order. The first one is 0, and the last one is the snapshot's index.
func (l *Log) ScanSplits(id ScanID, splitBytes int64) ([]uint64, error) {
	info, err := l.ScanInfo(id)
	if err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	splitBytes = max(splitBytes, 1)
	views := l.reader.views(0, info.Index)
	defer unpinAll(views)
	bounds := []uint64{0}
	bytes := int64(0)
	add := func(at uint64) {
		if at > bounds[len(bounds)-1] && at < info.Index {
			bounds = append(bounds, at)
		}
		bytes = 0
	}
	for _, v := range views {
		before := int64(format.SegmentHeaderBytes)
		for _, c := range l.reader.splitPoints(v, splitBytes) {
			if bytes += c.offset - before; bytes >= splitBytes {
				add(c.index - 1)
			}
			before = c.offset
		}
		if bytes += v.end - before; bytes >= splitBytes {
			add(v.through)
		}
	}
	if info.Index > 0 {
		bounds = append(bounds, info.Index)
	}
	return bounds, nil
}

// splitPoints returns positions in a view, in ascending order. They are about splitBytes apart, but at least about
// checkpointBytes.
func (r *reader) splitPoints(v view, splitBytes int64) []checkpoint {
	if v.rows == nil {
		return r.checkpointsOf(v)
	}
	var out []checkpoint
	next := int64(format.SegmentHeaderBytes)
	for i, place := range v.rows.Places {
		if offset := index.Loc(place).Offset(); offset >= next {
			out = append(out, checkpoint{index: v.first + uint64(v.rows.Indexes[i]), offset: offset})
			next = offset + splitBytes
		}
	}
	return out
}

// Scan yields the snapshot's records whose index is in (after, through], sorted by index. It leaves out superseded and
// deleted versions. The caller must not use a record after the next step. For a damaged entry Scan yields a
// *DamageError and continues. If damage may have hit a newer version of a record, Scan yields this damage instead of
// the record, because Get also refuses to return such a record. Scan holds no lock for long.
func (l *Log) Scan(ctx context.Context, id ScanID, after, through uint64, metadataOnly bool) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		c := &scanCursor{
			group: l.opts.Identity.Name, gate: &l.gate, state: &l.state, places: &l.places, reader: &l.reader,
			damages: &l.damages,
			now:     l.now, off: l.opts.Off,
			id: id, next: after + 1, through: through, metadataOnly: metadataOnly, yield: yield,
		}
		if after == math.MaxUint64 {
			return
		}
		err := l.state.useSnapshot(id, l.now(), func(s *snapshot) { c.through = min(through, s.index) })
		if err != nil {
			yield(Record{}, err)
			return
		}
		c.run(ctx)
	}
}
