package archiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// model is a simulated store. For each group, it records everything that was written, and which of it the replica
// still has. Safe for concurrent use.
type model struct {
	store uuid.UUID
	mu    sync.Mutex
	rng   *rand.Rand
	rate  float64 // probability that a call of the source fails
	// steady prevents jumps of the index.
	steady bool
	fired  map[string]int
	// called with the positions of each round, before the store uses them
	asked  func(positions map[uuid.UUID]uint64)
	groups map[uuid.UUID]*modelGroup
	disk   *vfstest.Mem
}

// modelGroup is one group of a model.
type modelGroup struct {
	id   uuid.UUID
	name string
	all  []format.Entry // everything that was written, by index
	kept []format.Entry // the entries that compaction has kept
	// dropped has the indexes of deletes that compaction dropped, and of the entries that superseded versions which it
	// dropped despite the hold.
	dropped []uint64
	floor   uint64
	deletes uint64 // index up to which deletes may be missing
	known   bool   // whether the floor is known
	hold    uint64
	held    bool
	deleted bool
	// holes has the holes that the archive may have: the archiver knew no more than that versions or deletes between the
	// two indexes may be missing.
	holes []object.Hole
	again []uint64 // positions from which the archiver was told to copy the group again
	// After a loss was accepted, accepted is the greatest index that the store knew, and states has, for the index from
	// which the log goes on, the version of each record that is left.
	accepted uint64
	lost     map[uint64]uint64 // for the index of each entry that was lost, the index from which the log goes on
	states   map[uint64]map[int64]uint64
}

func newModel(seed uint64, groups int) *model {
	m := &model{
		store: uuid.UUID{1, byte(seed)}, rng: rand.New(rand.NewPCG(seed, 2)), fired: make(map[string]int),
		groups: make(map[uuid.UUID]*modelGroup), disk: vfstest.NewMem(),
	}
	if err := m.disk.MkdirAll("/blobs"); err != nil {
		panic(err)
	}
	for i := range groups {
		m.add(byte(i))
	}
	return m
}

func (m *model) add(number byte) *modelGroup {
	g := &modelGroup{id: uuid.UUID{2, number}, name: fmt.Sprint(number), known: true}
	m.groups[g.id] = g
	return g
}

// one returns the group with the given number.
func (m *model) one(number byte) *modelGroup { return m.groups[uuid.UUID{2, number}] }

func (g *modelGroup) applied() uint64 {
	if len(g.all) == 0 {
		return 0
	}
	return g.all[len(g.all)-1].Index
}

// write appends an entry of up to n bytes to a group.
func (m *model) write(g *modelGroup, n int) *format.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := format.Entry{
		Kind: format.KindPut, ID: int64(m.rng.IntN(6)), Index: g.applied() + 1, Term: 1, CommitTime: time.Now().UnixNano(),
		Data: make([]byte, n),
	}
	for i := range e.Data {
		e.Data[i] = byte(m.rng.Uint32())
	}
	switch kind := m.rng.IntN(40); {
	case kind < 5:
		e.Kind, e.Data = format.KindDelete, nil
	case kind < 8:
		e = format.Entry{Kind: format.KindEmpty, Index: e.Index, Term: 1}
	case kind < 10:
		e.Codec, e.Data = format.CodecBlob, m.blob(e.Data).Encode()
	case kind == 10 && !m.steady:
		e.Index += 1 << 32 // simulates the jump of the index after a loss of data that an administrator has accepted
	case kind < 20:
		e.RequestID[0] = 1
	}
	g.all, g.kept = append(g.all, e), append(g.kept, e)
	return &g.all[len(g.all)-1]
}

// blob stores data as a blob, in the format of a blob file.
func (m *model) blob(data []byte) format.BlobRef {
	w, err := format.CreateBlob(m.disk, "/blobs")
	if err != nil {
		panic(err)
	}
	if _, err := w.Write(data); err != nil {
		panic(err)
	}
	ref, err := w.Commit()
	if err != nil {
		panic(err)
	}
	return ref
}

