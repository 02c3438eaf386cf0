package index

import (
	"fmt"
	"math/bits"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Hash determines the order of slots and of a hint's rows. It is the finalizer of MurmurHash3 (Appleby, public domain),
// applied to the id. It differs from placement.Key on purpose, because a group holds only a range of placement keys.
// Hash is part of the hint format and never changes.
func Hash(id int64) uint64 {
	x := uint64(id) ^ 0x5ea15ea15ea15ea1
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

const (
	stripeBits  = 4
	stripeCount = 1 << stripeBits

	slotBytes = 16
	slotsMin  = 4096 / slotBytes // one page
	hugeBytes = 2 << 20
	// Smaller stripes are allocated on the heap, because a process may have only about 65,000 mappings and a shard may
	// have many small groups. The slots hold no pointers, so the garbage collector does not scan them.
	mappedBytesMin = 64 << 10
	// A stripe grows when more than 13/16 of its slots would be used.
	loadMaxNum = 13
	loadMaxDen = 16
	// A stripe grows to 5/4 of its number of slots. Its old slots still exist while it grows, so the table takes at most
	// 34 bytes per record.
	growNum = 5
	growDen = 4
	// New creates 5/4 slots per record, which take 20 bytes. Each stripe of a small table gets a few more slots,
	// because the records are not divided evenly among the stripes.
	sizedNum    = 5
	sizedDen    = 4
	sizedSpread = 64
)

// slot is a slot of the table. It is empty if loc is 0.
type slot struct {
	id  int64
	loc Loc
}

// stripe is one part of a Table. It holds the ids whose hash begins with the stripe's number. It uses open addressing
// with linear probing. The position of the first slot that is tried increases with the hash, so that inserting ids in
// the order of Hash accesses memory in order.
type stripe struct {
	mu    sync.RWMutex // guards the fields below
	slots []slot       // in an anonymous mapping, or on the heap if there are few; nil if there are none
	used  int          // number of slots that are not empty
	live  int          // number of used slots that are not tombstones
	_     [64]byte     // padding that keeps two stripes out of the same cache line
}

// Table maps ids to locations, outside of the Go heap. It is safe for concurrent use, except for Close. After Close the
// table has no ids, and refuses every change.
type Table struct {
	stripes [stripeCount]stripe
	bytes   atomic.Int64
	take    func(bytes int64) error
	closed  atomic.Bool
}

// ErrClosed is returned by the methods of a Table after Close.
var ErrClosed = fmt.Errorf("index: the table is closed")

// New creates a table for the given number of records, with at most 24 bytes for each. The table grows automatically
// if there are more records. New and the table call the function take with a positive number of bytes before they
// allocate memory, and with a negative number after they release it. The function may refuse an allocation. If take is
// nil, there is no limit. New returns the error of take or of the kernel.
func New(records int64, take func(bytes int64) error) (*Table, error) {
	if take == nil {
		take = func(int64) error { return nil }
	}
	t := &Table{take: take}
	if records <= 0 {
		return t, nil
	}
	each := slotsFor(records)
	for i := range t.stripes {
		slots, err := t.mapSlots(each)
		if err != nil {
			t.Close()
			return nil, err
		}
		t.stripes[i].slots = slots
	}
	return t, nil
}

// BytesFor returns how many bytes of memory a table created by New(records) takes, so that memory can be planned.
func BytesFor(records int64) int64 {
	if records <= 0 {
		return 0
	}
	return stripeCount * mappingBytes(slotsFor(records))
}

func slotsFor(records int64) int {
	each := (records*sizedNum/sizedDen + stripeCount - 1) / stripeCount
	if records < stripeCount*slotsMin {
		return max(slotsMin, int(each)+sizedSpread)
	}
	return int(each + each/64)
}

func mappingBytes(slots int) int64 { return (int64(slots)*slotBytes + 4095) &^ 4095 }

// mapSlots allocates memory for n slots, and calls the function take for it.
func (t *Table) mapSlots(n int) ([]slot, error) {
	bytes := mappingBytes(n)
	if err := t.take(bytes); err != nil {
		return nil, err
	}
	if bytes < mappedBytesMin {
		t.bytes.Add(bytes)
		return make([]slot, bytes/slotBytes), nil
	}
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		_ = t.take(-bytes) // returning memory is never refused
		return nil, fmt.Errorf("index: map %d bytes: %w", bytes, err)
	}
	if bytes >= hugeBytes {
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // without huge pages the table is only slower
	}
	t.bytes.Add(bytes)
	return unsafe.Slice((*slot)(unsafe.Pointer(&memory[0])), int(bytes/slotBytes)), nil
}

func (t *Table) unmapSlots(slots []slot) {
	if len(slots) == 0 {
		return
	}
	bytes := len(slots) * slotBytes
	if bytes >= mappedBytesMin { // smaller slices are on the heap
		if err := unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&slots[0])), bytes)); err != nil {
			return // the memory is still mapped, so it still counts
		}
	}
	t.bytes.Add(-int64(bytes))
	_ = t.take(-int64(bytes)) // returning memory is never refused
}

