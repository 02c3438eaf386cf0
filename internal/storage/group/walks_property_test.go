package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// walkCase is one random log and the damage to it.
type walkCase struct {
	*workload
	clean     *vfstest.Mem // copy of the disk before the damage
	disk      *vfstest.Mem
	written   *writtenLog
	residency Residency
	hints     bool
	cut       bool // the load removes a torn tail
	done      []string
}

// String returns a description of the operations that created the log.
func (c *walkCase) String() string {
	return fmt.Sprintf("residency %s, hints %t, tail cut %t, damage: %s", c.residency, c.hints, c.cut,
		strings.Join(c.done, "; "))
}

func newWalkCase(t *testing.T, seed uint64) *walkCase {
	mem := vfstest.NewMem()
	c := &walkCase{workload: newWorkload(t, 0, mem, mem, Index)}
	c.random = rand.New(rand.NewPCG(seed, 0))
	c.residency, c.hints = Residency(c.random.IntN(2)), c.random.IntN(3) == 0
	ok(t, c.appendBatch(1, []modelEntry{{entry: format.Entry{Kind: format.KindEmpty}}}))
	ok(t, errors.Join(c.sync(), c.apply()))
	// The group once had other voters, so the log may have been truncated. Now it has only one voter, so damage can be
	// accepted as a loss.
	ok(t, c.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(bool)}, 1))
	for range c.random.IntN(41) {
		ok(t, c.change())
	}
	ok(t, errors.Join(c.sync(), c.apply()))
	// An empty batch stores the commit index of all entries so far. In one of three cases, chosen at random, it is left
	// out, so that the commit index in the last state frame does not cover all entries.
	if c.random.IntN(3) > 0 {
		ok(t, c.appendBatch(c.model.last+1, nil))
		ok(t, c.sync())
	}
	ok(t, c.log.Tick())
	if c.random.IntN(2) == 0 { // the entries appended after Tick remain above the mark
		for range 1 + c.random.IntN(2) {
			ok(t, c.appendBatch(c.model.last+1, c.small()))
		}
	}
	c.log.hints.writing.Wait()
	c.clean = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	c.written = readWritten(t, c.clean, c.opts.Dir)
	c.agreesWithAppended()
	return c
}

func (c *walkCase) close() { ok(c.t, c.log.Close(false)) }

// small returns a batch of entries that are so small that many fit into a segment.
func (c *walkCase) small() []modelEntry {
	batch := make([]modelEntry, 1+c.random.IntN(4))
	for i := range batch {
		e := format.Entry{Kind: format.KindPut, ID: c.random.Int64N(c.ids)}
		switch c.random.IntN(8) {
		case 0:
			e = format.Entry{Kind: format.KindEmpty}
		case 1:
			e.Kind = format.KindDelete
		default:
			e.Data = bytes.Repeat([]byte{byte(c.random.Uint32())}, c.random.IntN(200))
		}
		batch[i].entry = e
	}
	return batch
}

// truncateLog simulates a new leader that overwrites entries which are not applied yet. The leader writes either other
// entries, or the ones that the previous truncation removed.
func (c *walkCase) truncateLog() error {
	from := c.model.applied + 1 + c.random.Uint64N(c.model.last-c.model.applied)
	c.term++
	if c.otherAt <= c.model.applied || c.random.IntN(2) == 0 {
		return c.appendBatch(from, c.small())
	}
	n, at := 1+c.random.IntN(len(c.other)), c.otherAt
	if err := c.appendStamped(at, c.other[:n:n]); err != nil {
		return err
	}
	return c.appendBatch(at+uint64(n), c.small())
}

// change performs one random operation on the log.
func (c *walkCase) change() error {
	switch c.random.IntN(12) {
	case 0, 1, 2:
		return c.appendBatch(c.model.last+1, c.small())
	case 3:
		return errors.Join(c.sync(), c.apply())
	case 4:
		return errors.Join(c.sync(), c.log.Tick())
	case 5:
		if c.random.IntN(3) > 0 {
			return c.log.Seal()
		}
	case 6:
		if c.random.IntN(6) == 0 {
			_, err := c.log.Compact(context.Background(), CompactOptions{All: true})
			return err
		}
	case 7: // the first entry of a new leader
		c.term++
		return c.appendBatch(c.model.last+1, []modelEntry{{entry: format.Entry{Kind: format.KindEmpty}}})
	default:
		if c.model.last > c.model.applied {
			return c.truncateLog()
		}
		return c.appendBatch(c.model.last+1, c.small())
	}
	return nil
}