// lose makes the store lose the entries of a group with the given indexes. A person accepts that, and the log goes on
// far behind the greatest index that the store still knows.
func (m *model) lose(g *modelGroup, greatest uint64, indexes ...uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.lost == nil {
		g.lost, g.states = make(map[uint64]uint64), make(map[uint64]map[int64]uint64)
	}
	for _, at := range indexes {
		g.lost[at] = greatest + format.LossJump
	}
	g.kept = slices.DeleteFunc(slices.Clone(g.kept), func(e format.Entry) bool { return g.lost[e.Index] > 0 })
	left := make(map[int64]uint64)
	for i := range g.kept {
		apply(left, &g.kept[i])
	}
	end := format.Entry{Kind: format.KindEmpty, Index: greatest + format.LossJump, Term: 1}
	g.all, g.kept = append(g.all, end), append(g.kept, end)
	g.accepted, g.states[end.Index] = greatest, left
	g.floor, g.deletes, g.dropped = end.Index, end.Index, append(g.dropped, end.Index)
	m.fired["a loss was accepted"]++
}

// loseSome makes the store lose some of the last entries: any of them by damage, or all of them because a copy goes on
// that never had them.
func (m *model) loseSome(g *modelGroup, isBehind bool) {
	m.mu.Lock()
	kept, greatest, jumps := g.kept, g.applied(), g.applied()-min(g.applied(), 1<<31)
	var indexes []uint64
	for i := len(kept) - 1; i >= max(1, len(kept)-12) && kept[i].Index > jumps; i-- {
		switch {
		case isBehind:
			greatest = kept[i-1].Index
		case m.rng.IntN(3) > 0:
			continue
		}
		indexes = append(indexes, kept[i].Index)
	}
	m.mu.Unlock()
	if greatest > jumps && len(indexes) > 0 {
		m.lose(g, greatest, indexes...)
	}
}

// apply applies an entry to a state, which has the index of each record's newest version.
func apply(state map[int64]uint64, e *format.Entry) {
	switch e.Kind {
	case format.KindPut:
		state[e.ID] = e.Index
	case format.KindDelete:
		delete(state, e.ID)
	}
}

// compact drops superseded versions, and deletes of which no older version is left. It respects the hold unless the
// disk is full.
func (m *model) compact(g *modelGroup, full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	newer := make(map[int64]uint64)
	kept := slices.Clone(g.kept)
	for i, e := range slices.Backward(g.kept) {
		if !e.Kind.IsVersion() {
			continue
		}
		by, superseded := newer[e.ID]
		newer[e.ID] = e.Index
		if !superseded && e.Kind == format.KindDelete {
			if (full || !g.held || e.Index <= g.hold) && e.RequestID == [16]byte{} && !hasOlder(g.kept[:i], e.ID) {
				g.deletes, kept[i].Index = max(g.deletes, e.Index), 0
				g.dropped = append(g.dropped, e.Index)
			}
			continue
		}
		if !superseded || g.held && !full && by > g.hold {
			continue
		}
		if !g.held || by > g.hold {
			g.dropped = append(g.dropped, by)
		}
		if g.floor = max(g.floor, by); e.RequestID != [16]byte{} {
			kept[i] = format.RequestEntry(&e)
			continue
		}
		kept[i].Index = 0
	}
	g.kept = slices.DeleteFunc(kept, func(e format.Entry) bool { return e.Index == 0 })
}

func hasOlder(entries []format.Entry, id int64) bool {
	return slices.ContainsFunc(entries, func(e format.Entry) bool { return e.Kind.IsVersion() && e.ID == id })
}

// forgetHold makes a member the leader that has not been told of the hold.
func (m *model) forgetHold(g *modelGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g.held = false
}

func (m *model) hits(what string) bool {
	if m.rng.Float64() >= m.rate {
		return false
	}
	m.fired[what]++
	return true
}

// onAsked sets the function asked, even while an archiver runs. It may be nil.
func (m *model) onAsked(asked func(positions map[uuid.UUID]uint64)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = asked
}

var errShard = errors.New("the shard is not there")

