package group

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/index"
	"sheaf.dev/sheaf/internal/vfs"
)

// Dump writes a segment, hint, manifest, mark, blob or replica file in words, one line for each frame, row, slot or chunk; bad places
// are named in their line. The type is told by the magic, and where that is damaged by the name. An error says that the
// file cannot be read, is none of these, or that nothing of it can be decoded.
func Dump(w io.Writer, fs vfs.FS, name string) (err error) {
	f, err := fs.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	magic := make([]byte, min(magicBytes, size))
	if err := readFull(f, magic, 0); err != nil {
		return err
	}
	kind := fileMagic(string(magic), path.Base(name))
	if kind == "" {
		return fmt.Errorf("%s: it is no file of a group: its first bytes are %q", name, magic)
	}
	d := &dumper{Writer: bufio.NewWriterSize(w, 64<<10), file: f, size: size, fs: fs, name: name}
	switch kind {
	case segmentMagic:
		err = d.segment()
	case hintMagic:
		err = d.hint()
	case pieceMagic:
		err = d.activeHint()
	case manifestMagic:
		err = d.manifest()
	case markMagic:
		err = d.mark()
	case blobMagic:
		err = d.blob()
	case replicaMagic:
		err = d.replica()
	}
	if flushErr := d.Flush(); flushErr != nil {
		return flushErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// fileTypes are the magics of the files of a group, with what their names begin with.
var fileTypes = []struct{ magic, prefix string }{
	{segmentMagic, segmentPrefix}, {pieceMagic, ActiveHintName}, {hintMagic, hintPrefix}, {manifestMagic, ManifestName}, {markMagic, MarkName}, {blobMagic, blobPrefix},
	{replicaMagic, ReplicaName},
}

// fileMagic tells the type of a file; "": none.
func fileMagic(magic, base string) string {
	for _, t := range fileTypes {
		if magic == t.magic {
			return magic
		}
	}
	for _, t := range fileTypes {
		if strings.HasPrefix(base, t.prefix) {
			return t.magic
		}
	}
	return ""
}

// dumper writes; its buffer keeps the first error of writing until Flush.
type dumper struct {
	*bufio.Writer
	file vfs.File
	size int64
	fs   vfs.FS
	name string
}

func (d *dumper) line(format string, args ...any) {
	fmt.Fprintf(d, format+"\n", args...) // an error is kept by the buffer until Flush
}

func (d *dumper) segment() error {
	b := make([]byte, min(SegmentHeaderBytes, d.size))
	if err := readFull(d.file, b, 0); err != nil {
		return err
	}
	h, err := DecodeSegmentHeader(b)
	if errors.Is(err, ErrFormatVersion) {
		return err
	}
	if err != nil {
		d.line("offset 0: BAD %d bytes: %v", len(b), err)
		if h, err = d.headerFromManifest(); err != nil {
			return fmt.Errorf("the header is bad, and without the segment's id no frame can be checked: %w", err)
		}
		d.line("the manifest says:")
	}
	d.line("segment %x of group %s, store %s: version %d, first index %d, created %s, %d bytes", h.ID, h.Group, h.Store,
		FormatVersion, h.FirstIndex, dumpTime(h.Created), d.size)
	r := NewFrameReader(d.file, h.ID, SegmentHeaderBytes, d.size)
	for r.Next() {
		d.frame(r.Step())
	}
	return r.Err()
}

// headerFromManifest finds a segment whose own header is damaged in the manifest beside it.
func (d *dumper) headerFromManifest() (SegmentHeader, error) {
	m, err := ReadManifest(d.fs, path.Dir(d.name))
	if err != nil {
		return SegmentHeader{}, err
	}
	number, ok := ParseSegmentName(path.Base(d.name))
	for _, s := range m.Segments {
		if ok && s.Number == number {
			return SegmentHeader{Store: m.Identity.Store, Group: m.Identity.Group, ID: s.ID, FirstIndex: s.FirstIndex}, nil
		}
	}
	return SegmentHeader{}, errors.New("the manifest beside it does not list this segment")
}

func (d *dumper) frame(s *FrameStep) {
	e := &s.Entry
	switch s.Status {
	case FrameZeros:
		d.line("offset %d: %d bytes of zeros", s.Offset, s.Bytes)
		return
	case FrameBad:
		d.line("offset %d: BAD %d bytes: %s%s", s.Offset, s.Bytes, s.Status, unreadable(s))
		return
	case FrameContent:
		d.line("offset %d: BAD %d bytes: %s%s: %s id %d index %d term %d", s.Offset, s.Bytes, s.Status, unreadable(s), e.Kind, e.ID, e.Index, e.Term)
		return
	}
	switch e.Kind {
	case KindState:
		state, err := DecodeStateRecord(e.Data)
		if err != nil {
			d.line("offset %d: BAD %d bytes: %v", s.Offset, s.Bytes, err)
			return
		}
		d.line("offset %d: %d bytes: state: %s", s.Offset, s.Bytes, dumpState(state))
	case KindRequest:
		r := RequestOf(e)
		d.line("offset %d: %d bytes: request%s of a %s of id %d index %d term %d commit %s crc %08x", s.Offset, s.Bytes, dumpRequest(e),
			Kind(e.Data[0]), e.ID, e.Index, e.Term, dumpTime(e.CommitTime), r.CRC32C)
	case KindEmpty, KindConf:
		d.line("offset %d: %d bytes: %s index %d term %d data %d", s.Offset, s.Bytes, e.Kind, e.Index, e.Term, len(e.Data))
	default:
		d.line("offset %d: %d bytes: %s id %d index %d term %d %s commit %s timestamp %s%s%s", s.Offset, s.Bytes, e.Kind, e.ID,
			e.Index, e.Term, usedWord(e.Used), dumpTime(e.CommitTime), dumpTime(e.Timestamp), dumpRequest(e), dumpContent(e))
	}
}

func unreadable(s *FrameStep) string {
	if s.Unreadable {
		return ", and the device cannot read it"
	}
	return ""
}

func usedWord(used bool) string {
	if used {
		return "used"
	}
	return "superseded"
}

func dumpTime(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

func dumpRequest(e *Entry) string {
	if e.RequestID == [16]byte{} {
		return ""
	}
	return fmt.Sprintf(" request %x", e.RequestID)
}

func dumpContent(e *Entry) string {
	if e.Kind == KindDelete {
		return ""
	}
	what := fmt.Sprintf(" data %d", len(e.Data))
	if e.Codec == CodecBlob {
		ref, err := DecodeBlobRef(e.Data)
		if err != nil {
			what = " BAD " + err.Error()
		} else {
			what = " " + dumpRef(ref)
		}
	}
	attributes, err := DecodeAttributes(e.Attributes)
	switch {
	case err != nil:
		what += " BAD " + err.Error()
	case len(attributes) > 0:
		what += fmt.Sprintf(" attributes %d (%d bytes)", len(attributes), len(e.Attributes))
	}
	return what
}

func dumpRef(ref BlobRef) string {
	return fmt.Sprintf("%s of %d bytes, crc %08x", BlobName(ref.ID), ref.Size, ref.CRC32C)
}

func dumpState(s StateRecord) string {
	return fmt.Sprintf("term %d vote %d commit %d, synced to offset %d, index %d", s.Term, s.Vote, s.Commit, s.SyncedOffset, s.SyncedIndex)
}

func (d *dumper) hint() error {
	b, err := readAll(d.fs, d.name, hintBytesMax)
	if err != nil {
		return err
	}
	h, err := DecodeHint(b)
	if err != nil {
		return err
	}
	d.line("hint of segment %x: version %d, indexes %d to %d, segment of %d bytes, last commit %s, %d rows", h.Segment, FormatVersion,
		h.FirstIndex, h.LastIndex, h.Bytes, dumpTime(h.LastCommit), len(h.IDs))
	for _, run := range h.Terms {
		d.line("from index %d: term %d", run.FirstIndex, run.Term)
	}
	for _, blob := range h.Blobs {
		d.line("index %d: %s", blob.Index, dumpRef(blob.Ref))
	}
	for row, id := range h.IDs {
		d.line("%s %s", dumpRow(row, id, h.Places[row], h.FirstIndex+uint64(h.Indexes[row])), usedWord(h.IsUsed(row)))
	}
	return nil
}

func dumpRow(row int, id int64, place, at uint64) string {
	loc, word := index.Loc(place), "put"
	if loc.Tombstone() {
		word = "delete"
	}
	return fmt.Sprintf("row %d: %s id %d index %d offset %d at most %d bytes", row, word, id, at, loc.Offset(), loc.LengthBound())
}

// activeHint writes the pieces of the hint of an active segment. What is behind the last whole one does not count.
func (d *dumper) activeHint() error {
	b, err := readAll(d.fs, d.name, hintBytesMax)
	if err != nil {
		return err
	}
	row := 0
	for at := int64(0); at < int64(len(b)); {
		p, length, err := decodePiece(b[at:])
		if err != nil {
			if at == 0 {
				return err
			}
			d.line("byte %d: what is from here on, %d bytes, does not count: %v", at, int64(len(b))-at, err)
			return nil
		}
		d.line("byte %d: piece of the hint of the active segment %x, first index %d: version %d, from offset %d to %d, indexes %d to %d, last commit %s, %d rows", at, p.segment,
			p.first, FormatVersion, p.begin, p.end, p.lastBefore+1, p.last, dumpTime(p.table.lastCommit), len(p.table.ids))
		for _, run := range p.terms {
			d.line("from index %d: term %d", run.FirstIndex, run.Term)
		}
		for _, blob := range p.table.blobs {
			d.line("index %d: %s", blob.Index, dumpRef(blob.Ref))
		}
		for i, id := range p.table.ids {
			d.line("%s", dumpRow(row+i, id, p.table.places[i], p.first+uint64(p.table.indexes[i])))
		}
		row, at = row+len(p.table.ids), at+length
	}
	return nil
}

func (d *dumper) manifest() error {
	b, err := readAll(d.fs, d.name, manifestBytesMax)
	if err != nil {
		return err
	}
	m, bad, err := DecodeManifest(b)
	for i, why := range bad {
		if why != nil {
			d.line("copy %d: BAD: %v", i, why)
		}
	}
	if err != nil {
		return err
	}
	d.line("manifest of group %q (%s), store %s: version %d, sequence %d", m.Identity.Name, m.Identity.Group, m.Identity.Store,
		FormatVersion, m.Sequence)
	d.line("compacted through %d (term %d), tombstone floor %d, accepted through %d, next segment %d", m.CompactedThrough,
		m.CompactedTerm, m.TombstoneFloor, m.AcceptedThrough, m.NextSegment)
	d.line("state: %s", dumpState(m.HardState))
	if m.Conf == nil {
		d.line("no membership")
	} else {
		d.line("membership as of index %d: voters %v learners %v outgoing %v next learners %v, leaves joint by itself %v", m.ConfIndex,
			m.Conf.GetVoters(), m.Conf.GetLearners(), m.Conf.GetVotersOutgoing(), m.Conf.GetLearnersNext(), m.Conf.GetAutoLeave())
	}
	for _, s := range m.Segments {
		if s.Sealed() {
			d.line("%s: id %x, sealed, indexes %d to %d, %d bytes", SegmentName(s.Number), s.ID, s.FirstIndex, s.LastIndex, s.Bytes)
		} else {
			d.line("%s: id %x, active, from index %d", SegmentName(s.Number), s.ID, s.FirstIndex)
		}
	}
	return nil
}

func (d *dumper) mark() error {
	b, err := readAll(d.fs, d.name, 1<<20)
	if err != nil {
		return err
	}
	_, found, bad := decodeMarkFile(b)
	for slot := range markSlots {
		switch at := slot * blockBytes; {
		case bad[slot] != nil:
			d.line("slot %d: BAD: %v", slot, bad[slot])
		case isZero(b[at : at+blockBytes]):
			d.line("slot %d: never written", slot)
		default:
			m, err := DecodeMark(b[at:at+blockBytes], slot)
			if err != nil {
				return err
			}
			d.line("slot %d: sequence %d: segment %x is synced to offset %d, index %d", slot, m.Sequence, m.Segment, m.Offset, m.Index)
		}
	}
	if !found && bad[0] != nil && bad[1] != nil {
		return errors.Join(bad[0], bad[1])
	}
	return nil
}

func (d *dumper) blob() error {
	header := make([]byte, min(blobHeaderBytes, d.size))
	if err := readFull(d.file, header, 0); err != nil {
		return err
	}
	ref, err := decodeBlobHeader(header)
	if err != nil {
		return err
	}
	d.line("%s: version %d, file of %d bytes", dumpRef(ref), FormatVersion, d.size)
	bad, err := scanBlobFile(d.file, d.size, FrameBuffer())
	if err != nil {
		return err
	}
	for _, b := range bad {
		d.line("offset %d: BAD %d bytes: %s", b.Offset, b.Length, b.What)
	}
	if len(bad) == 0 {
		d.line("all chunks are whole")
	}
	return nil
}

func (d *dumper) replica() error {
	b, err := readAll(d.fs, d.name, 1<<20)
	if err != nil {
		return err
	}
	f, bad, err := DecodeReplicaFile(b)
	for i, why := range bad {
		if why != nil {
			d.line("copy %d: BAD: %v", i, why)
		}
	}
	if err != nil {
		return err
	}
	state := "member"
	if f.Joining {
		state = "joining"
	}
	d.line("replica %016x of group %s, store %s, on volume %s: version %d, %s", f.RaftID, f.Group, f.Store, f.Volume, FormatVersion, state)
	return nil
}
