package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const dir = "/v"

func groupID(n int) uuid.UUID { return uuid.UUID{9, byte(n)} }

func newDisk(t *testing.T) *vfstest.Mem {
	t.Helper()
	m := vfstest.NewMem()
	must.OK(t, m.MkdirAll(dir))
	return m
}

// member simulates a log that appends bytes, and syncs its own file from time to time.
type member struct {
	*Member
	group uuid.UUID
	bytes []byte // the appended bytes
	// durable is the number of bytes that are durable in the journal or the log. own is how many of them are durable in
	// the log's own file.
	durable, own int
}

func join(t testing.TB, j *Journal, n int) *member {
	t.Helper()
	m, rest, err := j.Join(groupID(n))
	if err != nil || rest != nil {
		t.Fatalf("%v, and of an earlier log is left: %+v", err, rest)
	}
	return &member{Member: m, group: groupID(n)}
}

// write appends bytes and makes them durable, either with the journal or by syncing the segment. It reports whether the
// journal has accepted them.
func (m *member) write(b []byte) bool {
	m.bytes = append(m.bytes, b...)
	if !m.MustSync() && m.Write(7, [8]byte{1}, int64(m.durable), m.bytes[m.durable:]) == nil {
		m.durable = len(m.bytes)
		return true
	}
	m.durable, m.own = len(m.bytes), len(m.bytes)
	m.Durable()
	return false
}

// check compares a group's content on a disk with the bytes that were made durable.
func (m *member) check(t testing.TB, found Found) {
	t.Helper()
	got := bytes.Clone(m.bytes[:m.own])
	for _, r := range found.Ranges {
		if r.Group != m.group {
			continue
		}
		if r.Number != 7 || r.Segment != [8]byte{1} || r.Offset > int64(len(got)) {
			t.Errorf("group %s: a range of segment %d at offset %d, where %d bytes are", m.group, r.Number, r.Offset, len(got))
			return
		}
		got = append(got[:r.Offset], append(bytes.Clone(r.Bytes), got[min(len(got), int(r.Offset)+len(r.Bytes)):]...)...)
	}
	if len(got) < m.durable || !bytes.Equal(got[:m.durable], m.bytes[:m.durable]) {
		t.Errorf("group %s: %d bytes are there, %d were made durable", m.group, len(got), m.durable)
	}
}

func syncs(op vfstest.Op) bool { return op.Kind == vfstest.OpSync }

func read(t testing.TB, fs vfs.FS) Found {
	t.Helper()
	found, err := Read(fs, dir)
	must.OK(t, err)
	return found
}

// TestWhatWasTakenSurvivesAPowerCut lets many groups write concurrently, and cuts the power at a random moment. Every
// byte that the journal reported as durable must be found afterwards, no matter which of the other bytes are on the
// disk.
func TestWhatWasTakenSurvivesAPowerCut(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			disk := newDisk(t)
			j := New(Options{FS: disk, Dir: dir, FileBytes: []int64{8 << 10, 32 << 10, 1 << 20}[seed%3]})
			members := make([]*member, 5)
			for i := range members {
				members[i] = join(t, j, i)
			}
			var taken atomic.Int64
			for range 1 + r.IntN(20) {
				var wait sync.WaitGroup
				for _, m := range members {
					sizes := make([]int, r.IntN(4))
					for k := range sizes {
						sizes[k] = 1 + r.IntN(3000)
					}
					b := make([]byte, 3000)
					for k := range b {
						b[k] = byte(r.Uint32())
					}
					wait.Go(func() {
						for _, n := range sizes {
							if m.write(b[:n]) {
								taken.Add(1)
							}
						}
					})
				}
				wait.Wait()
			}
			kind := vfstest.SurvivalKinds[seed%uint64(len(vfstest.SurvivalKinds))]
			found := read(t, disk.CrashClone(vfstest.Survival{Kind: kind, Seed: seed}))
			if len(found.Bad) > 0 {
				t.Errorf("bad records: %v", found.Bad)
			}
			for _, m := range members {
				m.check(t, found)
			}
			if s := j.Stats(); s.Writes != taken.Load() || s.Writes > 0 && s.Syncs == 0 {
				t.Errorf("%+v, and %d writes were taken", s, taken.Load())
			}
		})
	}
}