// agreesWithAppended compares the model with the appended entries. Above the floor, each index must have the entry that
// was appended last for it. Below the floor, compaction may have dropped some.
func (c *walkCase) agreesWithAppended() {
	c.t.Helper()
	frames := c.written.counting()
	for i := range c.valid {
		at := uint64(i) + 1
		f := frames[at]
		if f == nil && at > c.written.floor {
			c.t.Fatalf("the model lacks index %d", at)
		}
		if f != nil && f.entry.Kind != format.KindRequest {
			if err := asWritten(&f.entry, &c.valid[i].entry); err != nil {
				c.t.Fatalf("the model: %v", err)
			}
		}
	}
	for at := range frames {
		if at > uint64(len(c.valid)) {
			c.t.Fatalf("the model has index %d, which is cut off", at)
		}
	}
}

// damage changes bytes on a copy of the disk.
func (c *walkCase) damage() {
	c.disk = c.clean.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	if !c.hints {
		names, err := c.disk.List(c.opts.Dir)
		ok(c.t, err)
		for _, name := range names {
			if format.IsHintName(name) {
				ok(c.t, c.disk.Remove(path.Join(c.opts.Dir, name)))
			}
		}
	}
	for range c.random.IntN(4) {
		s := c.written.segments[c.random.IntN(len(c.written.segments))]
		if len(s.frames) > 0 {
			c.hitFrame(s, c.aim(s))
		}
	}
	for _, s := range c.written.segments {
		now, err := format.ReadAll(c.disk, path.Join(c.opts.Dir, format.SegmentName(s.m.Number)), 1<<30)
		ok(c.t, err)
		s.compare(now)
	}
	c.cut = c.written.truncateTail()
}

// aim picks a random frame. It prefers frames that truncate the log or change the term, and the frames before them.
func (c *walkCase) aim(s *writtenSegment) int {
	var cuts []int
	last, term := uint64(0), uint64(0)
	for i, f := range s.frames {
		if !f.isEntry() {
			continue
		}
		if f.entry.Index <= last || f.entry.Term != term && term != 0 {
			cuts = append(cuts, i)
		}
		last, term = f.entry.Index, f.entry.Term
	}
	if len(cuts) == 0 || c.random.IntN(3) == 0 {
		return c.random.IntN(len(s.frames))
	}
	return max(0, cuts[c.random.IntN(len(cuts))]-c.random.IntN(2))
}

// hitFrame changes bytes of a frame, and possibly of the frames after it.
func (c *walkCase) hitFrame(s *writtenSegment, i int) {
	f := s.frames[i]
	offset, length, zero := f.offset+c.random.Int64N(format.FrameHeaderBytes), int64(1), false
	switch c.random.IntN(5) {
	case 0: // damages bytes after the header
		if f.bytes > format.FrameHeaderBytes {
			offset = f.offset + format.FrameHeaderBytes + c.random.Int64N(f.bytes-format.FrameHeaderBytes)
		}
	case 1: // removes the frame
		offset, length, zero = f.offset, f.bytes, true
	case 2: // removes the frame and the bytes after it
		length, zero = 1+c.random.Int64N(900), true
	case 3:
		length = 1 + c.random.Int64N(100)
	}
	length = min(length, s.end-offset)
	name := format.SegmentName(s.m.Number)
	file, err := c.disk.OpenWrite(path.Join(c.opts.Dir, name))
	ok(c.t, err)
	was := slices.Clone(s.image[offset : offset+length])
	for at := range was {
		b := byte(0)
		if !zero {
			b = was[at] ^ byte(1+c.random.IntN(255))
		}
		was[at] = b
	}
	_, err = file.WriteAt(was, offset)
	ok(c.t, errors.Join(err, file.Sync(), file.Close()))
	c.done = append(c.done, fmt.Sprintf("%s %d+%d, frame at %d of index %d", name, offset, length, f.offset,
		f.entry.Index))
}

// fork returns options with a new copy of the disk.
func (c *walkCase) fork() Options {
	opts := c.opts
	opts.FS, opts.Residency = c.disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), c.residency
	return opts
}

// check runs all walks over the log, and compares their results with the model.
func (c *walkCase) check() error {
	if c.written.straddles() || c.written.voidTail() {
		return nil
	}
	offline := c.fork()
	report, err := fsck.VerifyDir(context.Background(), offline.FS, offline.Dir, nil)
	if err != nil {
		return err
	}
	if err := c.sameRanges(report.Damages); err != nil {
		return fmt.Errorf("verify of the folder: %w", err)
	}
	if (report.TornBytes > 0) != c.cut {
		return fmt.Errorf("verify of the folder finds a torn tail of %d bytes", report.TornBytes)
	}
	if err := c.checkOpen(); err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	if err := c.checkGivenUp(repairDir, c.hints); err != nil {
		return fmt.Errorf("RepairDir: %w", err)
	}
	if err := c.checkGivenUp(acceptLoss, c.hints); err != nil {
		return fmt.Errorf("AcceptLoss: %w", err)
	}
	return nil
}