func (t *Table) stripeOf(hash uint64) *stripe { return &t.stripes[hash>>(64-stripeBits)] }

// home returns the position of the slot that a search tries first.
func (s *stripe) home(hash uint64) int {
	hi, _ := bits.Mul64(hash<<stripeBits, uint64(len(s.slots)))
	return int(hi)
}

// find returns the slot of id, or the empty slot in which id belongs. The caller holds mu. There must be slots, and at
// least one of them must be empty.
func (s *stripe) find(hash uint64, id int64) *slot {
	for i := s.home(hash); ; {
		at := &s.slots[i]
		if at.loc == 0 || at.id == id {
			return at
		}
		if i++; i == len(s.slots) {
			i = 0
		}
	}
}

// Get returns an id's location, which may be that of a tombstone. It returns false if the table does not have the id.
func (t *Table) Get(id int64) (Loc, bool) {
	hash := Hash(id)
	s := t.stripeOf(hash)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.slots == nil {
		return 0, false
	}
	at := s.find(hash, id)
	return at.loc, at.loc != 0
}

// Max sets an id's location unless the table has a later one. The result old is the location that the table had before,
// or 0 if there was none. The result won reports whether loc was stored. Max returns ErrClosed, or the error of growing
// the table. After an error, the table is unchanged.
func (t *Table) Max(id int64, loc Loc) (old Loc, won bool, err error) {
	hash := Hash(id)
	s := t.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.max(s, hash, id, loc)
}

func (t *Table) max(s *stripe, hash uint64, id int64, loc Loc) (old Loc, won bool, err error) {
	at, err := t.slotFor(s, hash, id)
	if err != nil {
		return 0, false, err
	}
	if old = at.loc; old != 0 && !old.Less(loc) {
		return old, false, nil
	}
	s.put(at, id, loc)
	return old, true, nil
}

// fillParallelRows is the minimum number of rows for which Fill uses several goroutines.
const fillParallelRows = 1 << 15

