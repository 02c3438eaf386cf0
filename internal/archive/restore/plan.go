package restore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// limits are the limits on the sizes of segments and parts. Tests use smaller ones.
type limits struct {
	segmentBytes int64 // maximum size of a segment, unless a single part is larger
	partBytes    int64 // number of bytes of archived entries after which a new part begins
	keptBytes    int64 // number of bytes of entries that may be kept in memory
}

var defaultLimits = limits{segmentBytes: 256 << 20, partBytes: 32 << 20}

// indexSpan is the smallest difference between two indexes that cannot be in the same segment (docs/format.md).
const indexSpan = 1 << 32

// plan describes the files of one group. Unless the group is large, it also holds the data of their segments.
type plan struct {
	group    *reader.Group
	identity format.Identity // identity of the new group
	index    uint64          // the entries up to this index are restored
	next     uint64          // commit index of the restored group, 2^32 above every archived index of the source group
	term     uint64          // greatest term of all entries
	version  uint64          // index of the last version at or below index; 0 if there is none
	created  int64           // commit time of that version, in Unix ns
	newest   newest
	need     need  // memory that is reserved for the plan
	kept     *kept // the frames of all puts up to index; nil if the group is read again when its files are read
	segments []format.ManifestSegment
	blobs    map[string]format.Entry // entries of puts that refer to blobs, by name of the blob's file
	names    []string                // names of the blob files, in the order of the entries
}

// part is a range of archived entries, after which a segment may end.
type part struct {
	begin       uint64 // index of the first entry
	first, last uint64 // indexes of the first and the last restored entry; 0 if there is none
	bytes       int64  // size of the frames that are restored
}

// makePlan creates the plan of a group, for which it reads the group once.
func makePlan(ctx context.Context, g *reader.Group, identity format.Identity, index uint64, l limits) (*plan, error) {
	p := &plan{group: g, identity: identity, index: index, term: 1, blobs: map[string]format.Entry{}}
	if l.keptBytes > 0 {
		p.kept = &kept{max: l.keptBytes}
	}
	p.next = max(index, g.Through) + format.LossJump // an index that clients have seen is not used again (safety rule 8)
	if p.next > format.NumberMax {
		return nil, fmt.Errorf("%s: %w: index %d", g, format.ErrCorrupt, p.next)
	}
	var parts []part
	var refs []format.Entry
	read := int64(0)
	for f, err := range g.Entries(ctx, 1, index) {
		if err != nil {
			return nil, err
		}
		e := f.Entry
		p.term = max(p.term, e.Term)
		if !e.Kind.IsVersion() {
			continue
		}
		p.version, p.created = e.Index, e.CommitTime
		r := row{id: e.ID, index: e.Index}
		if e.Kind == format.KindPut {
			r.units = uint32(len(f.Frame) / 8) // a frame's length is a multiple of 8 bytes, and at most 1.1 MiB
			if p.kept != nil && !p.kept.add(e, f.Frame) {
				p.kept = nil
			}
		}
		p.newest.add(r)
		if n := len(parts); n == 0 || read >= l.partBytes || e.Index-parts[n-1].begin >= indexSpan {
			parts, read = append(parts, part{begin: e.Index}), 0
		}
		read += int64(len(f.Frame))
		if e.Codec == format.CodecBlob {
			refs = append(refs, format.Entry{Kind: e.Kind, Codec: e.Codec, ID: e.ID, Index: e.Index,
				Data: append([]byte(nil), e.Data...)})
		}
	}
	p.newest.done()
	p.newest.each(func(r row) { count(parts, r) })
	p.divide(parts, l)
	return p, p.addBlobs(refs)
}

// count adds the newest version of a record to its part.
func count(parts []part, r row) {
	if r.units == 0 {
		return
	}
	in := &parts[sort.Search(len(parts), func(i int) bool { return parts[i].begin > r.index })-1]
	in.bytes += 8 * int64(r.units)
	in.last = max(in.last, r.index)
	if in.first == 0 || r.index < in.first {
		in.first = r.index
	}
}

// divide combines parts into segments.
func (p *plan) divide(parts []part, l limits) {
	for _, in := range parts {
		if in.first == 0 {
			continue
		}
		if n := len(p.segments); n > 0 {
			s := &p.segments[n-1]
			if s.Bytes+in.bytes <= l.segmentBytes && in.last-s.FirstIndex < indexSpan {
				s.LastIndex = in.last
				s.Bytes += in.bytes
				continue
			}
		}
		p.segments = append(p.segments, format.ManifestSegment{
			Number: uint64(len(p.segments)) + 1, FirstIndex: in.first, LastIndex: in.last,
			Bytes: format.SegmentHeaderBytes + in.bytes,
		})
	}
	for i := range p.segments {
		p.segments[i].ID = segmentID(p.identity.Group, p.version, p.segments[i])
	}
}

// segmentID derives the id of a segment from its contents. Every process uses the same id for the same segment, so
// that a shard can continue with the data that it has received from an earlier process. Different segments have
// different ids, because the records of a group as of a version never change, and a segment has all of these records
// that were written between its first and its last index.
func segmentID(group uuid.UUID, version uint64, s format.ManifestSegment) (id format.SegmentID) {
	b := append([]byte("sheaf-archive-restored-segment"), group[:]...)
	for _, n := range []uint64{version, s.FirstIndex, s.LastIndex, uint64(s.Bytes)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	return id
}

// addBlobs adds the blobs to which the restored puts refer.
func (p *plan) addBlobs(refs []format.Entry) error {
	for i := range refs {
		e := &refs[i]
		if !p.newest.has(e.ID, e.Index) {
			continue
		}
		ref, err := e.BlobRef()
		if err != nil {
			return fmt.Errorf("%s: index %d: %w", p.group, e.Index, err)
		}
		name := format.BlobName(ref.ID)
		if before, ok := p.blobs[name]; ok {
			if string(before.Data) != string(e.Data) {
				return fmt.Errorf("%s: %w: indexes %d and %d refer to different blobs of one id", p.group, format.ErrCorrupt,
					before.Index, e.Index)
			}
			continue
		}
		p.blobs[name] = *e
		p.names = append(p.names, name)
	}
	return nil
}