// TestOneSyncServesAllThatWait checks that all writes that arrive during a sync are made durable by a single further
// sync.
func TestOneSyncServesAllThatWait(t *testing.T) {
	disk := newDisk(t)
	slow, entered, release := vfstest.NewFaulty(disk), make(chan struct{}), make(chan struct{})
	j := New(Options{FS: slow, Dir: dir})
	first := join(t, j, 0)
	first.write([]byte("makes the file"))
	slow.Add(&vfstest.Fault{Match: syncs, Count: 1, Effect: vfstest.EffectPass, Before: func(vfstest.Op) {
		close(entered)
		<-release
	}})
	var wait sync.WaitGroup
	wait.Go(func() { first.write([]byte("is under way")) })
	<-entered
	before := j.Stats()
	const many = 20
	for i := range many {
		m := join(t, j, i+1)
		wait.Go(func() { m.write([]byte("waits")) })
	}
	for waits := 0; waits < many; {
		j.mu.Lock()
		if j.pending != nil {
			waits = len(j.pending.ranges)
		}
		j.mu.Unlock()
	}
	close(release)
	wait.Wait()
	after := j.Stats()
	if writes, syncs := after.Writes-before.Writes, after.Syncs-before.Syncs; writes != many+1 || syncs != 2 {
		t.Errorf("%d writes took %d syncs, want %d and 2", writes, syncs, many+1)
	}
}

// TestSpaceIsUsedAgainWhenNobodyNeedsIt lets one group keep data in the journal, because it does not sync its own
// file. This data occupies the journal's space, so the other groups must continue without the journal.
func TestSpaceIsUsedAgainWhenNobodyNeedsIt(t *testing.T) {
	disk := newDisk(t)
	j := New(Options{FS: disk, Dir: dir, FileBytes: 8 << 10})
	idle, busy := join(t, j, 0), join(t, j, 1)
	if !idle.write([]byte("stays in the journal alone")) {
		t.Fatal("the first write was not taken")
	}
	refused := 0
	for range 20 {
		if !busy.write(make([]byte, 2000)) {
			refused++
		}
	}
	if !idle.MustSync() || refused < 15 {
		t.Errorf("asked to sync %v, %d of 20 writes were refused", idle.MustSync(), refused)
	}
	idle.check(t, read(t, disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})))
	idle.own = len(idle.bytes)
	idle.Durable()
	taken := 0
	for range 20 {
		if busy.write(make([]byte, 2000)) {
			taken++
		}
	}
	if taken < 10 {
		t.Errorf("%d of 20 writes were taken after there was room again", taken)
	}
	if clean, err := j.Close(); clean || err != nil {
		t.Errorf("clean %v although a group needs what is in it, %v", clean, err)
	}
	if found := read(t, disk); found.Files != 2 {
		t.Errorf("%d files are left", found.Files)
	}
}

// TestALogThatCouldNotSyncGetsItsBytesBack closes a log that could not sync its own file, and opens the group's log
// again in the same process. The journal must hand the bytes over to the new log before that log is loaded.
func TestALogThatCouldNotSyncGetsItsBytesBack(t *testing.T) {
	disk := newDisk(t)
	j := New(Options{FS: disk, Dir: dir})
	m, other := join(t, j, 0), join(t, j, 1)
	m.write([]byte("one, "))
	other.write([]byte("of another group"))
	m.write([]byte("two"))
	for range 2 { // the first log that receives the bytes cannot write them, and the second one can
		_, rest, err := j.Join(m.group)
		if err != nil || rest == nil {
			t.Fatalf("%+v, %v", rest, err)
		}
		var got []byte
		for _, r := range rest.Ranges {
			got = append(got[:r.Offset], r.Bytes...)
		}
		if string(got) != "one, two" || rest.Where != "the journal" {
			t.Errorf("%q of %s", got, rest.Where)
		}
	}
	_, rest, err := j.Join(m.group)
	if err != nil || rest.Done() != nil {
		t.Errorf("%+v, %v", rest, err)
	}
	join(t, j, 0) // fails the test if the journal still holds data of the group
	other.Durable()
	if clean, err := j.Close(); !clean || err != nil {
		t.Errorf("clean %v, %v", clean, err)
	}
	if found := read(t, disk); found.Files != 0 {
		t.Errorf("%d files are left", found.Files)
	}
}

