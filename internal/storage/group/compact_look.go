package group

import (
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// looked describes the data that the last compaction had to keep. With these values, the log can tell when enough of
// this data can be dropped, so that the next compaction starts then, and not earlier. Each value is ignored once the
// reason for keeping its data may have ended. Guarded by state.mu.
type looked struct {
	// versions is the number of bytes of superseded entries in sealed segments that Retention.Versions keeps. scans is
	// the number of bytes that open snapshots keep.
	versions, scans int64
	// blobs is the size of the blobs that must be kept. added is the value that blobSet.added had when the compaction
	// ran.
	blobs, added int64
	// scanBlobs is the part of blobs that only open snapshots see.
	scanBlobs int64
	// tombstones is the size of the tombstones that can be dropped once compaction.forgotten, the index that every member
	// has applied and the hold are at least tombstonesThrough.
	tombstones        int64
	tombstonesThrough uint64
	held              heldLook
	closed            uint64 // number of snapshots that had been closed before that compaction (see state.closed)
	// unfreed is the number of bytes that a compaction expected to free but could not. mergeable is the number of
	// segments that it expected to merge but could not. Both values expire at the time in until.
	unfreed   int64
	mergeable int
	until     time.Time
}

// lowSpacePart replaces rewritePart when free space is low. A segment is then rewritten if a sixteenth of it is
// superseded.
const lowSpacePart = 16

// unfreedAgain is how long unfreed stays valid after a compaction that freed nothing although it expected to.
const unfreedAgain = 5 * time.Minute

// Reclaim describes how much of a group's data a compaction could free now, and why the rest of the superseded data
// would be kept. All values are in bytes.
type Reclaim struct {
	// Free is the size of the data that could be freed now. FreeBlobs is the part of Free that is stored in blobs. It is
	// an upper bound, because it includes all blobs stored since the last compaction, whether they are superseded or not.
	Free, FreeBlobs int64
	// Unlooked is the part of FreeBlobs that was stored since the last compaction. It can make a compaction due even
	// though no compaction has yet checked how much of it is superseded.
	Unlooked int64
	// Sealed is the size of the sealed segments and blobs. It excludes the entries that only remember requests.
	Sealed int64
	// Newest, Versions, Age, Held, Scans and Other divide the kept superseded bytes by the reason for keeping them.
	// Newest counts entries in the newest segment. Versions counts entries among the newest Retention.Versions of their
	// record. Age counts entries that were superseded less than Retention.MinAge ago. Held counts entries that were
	// superseded by an entry above the hold. Scans counts entries that an open snapshot sees. Other counts entries that
	// the last compaction kept for any other reason.
	Newest, Versions, Age, Held, Scans, Other int64
	// HeldBlobs is the size of the blobs that only the hold keeps.
	HeldBlobs int64
	// ScanBlobs is the size of the blobs that only open snapshots see.
	ScanBlobs int64
	// Tombstones is the size of the tombstones that can be dropped when every member has applied them, no repeated request
	// can refer to them, and no older version of their record is stored.
	Tombstones int64
	// Requests is the size of the small entries that remember superseded writes by their request ids.
	Requests int64
	// NewestEnd is the size of the newest segment. SegmentMax is the size at which that segment is sealed.
	NewestEnd, SegmentMax int64
}

// reclaim returns the current estimate, computed from values in memory. The caller passes the values of
// blobSet.stored and blobSet.added. The caller holds state.mu.
func (st *state) reclaim(now time.Time, segmentBytes, blobs, added int64) Reclaim {
	k := &st.looked
	r := Reclaim{NewestEnd: st.end, SegmentMax: segmentBytes, Versions: k.versions}
	forgotten, applied := st.forgotten(format.DefaultRequestWindow), st.applied.Load()
	isHeld := k.held.counts(now, st.hold.Load())
	for i, s := range st.segments {
		superseded := s.used.bytes.Load()
		if isHeld {
			held := s.held.of(superseded)
			superseded -= held
			r.Held += held
		}
		if s.bytes == 0 || st.through(i) > applied {
			r.Newest += superseded
			continue
		}
		requests := s.requestCount.Load() * format.RequestFrameBytes
		r.Sealed += s.bytes - requests
		r.Free += superseded
		if st.through(i) <= forgotten {
			r.Free += requests
			r.Sealed += requests
		} else {
			r.Requests += requests
		}
	}
	switch {
	case !isHeld:
		r.FreeBlobs += k.held.blobs
	case k.held.only:
		r.Age = min(r.Held, k.held.aged)
		r.HeldBlobs = k.held.blobs
	default:
		r.Age = r.Held
	}
	r.Held -= r.Age
	if k.closed == st.closedSnapshots(now) {
		r.Scans, r.ScanBlobs = k.scans, k.scanBlobs
	}
	since := max(0, blobs-k.blobs)
	r.Unlooked = min(since, added-k.added)
	r.FreeBlobs += since
	if r.Scans != k.scans {
		r.FreeBlobs += k.scanBlobs
	}
	r.FreeBlobs = min(blobs, r.FreeBlobs)
	r.Sealed += blobs
	r.Free += r.FreeBlobs
	if k.tombstones > 0 && k.tombstonesThrough <= min(forgotten, st.tombstoneMax(), st.holdIndex()) {
		r.Free += k.tombstones
	} else {
		r.Tombstones = k.tombstones
	}
	r.Free = max(0, r.Free-r.Versions-r.Scans)
	if now.Before(k.until) && r.Scans == k.scans {
		r.Other = min(r.Free, k.unfreed)
		r.Free -= r.Other
	}
	r.Unlooked = min(r.Unlooked, r.Free)
	return r
}

// IsDue reports whether a compaction is due. A compaction is due if it can free at least the given share of the
// sealed segments and blobs, and also at least bytesMin bytes. Fewer bytes are enough if, together with the newest
// segment, they would fill a segment. A group therefore never occupies more than the size of the data that it needs,
// divided by 1 - share, plus one segment.
func (r *Reclaim) IsDue(share float64, bytesMin int64) bool {
	return r.Free > 0 && float64(r.Free) >= share*float64(r.Sealed) &&
		(r.Free >= bytesMin || r.Free+r.NewestEnd >= r.SegmentMax)
}

// bytesByOrdinal maps the ordinal of a segment to a number of bytes.
type bytesByOrdinal map[uint32]int64

// look determines how much data must be kept. The later steps of the compaction, beginning with worth, use its
// results.
func (c *compaction) look(views []view) error {
	c.kept, c.garbage = bytesByOrdinal{}, bytesByOrdinal{}
	sealed := make(map[uint32]bool, len(views))
	for _, v := range views {
		sealed[v.ordinal] = true
	}
	k := looked{held: c.lookHeld(), closed: c.closedScans}
	for loc := range c.scanned {
		if sealed[loc.Ordinal()] {
			c.kept[loc.Ordinal()] += loc.LengthBound()
			k.scans += loc.LengthBound()
		}
	}
	for loc := range c.history.recent {
		if _, ok := c.scanned[loc]; !ok {
			c.kept[loc.Ordinal()] += loc.LengthBound()
			k.versions += loc.LengthBound()
		}
	}
	for ordinal, bytes := range c.held.bytes {
		c.kept[ordinal] += bytes
	}
	k.tombstones, k.tombstonesThrough = c.history.waitingTombstones(c.forgotten)
	k.blobs, k.added = c.blobs.stored.Load(), c.blobs.added.Load()
	for _, v := range views {
		b, err := c.blobGarbage(v)
		if err != nil {
			return err
		}
		c.garbage[v.ordinal] = b.garbage
		k.blobs -= b.garbage
		k.scanBlobs += b.scanned
		k.held.blobs += b.held
	}
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.looked = k
	for _, s := range c.state.segments {
		s.held = heldBytes{c.held.bytes[s.ordinal], s.used.bytes.Load()}
	}
	return nil
}

// scanned returns the superseded versions that open snapshots see. The caller holds mu.
func (st *state) scanned() map[index.Loc]struct{} {
	out := make(map[index.Loc]struct{})
	for _, s := range st.snapshots {
		for _, loc := range s.held {
			out[loc] = struct{}{}
		}
	}
	return out
}

// supersededBlobs divides the blobs of superseded entries into three groups, and holds the total size of each group.
// scanned counts the blobs that only snapshots see, held counts those that the hold keeps, and garbage counts those
// that can be dropped.
type supersededBlobs struct{ scanned, held, garbage int64 }

// blobGarbage adds up the sizes of the blobs to which a segment's superseded entries refer.
func (c *compaction) blobGarbage(v view) (out supersededBlobs, err error) {
	rows, err := c.reader.rowsOf(v)
	if err != nil || len(rows.Blobs) == 0 {
		return out, err
	}
	sizes := make(map[uint64]int64, len(rows.Blobs))
	for _, b := range rows.Blobs {
		sizes[b.Index] = b.Ref.Size
	}
	err = c.eachRow(v, func(r row) {
		size, ok := sizes[r.index]
		if !ok || !v.used.superseded(r.loc.Offset()) {
			return
		}
		newest, _ := c.places.table.Get(r.id)
		_, isScanned := c.scanned[r.loc]
		_, isRecent := c.history.recent[r.loc]
		switch {
		case isScanned:
			out.scanned += size
		case isRecent:
		case c.held.keeps(r.id, r.index, r.loc, newest):
			out.held += size
		default:
			out.garbage += size
		}
	})
	return out, err
}

// sealEarly seals the newest segment, so that it can be rewritten, in each of three cases. In the first case, many
// blobs in the segment are superseded, and would otherwise remain until the segment is full, which may take long. In
// the second case, free space is low and part of the segment is superseded. In the third case, the superseded bytes
// reach both CompactOptions.SealBytes and half of the segment.
func (c *compaction) sealEarly() error {
	views := c.reader.views(c.applied, c.applied)
	defer unpinAll(views)
	c.history = new(history) // the history is not known yet
	c.state.mu.RLock()
	isHeld := c.state.looked.held.counts(c.now, c.hold) && !c.opts.IgnoreHold
	c.state.mu.RUnlock()
	for _, v := range views {
		if !v.active || c.opts.LookOnly {
			continue
		}
		b, err := c.blobGarbage(v)
		if err != nil {
			return err
		}
		garbage := b.garbage
		superseded := v.used.bytes.Load()
		if isHeld {
			c.state.mu.RLock()
			superseded -= v.held.of(superseded)
			c.state.mu.RUnlock()
		}
		isShort := c.opts.SpaceLow && superseded > 0 && superseded*lowSpacePart >= v.end
		isMuch := c.opts.SealBytes > 0 && superseded >= c.opts.SealBytes && 2*superseded >= v.end
		if !isShort && !isMuch && (garbage == 0 || garbage < min(c.segmentBytes, c.blobs.stored.Load())/rewritePart) {
			continue
		}
		if err := format.MarkShortage(c.editor.w.whileOpen(c.editor.w.seal)); err != nil {
			return err
		}
	}
	return nil
}

// noteUnfreed records how much data seemed droppable but is still stored after the compaction.
func (c *compaction) noteUnfreed() {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	k := &c.state.looked
	if c.report.EntriesDropped > 0 { // tombstones may have waited for older versions that were just dropped
		k.tombstones += c.history.blocked
		k.tombstonesThrough = max(k.tombstonesThrough, c.history.blockedThrough)
	}
	if c.report.SegmentsRewritten == 0 {
		k.unfreed = c.state.reclaim(c.now, c.segmentBytes, c.blobs.stored.Load(), c.blobs.added.Load()).Free
		k.mergeable = c.state.mergeable(c.segmentBytes)
		k.until = c.now.Add(unfreedAgain)
	}
}

// droppable returns how many superseded bytes of a segment can be dropped, as far as this is known without reading the
// segment. Blobs are not included.
func (c *compaction) droppable(v view) int64 {
	superseded := v.used.bytes.Load()
	bytes := max(0, superseded-c.kept[v.ordinal]) + c.history.tombstoneBytes[v.ordinal]
	if v.through <= c.forgotten {
		bytes += v.requestCount.Load() * format.RequestFrameBytes
	}
	return bytes
}
