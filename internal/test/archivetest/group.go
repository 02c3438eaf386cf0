package archivetest

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Group is a group in a store, with all entries that were ever committed to it. Tests compare these entries with what
// readers return.
type Group struct {
	UUID  uuid.UUID
	Name  string
	Floor uint64
	Holes []object.Hole // the holes that are archived
	Gone  bool

	w          *Writer
	history    []format.Entry // entry i has the index i + 1
	dropped    map[uint64]bool
	data       map[uint64][]byte // for each put whose data is in a blob, the data, by the index of the put
	newHoles   []object.Hole
	archived   uint64 // index up to which the group is archived
	rolled     uint64 // index up to which the group's entries are in segments
	logged     uint64 // number of the last log object that contains a piece of the group
	refs       []object.SegmentRef
	catalogues uint64
	lastID     format.SegmentID
}

// NewGroup adds a group to the store. The group's UUID is derived from the number.
func (w *Writer) NewGroup(name string, number byte) *Group {
	g := &Group{
		UUID: uuid.UUID{0x67, 15: number}, Name: name, w: w, dropped: map[uint64]bool{}, data: map[uint64][]byte{},
	}
	w.Groups = append(w.Groups, g)
	return g
}

func (g *Group) through() uint64 { return uint64(len(g.history)) }

// add commits an entry one second after the previous one, and returns its index.
func (g *Group) add(e format.Entry) uint64 {
	g.w.seconds++
	e.Index, e.Term = g.through()+1, 1
	if e.Kind.IsVersion() {
		e.CommitTime = g.w.Now().UnixNano()
		e.Timestamp = e.CommitTime - 5
		e.Used = true
	}
	g.history = append(g.history, e)
	return e.Index
}

// Put commits a put with an attribute, and returns its index.
func (g *Group) Put(id int64, data string) uint64 {
	attributes, err := format.EncodeAttributes(map[string][]byte{"k": []byte("v")})
	if err != nil {
		g.w.t.Fatal(err)
	}
	return g.add(format.Entry{Kind: format.KindPut, ID: id, Attributes: attributes, Data: []byte(data)})
}

// PutBlob creates a blob, commits a put that refers to it, and returns the index of the put.
func (g *Group) PutBlob(id int64, data []byte) uint64 {
	g.w.seed++
	ref := format.BlobRef{ID: uuid.UUID{0xb1, 15: g.w.seed}, Size: int64(len(data)), CRC32C: format.Checksum(data)}
	g.w.create(object.BlobName(g.UUID, ref.ID), &object.Blob{Group: g.UUID, Size: ref.Size}, data)
	at := g.add(format.Entry{Kind: format.KindPut, Codec: format.CodecBlob, ID: id, Data: ref.Encode()})
	g.data[at] = data
	return at
}

// Delete commits a delete, and returns its index.
func (g *Group) Delete(id int64) uint64 { return g.add(format.Entry{Kind: format.KindDelete, ID: id}) }

// Empty commits an empty entry, as a new leader does first, and returns its index.
func (g *Group) Empty() uint64 { return g.add(format.Entry{Kind: format.KindEmpty}) }

// Compact drops entries, as if compaction had removed them before the archiver could read them.
func (g *Group) Compact(indexes ...uint64) {
	for _, at := range indexes {
		g.dropped[at] = true
	}
}

// AddHole makes the next log object record that the versions in a range of indexes were lost.
func (g *Group) AddHole(from, to uint64) {
	g.newHoles = append(g.newHoles, object.Hole{From: from, To: to})
}

// Through returns the index up to which the group is archived.
func (g *Group) Through() uint64 { return g.archived }

// kept returns those entries between two indexes that compaction has not dropped.
func (g *Group) kept(from, to uint64) (entries []format.Entry) {
	for _, e := range g.history {
		if e.Index >= from && e.Index <= to && !g.dropped[e.Index] {
			entries = append(entries, e)
		}
	}
	return entries
}

func (g *Group) rangeOf(entries []format.Entry) object.Range {
	r := object.Range{Group: g.UUID, Name: g.Name, Floor: g.Floor}
	for i, e := range entries {
		if i == 0 {
			r.First = e.Index
		}
		r.Last = e.Index
		if !e.Kind.IsVersion() {
			continue
		}
		r.Records++
		if r.FirstCommit == 0 {
			r.FirstCommit = e.CommitTime
		}
		r.LastCommit = e.CommitTime
	}
	return r
}

// Record is one version of a record, with its data.
type Record struct {
	Entry format.Entry
	Data  []byte
}

// String identifies a version for the messages of tests.
func (r Record) String() string {
	return fmt.Sprintf("id %d index %d kind %s data %.20q", r.Entry.ID, r.Entry.Index, r.Entry.Kind, r.Data)
}

// State returns the live records as of an index, computed from all entries that the group ever had.
func (g *Group) State(index uint64) map[int64]Record {
	state := map[int64]Record{}
	for _, e := range g.history {
		switch {
		case e.Index > index:
			return state
		case e.Kind == format.KindDelete:
			delete(state, e.ID)
		case e.Kind == format.KindPut:
			state[e.ID] = g.record(e)
		}
	}
	return state
}

// Versions returns those versions of a record that compaction has not dropped, oldest first.
func (g *Group) Versions(id int64) (versions []Record) {
	for _, e := range g.kept(1, g.archived) {
		if e.ID == id && e.Kind.IsVersion() {
			versions = append(versions, g.record(e))
		}
	}
	return versions
}

// History returns all entries that were ever committed, including those that Compact has dropped.
func (g *Group) History() []format.Entry { return slices.Clone(g.history) }

// Entries returns the entries that are archived.
func (g *Group) Entries() []format.Entry { return g.kept(1, g.archived) }

func (g *Group) record(e format.Entry) Record {
	if e.Codec == format.CodecBlob {
		return Record{Entry: e, Data: g.data[e.Index]}
	}
	return Record{Entry: e, Data: e.Data}
}

// CommitTime returns the commit time of an index, in Unix ns, or 0 if the entry has none.
func (g *Group) CommitTime(index uint64) int64 { return g.history[index-1].CommitTime }