// sameRanges compares the bad bytes that a walk has found with those of the model.
func (c *walkCase) sameRanges(damages []format.Damage) error {
	got := make(map[string][]badBytes)
	for _, d := range damages {
		if _, isSegment := format.ParseSegmentName(d.File); isSegment && d.Length > 0 {
			got[d.File] = append(got[d.File], badBytes{d.Offset, d.Length})
		}
	}
	for _, s := range c.written.segments {
		name := format.SegmentName(s.m.Number)
		if is, want := joinBytes(got[name]), s.badRanges(); !slices.Equal(is, want) {
			return fmt.Errorf("%s: bad are %v, by the model %v", name, is, want)
		}
	}
	return nil
}

// checkOpen loads the log, and checks its reads, the result of Verify, and the survey before a repair.
func (c *walkCase) checkOpen() (err error) {
	opts := c.fork()
	l, report, err := Load(context.Background(), opts, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(false)) }()
	if (report.TornTailBytes > 0) != c.cut {
		return fmt.Errorf("a torn tail of %d bytes was cut", report.TornTailBytes)
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if err := l.Apply(max(last, l.AppliedIndex()), nil); err != nil {
		return err
	}
	online, err := l.Verify(context.Background(), 0)
	if err != nil {
		return err
	}
	if err := c.sameRanges(online.Damages); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if err := c.sameRanges(l.Stats().Damages); err != nil {
		return fmt.Errorf("what is remembered of load and verify: %w", err)
	}
	if err := c.checkEntries(l, last); err != nil {
		return err
	}
	return c.checkSurvey(l)
}

// checkEntries reads the entry of each index separately, as Raft and other members do.
func (c *walkCase) checkEntries(l *Log, last uint64) error {
	counting, doubtful := c.written.counting(), c.written.doubtful(c.hints)
	for at := c.written.floor + 1; at <= last; at++ {
		f := counting[at]
		entries, err := l.Entries(at, at+1, math.MaxUint64)
		if err := c.givesEntry(at, f, entries, err, doubtful[at]); err != nil {
			return fmt.Errorf("Entries: %w", err)
		}
		answer, err := l.ReadRange(IndexRange{at, at}, math.MaxUint64)
		// ReadRange also returns an error for any bad bytes before the entry.
		if err := c.givesEntry(at, f, answer.Entries, err, true); err != nil {
			return fmt.Errorf("ReadRange: %w", err)
		}
		term, err := l.Term(at)
		if err != nil || !doubtful[at] && term != f.entry.Term {
			return fmt.Errorf("Term: index %d has term %d, %w", at, term, err)
		}
	}
	return nil
}

// givesEntry checks the result of a read. It must be the valid entry, or an error if that entry may be damaged.
func (c *walkCase) givesEntry(at uint64, f *writtenFrame, entries []*raftpb.Entry, err error, doubtful bool) error {
	var damage *format.DamageError
	switch {
	case err != nil && doubtful && errors.As(err, &damage):
		return nil
	case err != nil:
		return fmt.Errorf("index %d, whole: %w", at, err)
	case len(entries) != 1:
		return fmt.Errorf("index %d: %d entries", at, len(entries))
	}
	e, err := format.DecodePayload(entries[0])
	if err != nil {
		return err
	}
	if f == nil {
		return fmt.Errorf("index %d, where nothing counts: %v of id %d, term %d", at, e.Kind, e.ID, e.Term)
	}
	// The entry must be right even if the frame f is damaged. The log may hold the same entry twice, because an entry
	// that was made void can be written again, and then the earlier frame supplies it.
	return asWritten(&e, &f.entry)
}