// Round implements Source.
func (m *model) Round(_ context.Context, positions map[uuid.UUID]uint64) iter.Seq2[News, error] {
	return func(yield func(News, error) bool) {
		m.mu.Lock()
		asked := m.asked
		m.mu.Unlock()
		if asked != nil {
			asked(positions)
		}
		m.mu.Lock()
		var all []*modelGroup
		for _, g := range m.groups {
			all = append(all, g)
		}
		slices.SortFunc(all, func(a, b *modelGroup) int { return bytes.Compare(a.id[:], b.id[:]) })
		m.mu.Unlock()
		for _, g := range all {
			times := 1
			m.mu.Lock()
			if m.hits("two leaders answer") {
				times = 2
			}
			m.mu.Unlock()
			for range times {
				if !m.news(g, positions, yield) {
					return
				}
			}
		}
	}
}

// news yields the new entries of one group.
func (m *model) news(g *modelGroup, positions map[uuid.UUID]uint64, yield func(News, error) bool) bool {
	m.mu.Lock()
	position, has := positions[g.id]
	n := News{Group: g.id, Name: g.name, Floor: g.floor, FloorKnown: g.known, ReadAt: time.Now()}
	switch {
	case g.deleted && !has:
		m.mu.Unlock()
		return true
	case g.deleted:
		n.Gone = true
	case !has:
		n.Unknown = true
	case m.hits("a group does not answer"):
		m.mu.Unlock()
		return yield(News{Group: g.id}, errShard)
	}
	if n.Gone || n.Unknown {
		m.mu.Unlock()
		return yield(n, nil)
	}
	g.hold, g.held = position, true
	if g.deletes > position {
		m.fired["deletes are missing"]++
		n.CopyAgain = true
		g.again = append(g.again, position)
		m.mu.Unlock()
		return yield(n, nil)
	}
	var parts []News
	n.Through = position
	from := position // the index up to which the earlier parts are complete
	for _, e := range g.kept {
		if e.Index <= position {
			continue
		}
		n.Entries = append(n.Entries, e)
		if m.rng.IntN(4) == 0 {
			n.Through, n.More = e.Index, true
			g.mayHaveHole(from, &n)
			from, parts, n.Entries = n.Through, append(parts, n), nil
		}
	}
	n.Through, n.More = max(position, g.applied()), false
	g.mayHaveHole(from, &n)
	parts = append(parts, n)
	cut := len(parts)
	if m.hits("a stream ends early") {
		cut = m.rng.IntN(len(parts))
	}
	m.mu.Unlock()
	for _, p := range parts[:cut] {
		if !yield(p, nil) {
			return false
		}
	}
	return cut == len(parts) || yield(News{Group: g.id}, errShard)
}

// mayHaveHole records the hole that a part of the new entries tells of. The earlier parts have everything up to the
// index after. Reads as of that index are exact if the floor of the earlier parts is known.
func (g *modelGroup) mayHaveHole(after uint64, n *News) {
	from, to := after+1, n.Floor
	if !n.FloorKnown {
		from, to = after, n.Through
	}
	g.holes = append(g.holes, object.Hole{From: from, To: to})
}

// Blob implements Source.
func (m *model) Blob(_ context.Context, _ uuid.UUID, ref format.BlobRef) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hits("a blob cannot be had") {
		return nil, errShard
	}
	b, err := format.ReadAll(m.disk, path.Join("/blobs", format.BlobName(ref.ID)), 1<<20)
	if err == nil && m.hits("a blob comes damaged") {
		b[m.rng.IntN(len(b))] ^= 4
	}
	return io.NopCloser(bytes.NewReader(b)), err
}