// TestAFailedSyncEndsIt checks that no write is reported as durable after a failed sync of the journal, and that
// earlier records can still be read.
func TestAFailedSyncEndsIt(t *testing.T) {
	disk := newDisk(t)
	faulty := vfstest.NewFaulty(disk)
	j := New(Options{FS: faulty, Dir: dir})
	m, other := join(t, j, 0), join(t, j, 1)
	m.write([]byte("before"))
	fault := faulty.Add(&vfstest.Fault{Match: syncs, Err: syscall.EIO, Effect: vfstest.EffectDrop})
	if other.write([]byte("during")) {
		t.Error("a write was taken whose sync failed")
	}
	fault.Remove()
	if !m.MustSync() {
		t.Error("who has something in it is not asked to sync")
	}
	m.check(t, read(t, disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})))
	m.write(nil)
	if m.write([]byte("after")) || fault.Fired() != 1 {
		t.Errorf("a write was taken after a sync failed; %d faults", fault.Fired())
	}
}

// TestNoSpaceForAFile checks that the groups sync their own files if there is no space for the journal, and that the
// journal does not retry too often.
func TestNoSpaceForAFile(t *testing.T) {
	disk := newDisk(t)
	faulty := vfstest.NewFaulty(disk)
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpAllocate
	}, Err: syscall.ENOSPC})
	j := New(Options{FS: faulty, Dir: dir})
	m := join(t, j, 0)
	for range 5 {
		if m.write([]byte("x")) {
			t.Fatal("taken without a file")
		}
	}
	if fault.Fired() != 1 {
		t.Errorf("tried %d times", fault.Fired())
	}
}

// TestTheReserveIsLeftAlone checks that a file takes only a small part of the volume's spare space, and that no file is
// created if that part is too small.
func TestTheReserveIsLeftAlone(t *testing.T) {
	disk := newDisk(t)
	spare := int64(spareShare*fileBytesFirst - 1)
	j := New(Options{FS: disk, Dir: dir, Spare: func() int64 { return spare }})
	m := join(t, j, 0)
	if m.write([]byte("x")) || read(t, disk).Files > 0 {
		t.Error("a file was made without room")
	}
	spare, j.failed = spare+1, j.failed.Add(-2*tryAgain)
	// These writes fill the files so quickly that the next file would be larger if there were space for it.
	for range 5 * fileBytesFirst / blockBytes {
		m.write(make([]byte, 100))
		m.Durable()
	}
	if s := j.Stats(); s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	for _, h := range j.halves {
		if h.size != fileBytesFirst {
			t.Errorf("a file has %d bytes", h.size)
		}
	}
	spare *= 4
	for range 5 * fileBytesFirst / blockBytes {
		m.write(make([]byte, 100))
		m.Durable()
	}
	if got := max(j.halves[0].size, j.halves[1].size); got != 4*fileBytesFirst {
		t.Errorf("the larger file has %d bytes, with room for more", got)
	}
}

// TestBegin checks that Begin is called before the first file exists, and that no file is created if Begin fails.
func TestBegin(t *testing.T) {
	disk := newDisk(t)
	fail := errors.New("the superblock cannot be written")
	calls := 0
	var answer error
	j := New(Options{FS: disk, Dir: dir, Begin: func() error {
		calls++
		if read(t, disk).Files > 0 {
			t.Error("there is a file before Begin")
		}
		return answer
	}})
	m := join(t, j, 0)
	answer = fail
	if m.write([]byte("x")) {
		t.Error("taken although Begin failed")
	}
	answer, j.failed = nil, j.failed.Add(-2*tryAgain)
	if !m.write([]byte("x")) || calls != 2 {
		t.Errorf("not taken, or Begin called %d times", calls)
	}
}

