package group

import (
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// looked is what the last compaction found that must stay for now, so that the next one begins when there is enough to
// free, and not before. It is forgotten where what made it so may have ended. Guarded by state.mu.
type looked struct {
	// versions and scans are bytes of superseded entries in sealed segments that retention's number of versions keeps,
	// and open snapshots.
	versions, scans int64
	// blobs are the bytes of the blobs that stay.
	blobs int64
	// scanBlobs of them are seen by open snapshots alone.
	scanBlobs int64
	// tombstones are bytes of those that could go, if what is applied everywhere and forgotten had reached
	// tombstonesThrough.
	tombstones        int64
	tombstonesThrough uint64
	closed            uint64 // snapshots that were closed before, see state.closed
	// unfreed is what a compaction could not free that thought it could, and mergeable what it could not merge; until
	// then.
	unfreed   int64
	mergeable int
	until     time.Time
}

// roomPart: where room is short, a segment is rewritten when a sixteenth of it is superseded.
const roomPart = 16

// unfreedAgain is when a compaction tries again that freed nothing, although something looked as if it could be.
const unfreedAgain = 5 * time.Minute

// aged is what a compaction kept of a segment because it was younger than Retention.MinAge: bytes of entries and of
// their blobs, until enough of it is older. Guarded by state.mu.
type aged struct {
	bytes, blobs   int64
	oldest, newest int64 // commit times
	until          time.Time
}

// add takes in an entry.
func (a *aged) add(e *format.Entry, bytes int64) {
	commitTime := e.CommitTime
	if a.bytes == 0 {
		a.oldest, a.newest = commitTime, commitTime
	}
	a.bytes += bytes
	if ref, _ := e.BlobRef(); ref != nil {
		a.blobs += ref.Size
	}
	a.oldest, a.newest = min(a.oldest, commitTime), max(a.newest, commitTime)
}

// keep says until when it counts: until about a quarter of it is old enough.
func (a *aged) keep(minAge time.Duration) {
	a.until = time.Unix(0, a.oldest+(a.newest-a.oldest)/4).Add(minAge)
}

// at is what still counts.
func (a *aged) at(now time.Time) (bytes, blobs int64) {
	if now.Before(a.until) {
		return a.bytes, a.blobs
	}
	return 0, 0
}

// Reclaim says what of a group compaction could free now, and why it leaves the rest of what is superseded. All in
// bytes.
type Reclaim struct {
	// Free is what would be freed now. FreeBlobs of it is a guess, as it counts what was stored in blobs since the last
	// look.
	Free, FreeBlobs int64
	// Sealed is what sealed segments and blobs hold, without what is remembered of requests.
	Sealed int64
	// Superseded entries that stay: in the newest segment; among the newest Retention.Versions of their record; younger
	// than Retention.MinAge; seen by an open snapshot; for another reason, as of a moment ago.
	Newest, Versions, Age, Scans, Other int64
	// ScanBlobs are the bytes of the blobs that open snapshots alone see.
	ScanBlobs int64
	// Tombstones that go when every member has them, nobody may ask for them by a request id, and nothing older is
	// stored.
	Tombstones int64
	// Requests is what is remembered of superseded writes by their request ids.
	Requests int64
	// NewestEnd is the size of the newest segment, SegmentMax that at which it is sealed.
	NewestEnd, SegmentMax int64
}

// reclaim is the present estimate, from figures in memory alone: blobs are the bytes of all blobs. The caller holds
// state.mu.
func (st *state) reclaim(now time.Time, segmentBytes, blobs int64) Reclaim {
	k := &st.looked
	r := Reclaim{NewestEnd: st.end, SegmentMax: segmentBytes, Versions: k.versions}
	forgotten, applied := st.forgotten(format.DefaultRequestWindow), st.applied.Load()
	for i, s := range st.segments {
		superseded := s.used.figures()
		if s.bytes == 0 || st.through(i) > applied {
			r.Newest += superseded
			continue
		}
		requests := s.requestCount.Load() * format.RequestFrameBytes
		r.Sealed += s.bytes - requests
		young, youngBlobs := s.aged.at(now)
		young = min(superseded, young)
		r.Age += young
		r.FreeBlobs += s.aged.blobs - youngBlobs
		r.Free += superseded - young
		if st.through(i) <= forgotten {
			r.Free += requests
			r.Sealed += requests
		} else {
			r.Requests += requests
		}
	}
	if k.closed == st.closedSnapshots(now) {
		r.Scans, r.ScanBlobs = k.scans, k.scanBlobs
	}
	r.FreeBlobs += max(0, blobs-k.blobs)
	if r.Scans != k.scans {
		r.FreeBlobs += k.scanBlobs
	}
	r.FreeBlobs = min(blobs, r.FreeBlobs)
	r.Sealed += blobs
	r.Free += r.FreeBlobs
	if k.tombstones > 0 && k.tombstonesThrough <= min(forgotten, st.tombstoneMax()) {
		r.Free += k.tombstones
	} else {
		r.Tombstones = k.tombstones
	}
	r.Free = max(0, r.Free-r.Versions-r.Scans)
	if now.Before(k.until) && r.Scans == k.scans {
		r.Other = min(r.Free, k.unfreed)
		r.Free -= r.Other
	}
	return r
}

// IsDue tells whether it is time for a compaction: where it frees a share of what sealed segments and blobs hold, and
// bytes enough, or so many that with the newest segment they are more than one segment may hold. So a group holds at
// most what it needs, divided by 1 - share, and one segment.
func (r *Reclaim) IsDue(share float64, bytesMin int64) bool {
	return r.Free > 0 && float64(r.Free) >= share*float64(r.Sealed) &&
		(r.Free >= bytesMin || r.Free+r.NewestEnd >= r.SegmentMax)
}

// bytesByOrdinal sums up bytes by the ordinal of a segment.
type bytesByOrdinal map[uint32]int64

// look finds out what must stay, for worth and for what follows.
func (c *compaction) look(views []view) error {
	c.kept, c.garbage = bytesByOrdinal{}, bytesByOrdinal{}
	sealed := make(map[uint32]bool, len(views))
	for _, v := range views {
		sealed[v.ordinal] = true
	}
	k := looked{}
	c.state.mu.Lock()
	held := make(map[index.Loc]struct{})
	for _, s := range c.state.snapshots {
		for loc := range s.held {
			held[loc] = struct{}{}
		}
	}
	k.closed = c.state.closedSnapshots(c.now)
	c.state.mu.Unlock()
	for loc := range held {
		if sealed[loc.Ordinal()] {
			c.kept[loc.Ordinal()] += loc.LengthBound()
			k.scans += loc.LengthBound()
		}
	}
	for loc := range c.history.recent {
		if _, ok := held[loc]; !ok {
			c.kept[loc.Ordinal()] += loc.LengthBound()
			k.versions += loc.LengthBound()
		}
	}
	k.tombstones, k.tombstonesThrough = c.history.waitingTombstones(c.forgotten)
	k.blobs = c.blobs.bytes()
	for _, v := range views {
		seen, garbage, err := c.blobGarbage(v, held)
		if err != nil {
			return err
		}
		c.garbage[v.ordinal] = garbage
		k.blobs -= garbage
		k.scanBlobs += seen
	}
	c.state.mu.Lock()
	c.state.looked = k
	c.state.mu.Unlock()
	return nil
}

// blobGarbage sums up the blobs of a segment whose entries are superseded: those that only snapshots see, and those
// that may go.
func (c *compaction) blobGarbage(v view, held map[index.Loc]struct{}) (seen, garbage int64, err error) {
	rows, err := c.reader.rowsOf(v)
	if err != nil || len(rows.Blobs) == 0 {
		return 0, 0, err
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
		_, isHeld := held[r.loc]
		_, isRecent := c.history.recent[r.loc]
		switch {
		case isHeld:
			seen += size
		case !isRecent:
			garbage += size
		}
	})
	c.state.mu.RLock()
	defer c.state.mu.RUnlock()
	_, young := v.aged.at(c.now)
	return seen, max(0, garbage-young), err
}

