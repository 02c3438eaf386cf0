package fsck

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Dump writes a segment, hint, manifest, mark, blob or replica file as text, with one line for each frame, row, slot or
// chunk. The line for a damaged part describes the damage. Dump determines the file's type from the magic or, if the
// magic is damaged, from the name. Dump returns an error if the file cannot be read, has none of these types, or has no
// part that can be decoded.
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
	magic := make([]byte, min(format.MagicBytes, size))
	if err := format.ReadFull(f, magic, 0); err != nil {
		return err
	}
	kind := fileTypeOf(string(magic), path.Base(name))
	if kind == nil {
		return fmt.Errorf("%s: it is no file of a group: its first bytes are %q", name, magic)
	}
	d := &dumper{Writer: bufio.NewWriterSize(w, 64<<10), file: f, size: size, fs: fs, name: name}
	var all []byte
	if kind.bytesMax > 0 {
		all, err = format.ReadAll(fs, name, kind.bytesMax)
	}
	if err == nil {
		err = kind.dump(d, all)
	}
	if flushErr := d.Flush(); flushErr != nil {
		return flushErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// fileType describes one type of a group's files.
type fileType struct {
	magic  string
	prefix string // file name prefix for this type
	// bytesMax is the maximum size in bytes of a file of this type, which is read as a whole. If it is 0, the function
	// dump reads the file itself, piece by piece.
	bytesMax int64
	dump     func(d *dumper, all []byte) error
}

var fileTypes = []fileType{
	{format.SegmentMagic, format.SegmentPrefix, 0, (*dumper).segment},
	{format.PieceMagic, format.ActiveHintName, format.HintBytesMax, (*dumper).activeHint},
	{format.HintMagic, format.HintPrefix, format.HintBytesMax, (*dumper).hint},
	{format.ManifestMagic, format.ManifestName, format.ManifestBytesMax, (*dumper).manifest},
	{format.MarkMagic, format.MarkName, 1 << 20, (*dumper).mark},
	{format.BlobMagic, format.BlobPrefix, 0, (*dumper).blob},
	{format.ReplicaMagic, format.ReplicaName, 1 << 20, (*dumper).replica},
}

// fileTypeOf determines a file's type from its magic, or else from its name. It returns nil if the file has none of
// these types.
func fileTypeOf(magic, base string) *fileType {
	i := slices.IndexFunc(fileTypes, func(t fileType) bool { return t.magic == magic })
	if i < 0 {
		i = slices.IndexFunc(fileTypes, func(t fileType) bool { return strings.HasPrefix(base, t.prefix) })
	}
	if i < 0 {
		return nil
	}
	return &fileTypes[i]
}

// dumper is a file to dump, and the writer of its text. The writer keeps its first error until Flush returns it.
type dumper struct {
	*bufio.Writer
	file vfs.File
	size int64
	fs   vfs.FS
	name string
}

func (d *dumper) line(format string, args ...any) {
	fmt.Fprintf(d, format+"\n", args...) // Flush returns the error
}

func (d *dumper) segment([]byte) error {
	b := make([]byte, min(format.SegmentHeaderBytes, d.size))
	if err := format.ReadFull(d.file, b, 0); err != nil {
		return err
	}
	h, err := format.DecodeSegmentHeader(b)
	if errors.Is(err, format.ErrFormatVersion) {
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
		format.FormatVersion, h.FirstIndex, dumpTime(h.Created), d.size)
	r := segio.NewFrameReader(d.file, h.ID, format.SegmentHeaderBytes, d.size)
	for r.Next() {
		d.frame(r.Step())
	}
	return r.Err()
}

// headerFromManifest returns the header of a segment whose own header is damaged, from the manifest in the same folder.
func (d *dumper) headerFromManifest() (format.SegmentHeader, error) {
	m, err := format.ReadManifest(d.fs, path.Dir(d.name))
	if err != nil {
		return format.SegmentHeader{}, err
	}
	number, ok := format.ParseSegmentName(path.Base(d.name))
	for _, s := range m.Segments {
		if ok && s.Number == number {
			return format.SegmentHeader{Store: m.Identity.Store, Group: m.Identity.Group, ID: s.ID, FirstIndex: s.FirstIndex},
				nil
		}
	}
	return format.SegmentHeader{}, errors.New("the manifest beside it does not list this segment")
}

func (d *dumper) frame(s *segio.FrameStep) {
	e := &s.Entry
	switch s.Status {
	case segio.FrameZeros:
		d.line("offset %d: %d bytes of zeros", s.Offset, s.Bytes)
		return
	case segio.FrameBad:
		d.line("offset %d: BAD %d bytes: %s%s", s.Offset, s.Bytes, s.Status, segio.Unreadable(s))
		return
	case segio.FrameContent:
		d.line("offset %d: BAD %d bytes: %s%s: %s id %d index %d term %d", s.Offset, s.Bytes, s.Status, segio.Unreadable(s),
			e.Kind, e.ID, e.Index, e.Term)
		return
	}
	switch e.Kind {
	case format.KindState:
		state, err := format.DecodeStateRecord(e.Data)
		if err != nil {
			d.line("offset %d: BAD %d bytes: %v", s.Offset, s.Bytes, err)
			return
		}
		d.line("offset %d: %d bytes: state: %s", s.Offset, s.Bytes, dumpState(state))
	case format.KindRequest:
		r := format.RequestOf(e)
		d.line("offset %d: %d bytes: request%s of a %s of id %d index %d term %d commit %s crc %08x", s.Offset, s.Bytes,
			dumpRequest(e),
			format.Kind(e.Data[0]), e.ID, e.Index, e.Term, dumpTime(e.CommitTime), r.CRC32C)
	case format.KindEmpty, format.KindConf:
		d.line("offset %d: %d bytes: %s index %d term %d data %d", s.Offset, s.Bytes, e.Kind, e.Index, e.Term, len(e.Data))
	default:
		d.line("offset %d: %d bytes: %s id %d index %d term %d %s commit %s timestamp %s%s%s", s.Offset, s.Bytes, e.Kind,
			e.ID,
			e.Index, e.Term, usedWord(e.Used), dumpTime(e.CommitTime), dumpTime(e.Timestamp), dumpRequest(e), dumpContent(e))
	}
}

func usedWord(used bool) string {
	if used {
		return "used"
	}
	return "superseded"
}

func dumpTime(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

func dumpRequest(e *format.Entry) string {
	if e.RequestID == [16]byte{} {
		return ""
	}
	return fmt.Sprintf(" request %x", e.RequestID)
}

func dumpContent(e *format.Entry) string {
	if e.Kind == format.KindDelete {
		return ""
	}
	what := fmt.Sprintf(" data %d", len(e.Data))
	if e.Codec == format.CodecBlob {
		ref, err := format.DecodeBlobRef(e.Data)
		if err != nil {
			what = " BAD " + err.Error()
		} else {
			what = " " + dumpRef(ref)
		}
	}
	attributes, err := format.DecodeAttributes(e.Attributes)
	switch {
	case err != nil:
		what += " BAD " + err.Error()
	case len(attributes) > 0:
		what += fmt.Sprintf(" attributes %d (%d bytes)", len(attributes), len(e.Attributes))
	}
	return what
}

func dumpRef(ref format.BlobRef) string {
	return fmt.Sprintf("%s of %d bytes, crc %08x", format.BlobName(ref.ID), ref.Size, ref.CRC32C)
}

func dumpState(s format.StateRecord) string {
	return fmt.Sprintf("term %d vote %d commit %d, synced to offset %d, index %d", s.Term, s.Vote, s.Commit,
		s.SyncedOffset, s.SyncedIndex)
}

func (d *dumper) hint(b []byte) error {
	h, err := format.DecodeHint(b)
	if err != nil {
		return err
	}
	d.line("hint of segment %x: version %d, indexes %d to %d, segment of %d bytes, last commit %s, %d rows", h.Segment,
		format.FormatVersion,
		h.FirstIndex, h.LastIndex, h.Bytes, dumpTime(h.LastCommit), len(h.IDs))
	d.termsAndBlobs(h.Terms, h.Blobs)
	for row, id := range h.IDs {
		d.line("%s %s", dumpRow(row, id, h.Places[row], h.FirstIndex+uint64(h.Indexes[row])), usedWord(h.IsUsed(row)))
	}
	return nil
}

func (d *dumper) termsAndBlobs(terms []format.TermRun, blobs []format.HintBlob) {
	for _, run := range terms {
		d.line("from index %d: term %d", run.FirstIndex, run.Term)
	}
	for _, blob := range blobs {
		d.line("index %d: %s", blob.Index, dumpRef(blob.Ref))
	}
}

func dumpRow(row int, id int64, place, at uint64) string {
	loc, word := index.Loc(place), "put"
	if loc.Tombstone() {
		word = "delete"
	}
	return fmt.Sprintf("row %d: %s id %d index %d offset %d at most %d bytes", row, word, id, at, loc.Offset(),
		loc.LengthBound())
}

// activeHint writes the pieces of an active segment's hint. It ignores bytes after the last whole piece.
func (d *dumper) activeHint(b []byte) error {
	row := 0
	for at := int64(0); at < int64(len(b)); {
		p, length, err := format.DecodePiece(b[at:])
		if err != nil {
			if at == 0 {
				return err
			}
			d.line("byte %d: what is from here on, %d bytes, does not count: %v", at, int64(len(b))-at, err)
			return nil
		}
		d.line("byte %d: piece of the hint of the active segment %x, first index %d: version %d, from offset %d to %d, "+
			"indexes %d to %d, last commit %s, %d rows", at, p.Segment,
			p.First, format.FormatVersion, p.Begin, p.End, p.LastBefore+1, p.Last, dumpTime(p.Table.LastCommit),
			len(p.Table.IDs))
		d.termsAndBlobs(p.Terms, p.Table.Blobs)
		for i, id := range p.Table.IDs {
			d.line("%s", dumpRow(row+i, id, p.Table.Places[i], p.First+uint64(p.Table.Indexes[i])))
		}
		row, at = row+len(p.Table.IDs), at+length
	}
	return nil
}

func (d *dumper) badCopies(bad [2]error) {
	for i, why := range bad {
		if why != nil {
			d.line("copy %d: BAD: %v", i, why)
		}
	}
}

func (d *dumper) manifest(b []byte) error {
	m, bad, err := format.DecodeManifest(b)
	d.badCopies(bad)
	if err != nil {
		return err
	}
	d.line("manifest of group %q (%s), store %s: version %d, sequence %d", m.Identity.Name, m.Identity.Group,
		m.Identity.Store, m.Version(), m.Sequence)
	d.line("compacted through %d (term %d), tombstone floor %d, accepted through %d, next segment %d", m.CompactedThrough,
		m.CompactedTerm, m.TombstoneFloor, m.AcceptedThrough, m.NextSegment)
	if m.HistoryKnown {
		d.line("history floor %d", m.HistoryFloor)
	} else {
		d.line("history floor not known")
	}
	d.line("state: %s", dumpState(m.HardState))
	if m.Conf == nil {
		d.line("no membership")
	} else {
		d.line("membership as of index %d: voters %v learners %v outgoing %v next learners %v, leaves joint by itself %v",
			m.ConfIndex,
			m.Conf.GetVoters(), m.Conf.GetLearners(), m.Conf.GetVotersOutgoing(), m.Conf.GetLearnersNext(),
			m.Conf.GetAutoLeave())
	}
	for _, s := range m.Segments {
		if s.Sealed() {
			d.line("%s: id %x, sealed, indexes %d to %d, %d bytes", format.SegmentName(s.Number), s.ID, s.FirstIndex,
				s.LastIndex, s.Bytes)
		} else {
			d.line("%s: id %x, active, from index %d", format.SegmentName(s.Number), s.ID, s.FirstIndex)
		}
	}
	return nil
}

func (d *dumper) mark(b []byte) error {
	_, found, bad := format.DecodeMarkFile(b)
	for slot := range format.MarkSlots {
		switch at := slot * format.BlockBytes; {
		case bad[slot] != nil:
			d.line("slot %d: BAD: %v", slot, bad[slot])
		case format.IsZero(b[at : at+format.BlockBytes]):
			d.line("slot %d: never written", slot)
		default:
			m, err := format.DecodeMark(b[at:at+format.BlockBytes], slot)
			if err != nil {
				return err
			}
			d.line("slot %d: sequence %d: segment %x is synced to offset %d, index %d", slot, m.Sequence, m.Segment, m.Offset,
				m.Index)
		}
	}
	if !found && bad[0] != nil && bad[1] != nil {
		return errors.Join(bad[0], bad[1])
	}
	return nil
}

func (d *dumper) blob([]byte) error {
	header := make([]byte, min(format.BlobHeaderBytes, d.size))
	if err := format.ReadFull(d.file, header, 0); err != nil {
		return err
	}
	ref, err := format.DecodeBlobHeader(header)
	if err != nil {
		return err
	}
	d.line("%s: version %d, file of %d bytes", dumpRef(ref), format.FormatVersion, d.size)
	bad, err := segio.CheckBlob(d.file, d.size, nil, segio.FrameBuffer())
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

func (d *dumper) replica(b []byte) error {
	f, bad, err := format.DecodeReplicaFile(b)
	d.badCopies(bad)
	if err != nil {
		return err
	}
	state := "member"
	if f.Joining {
		state = "joining"
	}
	if f.Founder {
		state += ", founder of a restored group that is not reported to etcd"
	}
	d.line("replica %016x of group %s, store %s, on volume %s: version %d, %s", f.RaftID, f.Group, f.Store, f.Volume,
		format.FormatVersion, state)
	return nil
}