// TestBadBytes damages records. A damaged record between intact ones must be reported and must not affect the other
// records, and the record after it must show which ranges were lost. A damaged record at the end counts as torn by a
// power cut.
func TestBadBytes(t *testing.T) {
	disk := newDisk(t)
	j := New(Options{FS: disk, Dir: dir})
	m, idle := join(t, j, 0), join(t, j, 1)
	idle.write([]byte("x")) // record 1
	for i := range 5 {
		m.write([]byte{byte(i)})
	}
	name := path.Join(dir, names[1])
	if whole := read(t, disk); len(whole.Ranges) != 6 || len(whole.Bad) != 0 || whole.Doubtful() {
		t.Fatalf("%d ranges, %v", len(whole.Ranges), whole.Bad)
	}
	for _, c := range []struct {
		first, last int // numbers of the first and the last bad record
		said        string
		lost        int // number of ranges that are known to be lost
		// Data may be lost without being listed in Found.Lost. The field mine is true if this may be data of this group,
		// and other is true if it may be data of the other group.
		mine, other bool
	}{
		{0, 0, "records 0 to 0", 0, false, false},
		{1, 1, "records 1 to 1", 1, false, false},
		{3, 3, "records 3 to 3", 1, false, false},
		{5, 5, "records 5 to 5", 1, false, false},
		{6, 6, "", 0, false, false},
		{0, 1, "records 0 to 1", 1, false, false},
		{2, 4, "records 2 to 4", 1, false, true},
		{0, 2, "records 0 to 2", 1, false, true},
		{0, 6, "no record", 0, true, true},
	} {
		bad := disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
		for r := c.first; r <= c.last; r++ {
			if !bad.Rot(name, int64(r)*blockBytes+lengthAt, 1, func(b []byte) { b[0] ^= 4 }) {
				t.Fatal("nothing to damage")
			}
		}
		found := read(t, bad)
		whole := 6 - (c.last - max(c.first, 1) + 1)
		if len(found.Ranges) != whole || len(found.Lost) != c.lost || !strings.Contains(fmt.Sprint(found.Bad), c.said) ||
			len(found.Bad) != min(1, len(c.said)) {
			t.Errorf("%+v: %d ranges, %d lost, %v", c, len(found.Ranges), len(found.Lost), found.Bad)
		}
		if mine, other := found.Share(m.group).Doubt > 0, found.Share(groupID(1)).Doubt > 0; mine != c.mine ||
			other != c.other || found.Doubtful() != (mine || other) {
			t.Errorf("%+v: doubt %v of who writes, %v of who is idle", c, mine, other)
		}
		if c.lost == 1 && c.last < 6 {
			if l := found.Lost[0]; l.Before != 1 || l.Group != m.group && c.last > 1 || l.Number != 7 ||
				l.Segment != [8]byte{1} || c.last > 1 && l.Offset != int64(c.last-2) {
				t.Errorf("%+v: lost is %+v", c, l)
			}
		}
	}
}

// TestTheLastRecordOfAFileIsKnownByTheOther damages the last record of a file. If the other file was put into use
// after it, that file's first records list the ranges of the damaged record. The damaged record must then be reported
// as lost, not treated as torn.
func TestTheLastRecordOfAFileIsKnownByTheOther(t *testing.T) {
	disk := newDisk(t)
	j := New(Options{FS: disk, Dir: dir, FileBytes: 16 << 10})
	m := join(t, j, 0)
	for range 4 { // the last record is in the second file
		m.write([]byte("abc"))
	}
	if whole := read(t, disk); whole.Files != 2 || len(whole.Ranges) != 4 || len(whole.Bad) > 0 {
		t.Fatalf("%d files, %d ranges, %v", whole.Files, len(whole.Ranges), whole.Bad)
	}
	if !disk.Rot(path.Join(dir, names[1]), 3*blockBytes+lengthAt, 1, func(b []byte) { b[0] ^= 4 }) {
		t.Fatal("nothing to damage")
	}
	found := read(t, disk)
	if len(found.Bad) != 1 || len(found.Lost) != 1 || found.Lost[0].Offset != 6 || found.Lost[0].Before != 3 ||
		found.Doubtful() {
		t.Errorf("%v, lost %+v", found.Bad, found.Lost)
	}
}

