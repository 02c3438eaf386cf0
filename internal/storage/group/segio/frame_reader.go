package segio

import (
	"encoding/binary"
	"io"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// FrameStatus describes a range of bytes that a FrameReader has examined.
type FrameStatus int

// These are the values of FrameStatus.
const (
	FrameWhole FrameStatus = iota + 1 // a frame with correct CRCs and padding
	// FrameContent is a frame with a valid header and damaged content. FrameStep.Entry has the fields of the header.
	FrameContent
	FrameBad   // bytes that are not a frame
	FrameZeros // zeros, which are preallocated space at the end of an active segment, or a hole
	// FramePassed is a frame with a valid header whose content was not checked, because Pass returned true.
	FramePassed
)

var frameStatusWords = [...]string{FrameWhole: "whole frame", FrameContent: "entry content is bad",
	FrameBad: "no frame can be read", FrameZeros: "zeros where frames should be", FramePassed: "not looked at"}

// String returns a description of the status for Damage.What.
func (s FrameStatus) String() string { return frameStatusWords[s] }

// FrameStep is one range of a walk. The ranges of a walk are adjacent.
type FrameStep struct {
	Status     FrameStatus
	Offset     int64 // offset in the segment, in bytes
	Bytes      int64
	Unreadable bool // whether the device failed to read a part of the range
	// Entry is the whole entry if Status is FrameWhole. It lacks attributes and data if Status is FrameContent or
	// FramePassed.
	Entry format.Entry
	Raw   []byte // the frame's bytes; set only with FrameWhole
}

// FrameReader walks the frames of a segment from an offset to its end. After bad bytes it continues at the next marker
// with a valid header. It holds at most one window of memory, so a wrong length in the file cannot make it allocate
// more. A FrameReader is not safe for concurrent use.
//
//	for r.Next() { step := r.Step() ... }
//	err := r.Err()
//
// Next returns false at the end. It returns false earlier only if Err returns an error. Unreadable sectors do not end a
// walk.
type FrameReader struct {
	Window
	segment format.SegmentID
	offset  int64 // offset of the next step
	step    FrameStep
	// Pass, if not nil, is called for each frame with a valid header. If it returns true, the frame's content is not
	// read.
	Pass func(step *FrameStep) bool
}

// NewFrameReader returns a reader that reads src, the file of the segment, between two offsets. The argument from must
// be a multiple of 8, and must be an offset at which a frame begins, or began before it was damaged. Reads are large
// and aligned, so src may be a file opened with OpenDirect. Entries must not be used after the next step.
func NewFrameReader(src io.ReaderAt, segment format.SegmentID, from, to int64) *FrameReader {
	return &FrameReader{Window: OpenWindow(src, from, to), segment: segment, offset: from}
}

// NewFrameReaderBytes returns a reader for the image of a segment's file. The image begins with the file's first byte.
// Entries alias the image.
func NewFrameReaderBytes(image []byte, segment format.SegmentID, from int64) *FrameReader {
	return &FrameReader{Window: Window{bytes: image, end: int64(len(image))}, segment: segment, offset: from}
}

// Step returns the range to which the last call to Next moved.
func (r *FrameReader) Step() *FrameStep { return &r.step }

// Next moves to the next range. It returns false at the end, and after an error, which Err returns.
func (r *FrameReader) Next() bool {
	if r.offset >= r.end || r.failed != nil {
		return false
	}
	buf := r.Fill(r.offset, format.FrameHeaderBytes)
	if r.failed != nil {
		return false
	}
	e, attributesBytes, dataBytes, frameBytes, err := format.DecodeHeader(buf, r.segment, r.offset)
	if err != nil {
		r.skip()
		return r.failed == nil
	}
	r.step = FrameStep{Status: FramePassed, Offset: r.offset, Bytes: frameBytes, Entry: e}
	if r.Pass != nil && r.offset+frameBytes <= r.end && r.Pass(&r.step) {
		r.offset += frameBytes
		return true
	}
	buf = r.Fill(r.offset, frameBytes)
	if r.failed != nil {
		return false
	}
	r.step.Status = FrameWhole
	if err := r.step.Entry.DecodeContent(buf, attributesBytes, dataBytes, frameBytes); err != nil {
		r.step.Status = FrameContent
		r.step.Bytes = min(frameBytes, r.end-r.offset)
		r.step.Unreadable = r.isUnreadable(r.offset, r.step.Bytes)
	} else {
		r.step.Raw = buf[:frameBytes:frameBytes]
	}
	r.offset += r.step.Bytes
	return true
}

// skip makes one step of all bytes before the next valid header. If there is no further valid header, the zeros at the
// end become a separate step.
func (r *FrameReader) skip() {
	begin, at := r.offset, r.offset
	dirty := begin // end of the last nonzero word so far
	found := false
	for !found && at < r.end && r.failed == nil {
		buf := r.Fill(at, min(WindowBytes/2, r.end-at))
		n := 0
		for ; n+format.FrameHeaderBytes <= len(buf); n += 8 {
			word := binary.LittleEndian.Uint64(buf[n:])
			if word == 0 {
				continue
			}
			if uint32(word) == format.FrameMarker {
				if _, _, _, _, err := format.DecodeHeader(buf[n:], r.segment, at+int64(n)); err == nil {
					found = true
					break
				}
			}
			dirty = at + int64(n) + 8
		}
		at += int64(n)
		if !found && r.end-at < format.FrameHeaderBytes {
			for i, c := range buf[n:] {
				if c != 0 {
					dirty = min((at+int64(i)+8)&^7, r.end)
				}
			}
			at = r.end
		}
	}
	r.step = FrameStep{Status: FrameBad, Offset: begin, Bytes: at - begin}
	switch {
	case dirty == begin:
		r.step.Status = FrameZeros
	case !found:
		r.step.Bytes = dirty - begin
	}
	r.step.Unreadable = r.isUnreadable(begin, r.step.Bytes)
	r.offset += r.step.Bytes
}

// Unreadable returns a phrase for a step's description. It returns an empty string unless the device failed to read the
// range.
func Unreadable(s *FrameStep) string {
	if s.Unreadable {
		return ", and the device cannot read it"
	}
	return ""
}

// FrameBuffers holds buffers created by FrameBuffer, as *[]byte. All readers in the process share them.
var FrameBuffers = sync.Pool{New: func() any { b := FrameBuffer(); return &b }}
