package segio

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// writeBytes is the number of bytes that the Writer writes at a time.
const writeBytes = 1 << 20

// Writer writes all entries of a new segment, for a compaction or a repair. The file with its header must exist under
// its final name (format.WriteSegmentHeader). The segment becomes valid when a manifest lists it. If a crash happens
// earlier, the file is garbage.
type Writer struct {
	Rows  *format.Rows // rows of the entries so far
	Bytes int64        // size of the file, including bytes that are still in buf
	file  vfs.File
	id    format.SegmentID
	first uint64
	buf   []byte // the last bytes of the file, which are not written yet
}

// NewWriter returns a writer that continues after a segment's header. It adds rows to the given table.
func NewWriter(f vfs.File, s format.ManifestSegment, rows *format.Rows) *Writer {
	return &Writer{Rows: rows, Bytes: format.SegmentHeaderBytes, file: f, id: s.ID, first: s.FirstIndex}
}

// Copy appends the entry in a whole frame without computing its checksum again, and returns the offset of the new
// frame.
func (w *Writer) Copy(step *FrameStep, used bool) (offset int64, err error) {
	at := len(w.buf)
	w.buf = append(w.buf, step.Raw...)
	format.MoveFrame(w.buf[at:], w.id, w.Bytes, used)
	return w.wrote(&step.Entry, at)
}

// Append appends an entry, and returns the offset of its frame.
func (w *Writer) Append(e *format.Entry) (offset int64, err error) {
	at := len(w.buf)
	w.buf = format.AppendFrame(w.buf, w.id, w.Bytes, e)
	return w.wrote(e, at)
}

// wrote adds a frame to Rows and Bytes. The frame is in buf and begins at position at. If buf is large enough, wrote
// writes it to the file.
func (w *Writer) wrote(e *format.Entry, at int) (offset int64, err error) {
	offset = w.Bytes
	bytes := int64(len(w.buf) - at)
	switch {
	case e.Kind == format.KindRequest:
		w.Rows.AddRequest(e)
	case e.Kind.IsVersion():
		w.Rows.Add(w.first, e, offset, bytes)
	}
	w.Bytes += bytes
	if len(w.buf) >= writeBytes {
		err = w.flush()
	}
	return offset, err
}

func (w *Writer) flush() error {
	_, err := w.file.WriteAt(w.buf, w.Bytes-int64(len(w.buf)))
	w.buf = w.buf[:0]
	return format.MarkShortage(err)
}

// Finish writes the remaining entries and makes all of them durable.
func (w *Writer) Finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	return format.MarkShortage(w.file.Sync())
}