// TestBlocksThatCannotBeRead checks that unreadable blocks are reported if they may have held records. An unreadable
// block after the last record is not reported if it is certain that no further record was written.
func TestBlocksThatCannotBeRead(t *testing.T) {
	disk := newDisk(t)
	j := New(Options{FS: disk, Dir: dir})
	m := join(t, j, 0)
	for i := range 3 {
		m.write([]byte{byte(i)})
	}
	for _, c := range []struct {
		from, to, times int64
		lost            int
		bad, doubt      bool
		err             error
	}{
		{0, 1 << 40, 0, 0, false, false, syscall.EIO},
		{0, 1 << 40, 1, 0, false, false, nil},
		{2, 3, 0, 1, true, false, nil},
		{2, 3, 2, 0, false, false, nil},
		// An unreadable last record is reported, because only a readable one can be recognized as torn.
		{3, 4, 0, 0, true, true, nil},
		{4, 5, 0, 0, true, true, nil},
		{5, 6, 0, 0, false, false, nil},
	} {
		faulty := vfstest.NewFaulty(disk)
		faulty.Add(&vfstest.Fault{Count: c.times, Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpRead && op.Offset < c.to*blockBytes && c.from*blockBytes < op.Offset+op.Length
		}})
		found, err := Read(faulty, dir)
		if !errors.Is(err, c.err) || len(found.Bad) > 0 != c.bad || len(found.Lost) != c.lost || found.Share(m.group).
			Doubt > 0 != c.doubt {
			t.Errorf("%+v: %v, %v, lost %v, doubt %d", c, err, found.Bad, found.Lost, found.Share(m.group).Doubt)
		}
	}
}

// TestReplayKeepsWhatItCannotGive checks that if one group's files cannot be written, the other groups start
// nevertheless, and the data of the one group is kept.
func TestReplayKeepsWhatItCannotGive(t *testing.T) {
	disk := newDisk(t)
	begin := func(texts ...string) {
		j := New(Options{FS: disk, Dir: dir})
		for i := range 2 {
			m := join(t, j, i)
			for _, text := range texts {
				m.write([]byte(text))
			}
		}
	}
	var mu sync.Mutex // guards got, because Replay calls Apply concurrently
	got := map[uuid.UUID]string{}
	fail := errors.New("the disk says no")
	var refused uuid.UUID
	target := Target{Groups: func() ([]uuid.UUID, error) {
		return []uuid.UUID{groupID(0), groupID(1)}, nil
	}, Apply: func(g uuid.UUID, s Share) error {
		if g == refused {
			return fail
		}
		mu.Lock()
		defer mu.Unlock()
		for _, r := range s.Ranges {
			got[g] += string(r.Bytes)
		}
		got[g] += strings.Repeat("?", int(s.Doubt/blockBytes))
		for _, l := range s.Lost {
			got[g] += fmt.Sprintf("-%d", l.Before)
		}
		return nil
	}}
	replay := func(want0, want1 string, damaged, kept int) {
		t.Helper()
		clear(got)
		_, err := Replay(disk, dir, target)
		d, k, lerr := Left(disk, dir)
		if err != nil || lerr != nil || got[groupID(0)] != want0 || got[groupID(1)] != want1 || len(d) != damaged ||
			len(k) != kept {
			t.Fatalf("%v, %v: %q, %d damaged, %d kept", err, lerr, got, len(d), len(k))
		}
		if left := read(t, disk); left.Files != 0 {
			t.Fatalf("%d files are left", left.Files)
		}
	}
	refused = groupID(1)
	begin("a", "bc")
	replay("abc", "", 0, 1)
	begin2 := func() { // begins a journal for group 0 only, because the log of the other group cannot be opened
		j := New(Options{FS: disk, Dir: dir})
		m := join(t, j, 0)
		for range 4 {
			m.write([]byte("d"))
		}
		if _, rest, err := j.Join(refused); err != nil || rest == nil { // the data of this group still cannot be written
			t.Fatalf("joined: %+v, %v", rest, err)
		}
	}
	begin2()
	for _, record := range []int64{2, 3} {
		if !disk.Rot(path.Join(dir, names[1]), record*blockBytes+lengthAt, 1, func(b []byte) { b[0] ^= 4 }) {
			t.Fatal("nothing to damage")
		}
	}
	replay("dd-1", "", 1, 1)
	refused = uuid.UUID{}
	replay("", "abc??", 1, 0)
	begin("e")
	replay("e", "e", 1, 0)
	refused = groupID(0)
	begin("f")
	replay("", "f", 1, 1)
	j := New(Options{FS: disk, Dir: dir})
	if _, rest, err := j.Join(refused); err != nil || string(rest.Ranges[0].Bytes) != "f" ||
		rest.Where != path.Join(dir, keptPrefix+refused.String()) || rest.Done() != nil {
		t.Errorf("%v, %+v", err, rest)
	}
	replay("", "", 1, 0)
}

