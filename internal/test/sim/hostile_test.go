package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const hostileBlock = 4096

// unreadableBlock describes a block that a disk refuses to read during the next start.
type unreadableBlock struct {
	disk   *vfstest.Mem
	name   string // name of the file
	offset int64
	times  int64 // number of refused reads; 0 refuses all reads until the start is over
}

// failReads makes a machine's disk refuse to read one block while the machine starts after a power cut. The disk
// refuses either the first few reads of the block or all of them. The block is near the end of the active segment, or
// in the journal. If the group has only one copy, only the first few reads are refused, because otherwise its data
// would be lost for good.
func (w *world) failReads(o *operator, r *rand.Rand) bool {
	return w.powerCutOne(o, r, func(m *machine) bool { return m.refuseToRead(r) })
}

// rotJournal flips a bit in a record of the journal after a power cut.
func (w *world) rotJournal(o *operator, r *rand.Rand) bool {
	return w.cfg.copies > 1 && w.powerCutOne(o, r, func(m *machine) bool { return m.rotRecord(r) })
}

// worstRead makes a block unreadable, or damages a journal record, at the worst moment: while the other members lack
// entries that the machine has acknowledged.
func (w *world) worstRead(o *operator, r *rand.Rand) bool {
	return w.atWorst(o, r, func(lost *machine) bool {
		lost.cutPower(survival(r))
		defer w.startLater(lost, between(r, 10*time.Millisecond, 300*time.Millisecond))
		w.mu.Lock()
		defer w.mu.Unlock()
		return r.IntN(2) == 0 && lost.rotRecord(r) || lost.refuseToRead(r)
	})
}

// powerCutOne cuts the power of one machine, and then calls do() to change this machine's disk. It chooses a machine
// whose disk may be lost, or any machine if the group has only one copy. It holds world.mu while it calls do().
func (w *world) powerCutOne(o *operator, r *rand.Rand, do func(*machine) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := w.one(r)
	if w.cfg.copies > 1 && !w.mayLose(o, m) {
		return false
	}
	m.cutPower(survival(r))
	defer w.startLater(m, between(r, 10*time.Millisecond, time.Second))
	w.mu.Lock()
	defer w.mu.Unlock()
	return do(m)
}

// refuseToRead chooses the block that the disk will refuse to read during the next start. The caller holds world.mu.
func (m *machine) refuseToRead(r *rand.Rand) bool {
	h := &unreadableBlock{disk: m.disk, times: []int64{0, 0, 1, 2}[r.IntN(4)]}
	if m.world.cfg.copies == 1 {
		h.times = max(h.times, 1)
	}
	if !h.choose(r) {
		return false
	}
	m.hostile = h
	if h.times == 0 {
		m.rots, m.rotted = append(m.rots, rot{file: path.Base(h.name), at: callSequence.Add(1)}), true
	}
	return true
}

func (h *unreadableBlock) choose(r *rand.Rand) bool {
	if r.IntN(2) == 0 {
		if records := journalRecords(h.disk); len(records) > 0 {
			one := records[r.IntN(len(records))]
			h.name, h.offset = one.name, one.offset+r.Int64N(one.bytes/hostileBlock)*hostileBlock
			return true
		}
	}
	manifest, err := format.ReadManifest(h.disk, groupDir)
	if err != nil || len(manifest.Segments) == 0 || manifest.Segments[len(manifest.Segments)-1].Sealed() {
		return false
	}
	h.name = path.Join(groupDir, format.SegmentName(manifest.Segments[len(manifest.Segments)-1].Number))
	f, err := h.disk.Open(h.name)
	if err != nil {
		return false
	}
	defer f.Close()
	end, err := f.DataEnd(0)
	if err != nil || end == 0 {
		return false
	}
	blocks := (end + hostileBlock - 1) / hostileBlock
	h.offset = max(0, blocks-1-r.Int64N(min(blocks, 4))) * hostileBlock
	return true
}