// Copy implements Source. The files contain state records and void entries, and the index jumps between two files.
func (m *model) Copy(_ context.Context, id uuid.UUID) (GroupCopy, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[id]
	if g.deleted {
		return nil, fs.ErrNotExist
	}
	if m.rate > 0 && m.rng.IntN(5) == 0 {
		m.fired["a copy cannot be had"]++
		return nil, errShard
	}
	c := &modelCopy{model: m, files: make(map[string][]byte), d: CopyDescription{
		Index: g.applied(), Floor: g.floor, FloorKnown: g.known,
	}}
	for _, position := range g.again { // the hole ends behind the last index that a made-up delete may have
		g.holes = append(g.holes, object.Hole{From: position + 1, To: max(g.floor, g.deletes) + 1})
	}
	manifest := format.Manifest{Identity: format.Identity{Store: m.store, Group: id, Name: g.name}, Sequence: 1,
		TombstoneFloor: g.deletes, AcceptedThrough: g.accepted}
	if g.accepted > 0 && g.deletes == g.accepted+format.LossJump {
		manifest.TombstoneFloor = 0 // no delete is missing but those that were lost
	}
	var entries []format.Entry
	var committed int64 // commit time of the last version so far
	for _, e := range g.kept {
		committed = max(committed, e.CommitTime)
		void := format.Entry{
			Kind: format.KindPut, ID: 1, Index: e.Index, Term: 1, CommitTime: committed, Data: []byte("void"),
		}
		switch m.rng.IntN(8) {
		case 0:
			void.Index++
			entries = append(entries, void)
		case 1:
			entries = append(entries, void, format.Entry{Kind: format.KindState, Data: format.StateRecord{}.Encode()})
		}
		if e.Index > 20 && m.rng.IntN(30) == 0 { // starts a long tail of void entries
			for at := e.Index; at < e.Index+20; at++ {
				entries = append(entries, format.Entry{Kind: format.KindEmpty, Index: at, Term: 1})
			}
		}
		entries = append(entries, e)
	}
	for number := uint64(1); len(entries) > 0; number++ {
		n := 1 + m.rng.IntN(len(entries))
		first := uint64(1 << 62)
		for _, e := range entries {
			if e.Kind != format.KindState {
				first = min(first, e.Index)
			}
		}
		if first == 1<<62 {
			break
		}
		s := format.ManifestSegment{Number: number, ID: format.NewSegmentID(), FirstIndex: first}
		file := format.SegmentHeader{Store: m.store, Group: id, ID: s.ID, FirstIndex: first, Rewritten: true}.Encode()
		for i := range entries[:n] {
			s.LastIndex = max(s.LastIndex, entries[i].Index, s.FirstIndex)
			file = format.AppendFrame(file, s.ID, int64(len(file)), &entries[i])
		}
		s.Bytes = int64(len(file))
		manifest.Segments, entries = append(manifest.Segments, s), entries[n:]
		manifest.NextSegment = number + 1
		c.files[format.SegmentName(number)] = file
	}
	var err error
	if c.d.Manifest, err = manifest.Encode(); err != nil {
		return nil, err
	}
	return c, nil
}

type modelCopy struct {
	model *model
	d     CopyDescription
	files map[string][]byte
}

func (c *modelCopy) Description() CopyDescription { return c.d }
func (c *modelCopy) Close() error                 { return nil }

func (c *modelCopy) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	m := c.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hits("a file of a copy breaks off") {
		return nil, errShard
	}
	b, ok := c.files[name]
	if !ok {
		var err error
		if b, err = format.ReadAll(m.disk, path.Join("/blobs", name), 1<<20); err != nil {
			return nil, err
		}
	}
	if m.hits("a file of a copy comes damaged") {
		b = bytes.Clone(b)
		b[m.rng.IntN(len(b))] ^= 4
	}
	return io.NopCloser(bytes.NewReader(b[offset:])), nil
}