// TestAnEarlierUseOfAFileDoesNotCount checks that records of an earlier use are ignored if they remain in a file
// after the records of the last use.
func TestAnEarlierUseOfAFileDoesNotCount(t *testing.T) {
	disk := newDisk(t)
	j := New(Options{FS: disk, Dir: dir, FileBytes: 16 << 10})
	m := join(t, j, 0)
	for range 3 {
		m.write([]byte("old"))
	}
	m.own = len(m.bytes)
	m.Durable()
	for range 3 {
		m.write([]byte("mid"))
	}
	m.own = len(m.bytes)
	m.Durable()
	m.write([]byte("new"))
	var got []string
	for _, r := range read(t, disk).Ranges {
		got = append(got, string(r.Bytes))
	}
	if !slices.Equal(got, []string{"mid", "mid", "mid", "new"}) {
		t.Errorf("%q", got)
	}
}

// TestAFileThatWasRemovedIsNotUsedAgain makes the journal remove a file in order to replace it with a larger one, and
// then makes the creation of the larger one fail. The journal must continue without that file.
func TestAFileThatWasRemovedIsNotUsedAgain(t *testing.T) {
	disk := newDisk(t)
	faulty := vfstest.NewFaulty(disk)
	spare := int64(1) << 40
	j := New(Options{FS: faulty, Dir: dir, Spare: func() int64 { return spare }})
	m := join(t, j, 0)
	fill := func(files int) {
		for range files * (fileBytesFirst/blockBytes - 1) {
			m.write([]byte("x"))
			m.own = len(m.bytes)
			m.Durable()
		}
	}
	fill(1)
	// The next file is larger only if the current one became full quickly. This makes it seem that the current file took
	// a long time, so that the next file need not be larger.
	j.halves[1].began = j.halves[1].began.Add(-fullSoon)
	fill(1)
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpCreate
	}, Err: syscall.ENOSPC})
	m.write([]byte("x"))
	if fault.Fired() != 1 || m.live.Load() {
		t.Fatalf("%d faults; the test does not test", fault.Fired())
	}
	fault.Remove()
	// The volume now has space for a file as large as the removed one.
	spare, j.failed = spareShare*fileBytesFirst, j.failed.Add(-2*tryAgain)
	m.own = len(m.bytes)
	if !m.write([]byte("new")) {
		t.Fatal("not taken")
	}
	m.check(t, read(t, disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})))
}

// FuzzDecode checks that no input causes a panic, and that the encoding of each accepted record has the length of the
// input record.
func FuzzDecode(f *testing.F) {
	f.Add(encode(nil, 3, 4, nil, []Range{{Group: groupID(1), Number: 2, Segment: [8]byte{3}, Offset: 64,
		Bytes: []byte("abc")}}))
	f.Add(encode(nil, 1, 0, []Range{{Group: groupID(1), Number: 2, Offset: 64, Before: 80}}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		if again := encode(nil, r.epoch, r.sequence, r.before, r.ranges); !bytes.HasPrefix(again, b[:min(len(b), 8)]) ||
			len(again) != r.bytes {
			t.Errorf("%d bytes became %d", r.bytes, len(again))
		}
	})
}