// sealEarly seals the newest segment where the entries of many blobs in it are superseded, as it may be long until it
// is full; where room is short and much of it is superseded; and where more of it is than CompactOptions.SealBytes.
func (c *compaction) sealEarly() error {
	views := c.reader.views(c.applied, c.applied)
	defer unpinAll(views)
	c.history = new(history) // nothing is known yet
	for _, v := range views {
		if !v.active || c.opts.LookOnly {
			continue
		}
		_, garbage, err := c.blobGarbage(v, nil)
		if err != nil {
			return err
		}
		superseded := v.used.figures()
		isShort := c.opts.Room && superseded > 0 && superseded*roomPart >= v.end
		isMuch := c.opts.SealBytes > 0 && superseded >= c.opts.SealBytes && 2*superseded >= v.end
		if !isShort && !isMuch && (garbage == 0 || garbage < min(c.segmentBytes, c.blobs.bytes())/rewritePart) {
			continue
		}
		if err := c.editor.sealNow(); err != nil {
			return err
		}
	}
	return nil
}

// noteUnfreed notes what is left that looked as if it could go.
func (c *compaction) noteUnfreed() {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	k := &c.state.looked
	if c.report.EntriesDropped > 0 { // what older versions have kept may go now
		k.tombstones += c.history.blocked
		k.tombstonesThrough = max(k.tombstonesThrough, c.history.blockedThrough)
	}
	if c.report.SegmentsRewritten == 0 {
		k.unfreed, k.mergeable = c.state.reclaim(c.now, c.segmentBytes, c.blobs.bytes()).Free,
			c.state.mergeable(c.segmentBytes)
		k.until = c.now.Add(unfreedAgain)
	}
}

// droppable is what is superseded in a segment and may go, as far as is known without reading it; its blobs are not in
// it.
func (c *compaction) droppable(v view) int64 {
	superseded := v.used.figures()
	c.state.mu.RLock()
	young, _ := v.aged.at(c.now)
	c.state.mu.RUnlock()
	if c.opts.All {
		young = 0
	}
	bytes := max(0, superseded-c.kept[v.ordinal]-young) + c.history.tombstoneBytes[v.ordinal]
	if v.through <= c.forgotten {
		bytes += v.requestCount.Load() * format.RequestFrameBytes
	}
	return bytes
}