// checkSurvey compares the kept and the missing entries in the survey of each damaged segment with the model.
func (c *walkCase) checkSurvey(l *Log) error {
	l.compacting.Lock()
	defer l.compacting.Unlock()
	files := l.damages.files()
	if err := l.editor.sealDamaged(files); err != nil {
		return err
	}
	l.hints.writing.Wait()
	counting, doubtful := c.written.counting(), c.written.doubtful(c.hints)
	views := l.reader.views(0, math.MaxUint64)
	defer unpinAll(views)
	for _, v := range views {
		if !slices.Contains(files, format.SegmentName(v.number)) {
			continue
		}
		s, err := l.reader.survey(v)
		if err != nil {
			return err
		}
		lost := func(at uint64) bool {
			return slices.ContainsFunc(s.lost, func(r IndexRange) bool { return r.First <= at && at <= r.Last })
		}
		if err := surveyKeeps(s, lost, counting); err != nil {
			return fmt.Errorf("survey of %s: %w", format.SegmentName(v.number), err)
		}
		// If the log was truncated after bad bytes in a segment, the survey may request all of the segment's entries.
		truncateBehindBad := c.written.truncateBehindBad(v.number)
		for at, f := range counting {
			if at < v.first || at > min(v.through, v.m.LastIndex) {
				continue
			}
			isHit := f.header || f.content
			switch {
			// Below the floor, only missing versions and missing requests matter. Even if an entry's valid frame is bad, the
			// survey may have the same entry from an earlier frame, which became void before the entry was written again.
			case isHit && !lost(at) && s.have[at] == nil && (at > c.written.floor || f.entry.Kind.IsVersion()):
				return fmt.Errorf("survey of %s: index %d is hit, and not asked for: %v", format.SegmentName(v.number), at, s.lost)
			case !isHit && lost(at) && !doubtful[at] && !truncateBehindBad:
				return fmt.Errorf("survey of %s: index %d is whole, and asked for: %v", format.SegmentName(v.number), at, s.lost)
			case !isHit && !lost(at) && s.have[at] == nil && (at > c.written.floor || f.entry.Kind.IsVersion()):
				return fmt.Errorf("survey of %s: index %d is whole, not asked for, and not kept", format.SegmentName(v.number), at)
			}
		}
	}
	return nil
}

// surveyKeeps checks that every kept frame outside the lost ranges belongs to a valid entry.
func surveyKeeps(s *survey, lost func(uint64) bool, counting map[uint64]*writtenFrame) error {
	for _, k := range s.kept {
		f := counting[k.index]
		switch {
		case lost(k.index):
		case f == nil || f.entry.Term != k.term || f.entry.ID != k.id:
			return fmt.Errorf("keeps index %d of term %d, id %d, which does not count, and does not ask for it: %v", k.index,
				k.term, k.id, s.lost)
		}
	}
	return nil
}

func repairDir(opts Options) error {
	_, err := fsck.RepairDir(context.Background(), opts.FS, opts.Dir, nil)
	return err
}

func acceptLoss(opts Options) error {
	l, _, err := Load(context.Background(), opts, nil)
	if err != nil {
		return err
	}
	_, err = l.Verify(context.Background(), 0)
	if err == nil {
		l, _, err = l.AcceptLoss(context.Background())
	}
	return errors.Join(err, l.Close(false))
}

// checkGivenUp gives up the damaged entries and checks what remains. Every remaining version must have been valid in
// the log as it was written, and every version that damage has not left in doubt must remain.
func (c *walkCase) checkGivenUp(giveUp func(Options) error, hints bool) (err error) {
	opts := c.fork()
	if err := giveUp(opts); err != nil {
		return err
	}
	l, report, err := Load(context.Background(), opts, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(false)) }()
	if report.Outcome == Damaged {
		return fmt.Errorf("still damaged: %v", report.Damages)
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if err := l.Apply(max(last, l.AppliedIndex()), nil); err != nil {
		return err
	}
	counting, doubtful := c.written.counting(), c.written.doubtful(hints)
	stay := make(map[uint64]int64)
	for id := range c.ids {
		versions, err := l.Versions(id, 0, 1000)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		for _, r := range versions {
			if f := counting[r.Index]; f == nil || f.entry.ID != r.ID || f.entry.CommitTime != r.CommitTime {
				return fmt.Errorf("version %d of record %d stays, and does not count", r.Index, id)
			}
			stay[r.Index] = id
		}
	}
	seen := uint64(0)
	for at, f := range counting {
		seen = max(seen, at)
		if _, stays := stay[at]; !stays && f.entry.Kind.IsVersion() && !f.header && !f.content && !doubtful[at] {
			return fmt.Errorf("version %d of record %d is gone, and is whole", at, f.entry.ID)
		}
	}
	// Rule 8 requires that the next index is higher than any index that a client has seen. It must follow these indexes
	// directly, or be above them by the whole jump (format.LossJump). The check allows for some distance, because a
	// client may also have seen entries that can no longer be read.
	const unread = 1000
	if last < seen || last > seen+unread && last < seen+format.LossJump || last > seen+format.LossJump+unread {
		return fmt.Errorf("index %d was seen, and the log goes on behind %d", seen, last)
	}
	return nil
}