// compare checks one archived group. It returns an error for an entry that is missing although the archive claims to
// have it, for an entry that was never written, for a wrong state as of an index at which the archive claims to be
// exact, and for a hole without a reason. In a hole, the archive may have deletes that stand for others with other
// indexes, and versions that came back by a loss.
func (g *modelGroup) compare(r *readable, through uint64) error {
	if r.through < through {
		return fmt.Errorf("group %s: it is readable up to %d, not to %d", g.name, r.through, through)
	}
	by := make(map[int64]uint64) // index of the entry that superseded the next older version
	written := make(map[uint64]*format.Entry, len(g.all))
	for i := range slices.Backward(g.all) {
		e := &g.all[i]
		written[e.Index] = e
		superseded, isOld := by[e.ID]
		if e.Kind.IsVersion() {
			by[e.ID] = e.Index
		}
		have, ok := r.entries[e.Index]
		switch {
		case e.Index > r.through && ok:
			return fmt.Errorf("group %s: index %d is above %d", g.name, e.Index, r.through)
		case e.Index > r.through || ok && same(&have, e):
		case e.Kind.IsVersion() && isOld && r.isInHole(superseded):
		case ok && have.Kind.IsVersion() && r.mayBeMadeUp(e.Index):
		case !ok && g.mayLack(r, e.Index):
		case !ok && e.Kind == format.KindDelete && e.Index <= g.deletes: // checkStates tells whether the archive needs it
		default:
			return fmt.Errorf("group %s: index %d, superseded by %d, is missing; through %d, floor %d, holes %v", g.name,
				e.Index, superseded, r.through, r.floor, r.holes)
		}
	}
	for _, at := range r.indexes() {
		e, have := written[at], r.entries[at]
		if have.Kind.IsVersion() && r.mayBeMadeUp(at) && (e == nil || !same(e, &have)) {
			continue // checkStates finds it if it stands for no delete, and for no version that came back
		}
		if e == nil {
			return fmt.Errorf("group %s: index %d was never written", g.name, at)
		}
		if have.Kind == format.KindRequest {
			old := format.RequestEntry(e)
			e = &old
		}
		if !same(e, &have) {
			return fmt.Errorf("group %s: index %d: %+v, written was %+v", g.name, at, have, *e)
		}
	}
	if err := g.checkStates(r, written); err != nil {
		return err
	}
	for _, h := range r.holes {
		if !slices.ContainsFunc(g.dropped, func(by uint64) bool { return h.From <= by && by <= h.To }) && g.known {
			return fmt.Errorf("group %s: hole %v without a reason", g.name, h)
		}
		if at := g.firstOutside(h); at < h.To {
			return fmt.Errorf("group %s: hole %v: reads as of index %d are refused, and the archiver knew that they are exact",
				g.name, h, at)
		}
	}
	return nil
}

// mayLack reports whether an entry was lost before it could be archived: the archive has a hole there, or it begins
// where the log goes on, or later. If it begins earlier and has no hole there, it must have the entry.
func (g *modelGroup) mayLack(r *readable, at uint64) bool {
	end, isLost := g.lost[at]
	return isLost && (r.mayBeMadeUp(at) || end <= r.floor)
}

// firstOutside returns the first index that a hole refuses, and that is in no hole which the archive may have. It
// returns the end of the hole if there is none.
func (g *modelGroup) firstOutside(h object.Hole) uint64 {
	for at := h.From; at < h.To; {
		end := at
		for _, may := range g.holes {
			if may.From <= at {
				end = max(end, may.To)
			}
		}
		if end == at {
			return at
		}
		at = end
	}
	return h.To
}

// checkStates compares the archive's state with the written one as of each index at which the archive claims to be
// exact.
func (g *modelGroup) checkStates(r *readable, written map[uint64]*format.Entry) error {
	want, have := make(map[int64]uint64), make(map[int64]uint64)
	// equal says whether the archive's version is the written one, or was made up for it.
	equal := func(have, want uint64) bool {
		h, w := r.entries[have], written[want]
		return have == want || r.mayBeMadeUp(have) && (written[have] == nil || !same(written[have], &h)) &&
			h.Codec == w.Codec && bytes.Equal(h.Data, w.Data) && bytes.Equal(h.Attributes, w.Attributes)
	}
	indexes := r.indexes()
	for at := range written {
		indexes = append(indexes, at)
	}
	slices.Sort(indexes)
	for _, at := range slices.Compact(indexes) {
		if at > r.through {
			break
		}
		if e, ok := r.entries[at]; ok {
			apply(have, &e)
		}
		if e := written[at]; e != nil {
			apply(want, e)
		}
		if left := g.states[at]; left != nil {
			want = maps.Clone(left)
		}
		if at >= r.floor && !r.isInHole(at+1) && !maps.EqualFunc(have, want, equal) {
			return fmt.Errorf("group %s: as of index %d the archive has the versions %v, written were %v; floor %d, holes %v",
				g.name, at, have, want, r.floor, r.holes)
		}
	}
	return nil
}

// check compares the whole bucket with the model. Each group must be readable at least up to its index in atLeast.
func (m *model) check(memory *memory, atLeast map[uuid.UUID]uint64) (*archive, error) {
	a, err := readArchive(memory, m.store)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, through := range atLeast {
		r := a.groups[id]
		if r == nil && m.groups[id].deleted {
			continue // the group's first copy was not complete yet
		}
		if r == nil {
			return a, fmt.Errorf("group %s has no catalogue", id)
		}
		if err := m.groups[id].compare(r, through); err != nil {
			return a, err
		}
	}
	return a, nil
}