// Fill does for many rows what Max does for one row. The rows must be in ascending order of Hash, like those of a
// hint. Fill is faster than Max, because it accesses the table's memory in order and takes each lock once. Row r has
// the id ids[r] and the location places[r] in the segment with the given ordinal. If the function skip is not nil,
// Fill ignores the rows for which it returns true. Fill calls the function lost for each location that is not the
// newest of its id, whether that location was in the table or is in a row. Several goroutines may call lost
// concurrently. The function lost must not call the table.
func (t *Table) Fill(ids []int64, places []uint64, ordinal uint32, skip func(row int) bool,
	lost func(loc Loc)) error {
	var bounds [stripeCount + 1]int
	bounds[stripeCount] = len(ids)
	for i := 1; i < stripeCount; i++ {
		first := uint64(i) << (64 - stripeBits)
		bounds[i] = sort.Search(len(ids), func(r int) bool { return Hash(ids[r]) >= first })
	}
	workers := 1
	if len(ids) >= fillParallelRows {
		workers = min(runtime.GOMAXPROCS(0), stripeCount)
	}
	var next atomic.Int32
	var fills errgroup.Group
	for range workers {
		fills.Go(func() error {
			for i := int(next.Add(1)) - 1; i < stripeCount; i = int(next.Add(1)) - 1 {
				err := t.fillStripe(&t.stripes[i], bounds[i], bounds[i+1], ids, places, ordinal, skip, lost)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return fills.Wait()
}

func (t *Table) fillStripe(s *stripe, from, to int, ids []int64, places []uint64, ordinal uint32, skip func(int) bool,
	lost func(Loc)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := from; r < to; r++ {
		if skip != nil && skip(r) {
			continue
		}
		loc := Loc(places[r]).In(ordinal)
		old, won, err := t.max(s, Hash(ids[r]), ids[r], loc)
		if err != nil {
			return err
		}
		switch {
		case !won && old != loc:
			lost(loc)
		case won && old != 0:
			lost(old)
		}
	}
	return nil
}

// slotFor returns the slot of an id, or an empty slot for the id. It grows the stripe if necessary. The caller holds
// mu.
func (t *Table) slotFor(s *stripe, hash uint64, id int64) (*slot, error) {
	if s.slots != nil {
		// An id that the table already has needs no new slot. Operations on such an id must not fail, even if the table
		// cannot grow.
		if at := s.find(hash, id); at.loc != 0 || (s.used+1)*loadMaxDen <= len(s.slots)*loadMaxNum {
			return at, nil
		}
	}
	if err := t.grow(s); err != nil {
		return nil, err
	}
	return s.find(hash, id), nil
}

// put fills a slot. The caller holds mu.
func (s *stripe) put(at *slot, id int64, loc Loc) {
	if at.loc == 0 {
		s.used++
	} else {
		s.live -= alive(at.loc)
	}
	s.live += alive(loc)
	*at = slot{id, loc}
}

// alive returns 1 for the location of a put, and 0 for that of a delete.
func alive(loc Loc) int { return int(^loc & 1) }

// CompareAndSwap replaces an id's location with loc if the current location equals old. Otherwise it changes nothing
// and returns false.
func (t *Table) CompareAndSwap(id int64, old, loc Loc) bool {
	hash := Hash(id)
	s := t.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == nil || old == 0 || loc == 0 {
		return false
	}
	at := s.find(hash, id)
	if at.loc != old {
		return false
	}
	s.live += alive(loc) - alive(old)
	at.loc = loc
	return true
}

// CompareAndDelete removes an id from the table if its current location equals old. Otherwise it changes nothing and
// returns false.
func (t *Table) CompareAndDelete(id int64, old Loc) bool {
	hash := Hash(id)
	s := t.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == nil || old == 0 {
		return false
	}
	at := s.find(hash, id)
	if at.loc != old {
		return false
	}
	s.used--
	s.live -= alive(old)
	s.closeGap(int((uintptr(unsafe.Pointer(at)) - uintptr(unsafe.Pointer(&s.slots[0]))) / slotBytes))
	return true
}

// closeGap empties a slot and moves later entries of the same run into the gap, so that no search stops too early
// (Knuth 6.4, algorithm R).
func (s *stripe) closeGap(gap int) {
	n := len(s.slots)
	for i := gap; ; {
		if i++; i == n {
			i = 0
		}
		if s.slots[i].loc == 0 {
			break
		}
		home := s.home(Hash(s.slots[i].id))
		// The entry may move to the gap unless its home lies cyclically in (gap, i].
		if gap <= i && (home <= gap || home > i) || gap > i && home <= gap && home > i {
			s.slots[gap] = s.slots[i]
			gap = i
		}
	}
	s.slots[gap] = slot{}
}

// grow enlarges a stripe. The caller holds mu.
func (t *Table) grow(s *stripe) error {
	if t.closed.Load() {
		return ErrClosed
	}
	slots, err := t.mapSlots(max(slotsMin, len(s.slots)*growNum/growDen))
	if err != nil {
		return err
	}
	old := s.slots
	s.slots = slots
	for i := range old {
		if old[i].loc != 0 {
			*s.find(Hash(old[i].id), old[i].id) = old[i]
		}
	}
	t.unmapSlots(old)
	return nil
}

// Len returns the number of ids, including those with a tombstone.
func (t *Table) Len() int64 {
	return t.sum(func(s *stripe) int { return s.used })
}

// Live returns the number of ids without a tombstone.
func (t *Table) Live() int64 {
	return t.sum(func(s *stripe) int { return s.live })
}

func (t *Table) sum(count func(*stripe) int) int64 {
	var n int64
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.RLock()
		n += int64(count(s))
		s.mu.RUnlock()
	}
	return n
}

// MemoryBytes returns how many bytes of memory the table takes now.
func (t *Table) MemoryBytes() int64 { return t.bytes.Load() }

// Close releases the memory of the table.
func (t *Table) Close() {
	t.closed.Store(true)
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		t.unmapSlots(s.slots)
		s.slots, s.used, s.live = nil, 0, 0
		s.mu.Unlock()
	}
}
