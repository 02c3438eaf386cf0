package group

import (
	"context"
	"crypto/rand"
	"iter"
	"math"
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
	// takes about 20 bytes.
	snapshotPlacesMax = 4 << 20
)

// snapshot is the state of a group at one index. Guarded by state.mu.
//
// An entry is in the snapshot in two cases, both of which require that its index is at or below the snapshot's index.
// In the first case, the entry is still the newest version of its record, as the group's index says. In the second
// case, the entry was superseded while the snapshot was open, so its location is in held. All entries up to the
// snapshot's index were applied when the snapshot was taken, because that index was the applied index.
type snapshot struct {
	index uint64
	// edge is the location of the snapshot's last entry. Entries at later locations are not in the snapshot.
	edge    index.Loc
	held    map[index.Loc]struct{}
	bytes   int64 // upper bound on the size of the entries in held
	limit   int64
	opened  time.Time
	used    time.Time // time of the last use
	readers int       // number of callers between EnterScan and LeaveScan
	ttl     time.Duration
	gone    bool // whether the snapshot was given up, because held became too large
	info    ScanInfo
}

// supersede must be called when the version at a location stops being its record's newest. If the snapshot sees that
// version, supersede adds the location to held.
func (s *snapshot) supersede(old index.Loc) {
	if s.gone || s.edge.Less(old) {
		return
	}
	if s.bytes += old.LengthBound(); s.bytes > s.limit {
		s.gone, s.held = true, nil
		return
	}
	if s.held == nil {
		s.held = make(map[index.Loc]struct{})
	}
	s.held[old] = struct{}{}
}

// moved updates the snapshot when an entry moves to another location.
func (s *snapshot) moved(from, to index.Loc, at uint64) {
	if _, ok := s.held[from]; ok && to != 0 {
		delete(s.held, from)
		s.held[to] = struct{}{}
	}
	if at <= s.index && s.edge.Less(to) {
		s.edge = to
	}
}

// OpenScan takes a snapshot and returns its id. If there are already snapshotsMax snapshots, OpenScan first closes
// one. It prefers snapshots that nobody is reading, and of these the least recently used one.
func (l *Log) OpenScan(ttl time.Duration) (ScanID, error) {
	if err := l.enter(); err != nil {
		return ScanID{}, err
	}
	defer l.leave()
	var id ScanID
	_, _ = rand.Read(id[:]) // rand.Read never returns an error
	now := l.now()
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.expireSnapshots(now)
	l.state.limitSnapshots()
	s := &snapshot{index: l.state.applied.Load(), opened: now, used: now, ttl: ttl}
	stored := l.state.end
	for _, seg := range l.state.segments {
		stored += seg.bytes
		if seg.first <= s.index {
			s.edge = l.state.edgeOf(seg, s.index)
		}
	}
	s.limit = max(stored/snapshotHeldPart, snapshotHeldMin)
	s.info = ScanInfo{Index: s.index, Bytes: max(0, stored-l.places.superseded.Load()), Records: l.places.table.Live()}
	l.state.snapshots[id] = s
	return id, nil
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