// takeUnreadable returns the file system with which a machine starts from a disk. This file system refuses the reads
// that were chosen earlier. The caller must not hold world.mu. After the start, the caller must call ended(), which
// removes the fault. If all reads were refused until the end of the start, and not only the first few, ended() returns
// the fault.
func (m *machine) takeUnreadable(disk *vfstest.Mem) (faulty *vfstest.Faulty, ended func() (forGood *unreadableBlock)) {
	faulty = vfstest.NewFaulty(disk)
	w := m.world
	w.mu.Lock()
	h := m.hostile
	m.hostile = nil
	w.mu.Unlock()
	if h == nil || h.disk != disk {
		return faulty, func() *unreadableBlock { return nil }
	}
	fault := faulty.Add(&vfstest.Fault{Count: h.times, Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpRead && op.Name == h.name && op.Offset < h.offset+hostileBlock &&
			h.offset < op.Offset+op.Length
	}})
	return faulty, func() *unreadableBlock {
		fault.Remove()
		if fault.Fired() == 0 {
			return nil
		}
		where := "segment"
		if journal.IsName(path.Base(h.name)) {
			where = "journal"
		}
		how := "for a moment"
		if h.times == 0 {
			how = "for good"
		}
		w.trace("%v: %s cannot be read at offset %d, %s", m, h.name, h.offset, how)
		w.fire("read of a " + where + " failed " + how)
		if h.times > 0 {
			return nil
		}
		return h
	}
}

// truncateUnreadable truncates a segment at the unreadable block. A faulty program would do the same if it mistook
// the block for a torn write.
func (h *unreadableBlock) truncateUnreadable() bool {
	f, err := h.disk.OpenWrite(h.name)
	if err != nil || journal.IsName(path.Base(h.name)) {
		return false
	}
	defer f.Close()
	return errors.Join(f.Truncate(max(h.offset, format.SegmentHeaderBytes)), f.Sync(),
		h.disk.Remove(path.Join(groupDir, format.MarkName)), h.disk.SyncDir(groupDir)) == nil
}

// refusedToRead reports whether a start failed because the device refused to read.
func refusedToRead(err error) bool { return errors.Is(err, syscall.EIO) }

type journalRecord struct {
	name          string
	offset, bytes int64
	sequence      uint64
}

// journalRecords returns the readable records in the journal files on a disk. It leaves out the first record of each
// use of a file, because that record has no data.
func journalRecords(disk *vfstest.Mem) (records []journalRecord) {
	for _, file := range []string{"journal-0", "journal-1"} {
		name := path.Join(volumeDir, file)
		var said bytes.Buffer
		if err := journal.Dump(&said, disk, name); err != nil {
			continue
		}
		for line := range strings.Lines(said.String()) {
			r := journalRecord{name: name}
			if n, _ := fmt.Sscanf(line, "record %d at offset %d, %d bytes", &r.sequence, &r.offset, &r.bytes); n == 3 &&
				r.sequence > 0 {
				records = append(records, r)
			}
		}
	}
	return records
}

// rotRecord flips a bit in a record of the journal. It spares the last record of a file, because damage to that
// record could not be distinguished from a torn write. The caller holds world.mu.
func (m *machine) rotRecord(r *rand.Rand) bool {
	var between []journalRecord
	records := journalRecords(m.disk)
	for i, one := range records {
		if i+1 < len(records) && records[i+1].name == one.name {
			between = append(between, one)
		}
	}
	if len(between) == 0 {
		return false
	}
	one := between[len(between)-1-r.IntN(min(len(between), 3))]
	// This byte is a part of the record's length.
	if !m.disk.Rot(one.name, one.offset+12, 1, func(b []byte) { b[0] ^= 1 }) {
		return false
	}
	m.rots, m.rotted = append(m.rots, rot{file: path.Base(one.name), at: callSequence.Add(1)}), true
	return true
}

// misread makes the disk return one wrong bit, once, while a compaction checks the segment that it has written. It
// does this in one of three compactions. The caller must call over() when the compaction is done.
func (w *world) misread(p *process) (over func()) {
	w.mu.Lock()
	chosen := w.random.IntN(3) == 0
	w.mu.Unlock()
	if !chosen {
		return func() {}
	}
	fault := p.faulty.Add(&vfstest.Fault{Effect: vfstest.EffectFlip, Count: 1, Match: func(op vfstest.Op) bool {
		number, isSegment := format.ParseSegmentName(path.Base(op.Name))
		if op.Kind != vfstest.OpRead || !isSegment {
			return false
		}
		manifest, err := format.ReadManifest(p.disk, groupDir)
		return err == nil && !slices.ContainsFunc(manifest.Segments, func(s format.ManifestSegment) bool {
			return s.Number == number
		})
	}})
	return func() {
		fault.Remove()
		if fault.Fired() > 0 {
			w.fire("a new segment was read back wrong")
		}
	}
}
