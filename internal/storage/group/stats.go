package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
)

// Stats returns the log's current statistics.
func (l *Log) Stats() Stats {
	out := Stats{Records: l.places.table.Live(), SupersededBytes: l.places.superseded.Load()}
	if l.enter() != nil {
		return out
	}
	defer l.leave()
	out.MemoryBytes = l.memory.used()
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	out.Segments, out.Mergeable = len(l.state.segments), l.state.mergeable(l.opts.SegmentBytes)
	now := l.now()
	out.Reclaim = l.state.reclaim(now, l.opts.SegmentBytes, l.blobs.stored.Load(), l.blobs.added.Load())
	out.HeldBytes = out.Reclaim.Held + out.Reclaim.HeldBlobs
	if k := &l.state.looked; now.Before(k.until) {
		out.Mergeable = max(0, out.Mergeable-k.mergeable)
	}
	for _, s := range l.state.snapshots {
		if s.isOver(now) {
			continue
		}
		out.ScanPlaces += len(s.held)
		if out.Scans++; s.readers > 0 {
			out.ScansRead++
		}
	}
	for _, s := range l.state.segments {
		out.StoredBytes += s.bytes
		if s.bytes > 0 {
			out.StoredBytes += hintBytesFor(s.rowCount.Load())
		}
	}
	out.StoredBytes += l.state.end + l.blobs.stored.Load()
	for _, d := range l.damages.list() {
		out.Damages = append(out.Damages, *d)
	}
	return out
}

// Blank returns nil if the group holds only Raft's own entries. Otherwise the error says what else the group holds.
// This includes records, writes that may be repeated with their request id and, until a compaction, also tombstones,
// superseded versions and blobs. A group with damage is not blank, because the damaged bytes may have held records.
func (l *Log) Blank() error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	if n := l.places.table.Live(); n > 0 {
		return fmt.Errorf("it holds %s: delete the records of the group first", units.Count(n, "record", "records"))
	}
	if n := l.places.table.Len(); n > 0 {
		return fmt.Errorf("it holds the tombstones of %s, which a compaction drops %v after the delete",
			units.Count(n, "delete", "deletes"), format.DefaultRequestWindow.Age)
	}
	if n := l.blobs.stored.Load(); n > 0 {
		return fmt.Errorf("it holds %d bytes of large records that are uploaded, replaced or deleted", n)
	}
	if l.damages.any() {
		return errors.New("some of its bytes are damaged, and nobody knows what they hold")
	}
	for range l.RecentRequests(format.DefaultRequestWindow, l.now().UnixNano()) {
		return fmt.Errorf("a write may still be repeated with its request id: wait for %v", format.DefaultRequestWindow.Age)
	}
	return nil
}

// Verify reads and checks every byte of the group's files, at a limited byte rate. A rate of 0 means no limit. Damage
// to hints and to files that are stored twice appears only in the report, and Verify repairs it by writing the file
// again.
func (l *Log) Verify(ctx context.Context, rateBytesPerSecond int64) (report fsck.VerifyReport, err error) {
	defer l.addNames("verify", &err)
	if report, err = l.verify(ctx, rateBytesPerSecond); err != nil {
		return report, err
	}
	r := &renewal{gate: &l.gate, w: &l.w, folder: &l.folder, marks: &l.marks, hints: &l.hints, reader: &l.reader}
	more, err := r.run(report.Damages)
	report.Damages = append(report.Damages, more...)
	return report, err
}

func (l *Log) verify(ctx context.Context, rateBytesPerSecond int64) (fsck.VerifyReport, error) {
	// The lock is taken before enter, because Close holds mu while it waits for the callers that have entered.
	l.w.mu.Lock()
	if err := l.enter(); err != nil {
		l.w.mu.Unlock()
		return fsck.VerifyReport{}, err
	}
	defer l.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	views := l.reader.views(0, ^uint64(0)) // keeps segment files from being removed during the check
	m := *l.folder.manifest
	l.state.mu.RLock()
	end, last := l.state.syncedEnd, l.state.syncedLast
	l.state.mu.RUnlock()
	l.w.mu.Unlock()
	defer unpinAll(views)
	report, err := fsck.VerifyFiles(ctx, l.folder.fs, l.folder.dir, fsck.VerifyOptions{
		Manifest: &m, ActiveBytes: end, ActiveIndex: last, RateBytesPerSecond: rateBytesPerSecond, BlobGone: l.blobs.isGone,
	})
	for _, d := range report.Damages {
		if !format.IsHintName(d.File) { // damage to a hint appears only in the report, because it loses nothing
			l.damages.note(d)
		}
	}
	if err == nil {
		err = ctx.Err() // the context may have been cancelled after the last read, while the check waited for the rate limit
	}
	return report, err
}

// ConfIndex returns the index of the membership change that led to the current membership. It returns 0 for the
// membership that was passed to Create.
func (l *Log) ConfIndex() uint64 {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return l.state.confIndex
}

// Damaged reports whether there is damage that has neither been repaired nor been accepted as lost. It is cheap.
func (l *Log) Damaged() bool { return l.damages.any() }
