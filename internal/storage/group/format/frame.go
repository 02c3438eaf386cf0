package format

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// A frame has this layout, with little-endian numbers:
//
//	 0        4          8          12   13   14   15   16           20            24
//	 ├ marker ┼ frame CRC ┼ entry CRC ┼used┼ 0  ┼kind┼codec┼ attr. len. ┼ data length ┤
//	24         32         40         48           56           64                 80
//	 ├── id ───┼── index ─┼── term ──┼ commit time ┼ timestamp ──┼─── request id ────┤
//	80
//	 ├── attributes ──┼── data ──┼── zeros to a multiple of 8 ──┤
//
// The frame CRC covers bytes 8 to 79, then the segment id and the offset of the frame. The entry CRC covers the bytes
// from 14 to the end of the data. They are contiguous, so that one call computes the CRC.
const (
	FrameMarker = 0xe66853f5 // bytes F5 53 68 E6; the byte F5 never occurs in UTF-8

	atFrameCRC   = 4
	AtEntryCRC   = 8
	atUsed       = 12
	AtKind       = 14
	atAttributes = 16
	atData       = 20
	atID         = 24
	atIndex      = 32
	atTerm       = 40
	atCommitTime = 48
	atTimestamp  = 56
	atRequestID  = 64
)

// FrameBytes returns the length of a frame in the file: header, attributes, data, and padding to a multiple of 8.
func FrameBytes(attributesBytes, dataBytes int) int64 {
	return (FrameHeaderBytes + int64(attributesBytes) + int64(dataBytes) + 7) &^ 7
}

// AppendFrame encodes an entry as a frame for the given offset in the segment, and computes both CRCs. The entry must
// pass Check, because DecodeFrame would refuse the frame otherwise. The used flag has a meaning only for puts and
// deletes.
func AppendFrame(dst []byte, segment SegmentID, offset int64, e *Entry) []byte {
	begin := len(dst)
	var header [FrameHeaderBytes]byte
	le := binary.LittleEndian
	le.PutUint32(header[:], FrameMarker)
	if e.Used && e.Kind.IsVersion() {
		header[atUsed] = 1
	}
	header[AtKind] = byte(e.Kind)
	header[AtKind+1] = byte(e.Codec)
	le.PutUint32(header[atAttributes:], uint32(len(e.Attributes)))
	le.PutUint32(header[atData:], uint32(len(e.Data)))
	le.PutUint64(header[atID:], uint64(e.ID))
	le.PutUint64(header[atIndex:], e.Index)
	le.PutUint64(header[atTerm:], e.Term)
	le.PutUint64(header[atCommitTime:], uint64(e.CommitTime))
	le.PutUint64(header[atTimestamp:], uint64(e.Timestamp))
	copy(header[atRequestID:], e.RequestID[:])
	dst = append(dst, header[:]...)
	dst = append(dst, e.Attributes...)
	dst = append(dst, e.Data...)
	le.PutUint32(dst[begin+AtEntryCRC:], Checksum(dst[begin+AtKind:]))
	var zeros [8]byte
	if n := len(dst) - begin; n%8 != 0 {
		dst = append(dst, zeros[n%8:]...)
	}
	le.PutUint32(dst[begin+atFrameCRC:], frameChecksum(dst[begin:], segment, offset))
	return dst
}

// AppendStateFrame encodes a state record as a frame for the given offset in the segment.
func AppendStateFrame(dst []byte, segment SegmentID, offset int64, s StateRecord) []byte {
	return AppendFrame(dst, segment, offset, &Entry{Kind: KindState, Data: s.Encode()})
}

// EntryChecksum returns the entry CRC of a frame that was checked. Two entries with the same index and entry CRC are
// equal, apart from the used flag.
func EntryChecksum(frame []byte) uint32 { return binary.LittleEndian.Uint32(frame[AtEntryCRC:]) }

// MoveFrame adapts a frame in place to a new offset and used flag. It updates the frame CRC and keeps the entry CRC.
// The frame must be one that DecodeFrame accepts at its old offset.
func MoveFrame(frame []byte, segment SegmentID, offset int64, used bool) {
	frame[atUsed] = 0
	if used && Kind(frame[AtKind]).IsVersion() {
		frame[atUsed] = 1
	}
	binary.LittleEndian.PutUint32(frame[atFrameCRC:], frameChecksum(frame, segment, offset))
}

func frameChecksum(frame []byte, segment SegmentID, offset int64) uint32 {
	crc := crc32.Update(0, crc32c.Table, frame[AtEntryCRC:FrameHeaderBytes])
	crc = checksumWord(crc, binary.LittleEndian.Uint64(segment[:]))
	return checksumWord(crc, uint64(offset))
}

// DecodeHeader checks the frame CRC of the header at the beginning of buf, which has at least FrameHeaderBytes bytes.
// It returns the entry without attributes and data, their lengths, and the length of the frame in the file. The only
// error that it returns is errFrameHeader, not wrapped.
func DecodeHeader(buf []byte, segment SegmentID, offset int64) (e Entry, attributesBytes, dataBytes int,
	frameBytes int64, err error) {
	le := binary.LittleEndian
	if len(buf) < FrameHeaderBytes || le.Uint32(buf) != FrameMarker ||
		le.Uint32(buf[atFrameCRC:]) != frameChecksum(buf, segment, offset) {
		return Entry{}, 0, 0, 0, errFrameHeader
	}
	e.Kind = Kind(buf[AtKind])
	e.Codec = Codec(buf[AtKind+1])
	e.Used = buf[atUsed] == 1
	e.ID = int64(le.Uint64(buf[atID:]))
	e.Index = le.Uint64(buf[atIndex:])
	e.Term = le.Uint64(buf[atTerm:])
	e.CommitTime = int64(le.Uint64(buf[atCommitTime:]))
	e.Timestamp = int64(le.Uint64(buf[atTimestamp:]))
	copy(e.RequestID[:], buf[atRequestID:])
	attributes, data := le.Uint32(buf[atAttributes:]), le.Uint32(buf[atData:])
	if max(e.Index, e.Term) > NumberMax || buf[atUsed] > 1 || buf[atUsed+1] != 0 || e.Used && !e.Kind.IsVersion() ||
		attributes > AttributesBytesMax || data > DataBytesMax ||
		e.refusal(int(attributes), int(data)) != "" {
		return Entry{}, 0, 0, 0, errFrameHeader
	}
	attributesBytes, dataBytes = int(attributes), int(data)
	return e, attributesBytes, dataBytes, FrameBytes(attributesBytes, dataBytes), nil
}

// DecodeFrame checks the whole frame at the beginning of buf, including both CRCs and the padding. The entry's
// Attributes and Data alias buf. If the error is ErrFrameContent, frameBytes is valid and the entry has the fields of
// the header. DecodeFrame allocates no memory.
func DecodeFrame(buf []byte, segment SegmentID, offset int64) (e Entry, frameBytes int64, err error) {
	e, attributesBytes, dataBytes, frameBytes, err := DecodeHeader(buf, segment, offset)
	if err != nil {
		return e, 0, err
	}
	return e, frameBytes, e.DecodeContent(buf, attributesBytes, dataBytes, frameBytes)
}

// DecodeContent checks the bytes after a header, and sets Attributes and Data.
func (e *Entry) DecodeContent(buf []byte, attributesBytes, dataBytes int, frameBytes int64) error {
	if frameBytes > int64(len(buf)) {
		return ErrFrameContent
	}
	dataAt := FrameHeaderBytes + attributesBytes
	end := dataAt + dataBytes
	if binary.LittleEndian.Uint32(buf[AtEntryCRC:]) != Checksum(buf[AtKind:end]) {
		return ErrFrameContent
	}
	for _, c := range buf[end:frameBytes] {
		if c != 0 {
			return ErrFrameContent
		}
	}
	if attributesBytes > 0 {
		e.Attributes = buf[FrameHeaderBytes:dataAt:dataAt]
	}
	e.Data = buf[dataAt:end:end]
	if e.Kind == KindRequest && !isRequestData(e.Data) {
		return ErrFrameContent
	}
	return nil
}

// IsVersion reports whether an entry of this kind is a version of a record, that is, a put or a delete.
func (k Kind) IsVersion() bool { return k == KindPut || k == KindDelete }

// Check returns an error if the entry cannot be stored. It checks the sizes of the attributes, but not their content.
func (e *Entry) Check() error {
	if why := e.refusal(len(e.Attributes), len(e.Data)); why != "" {
		return fmt.Errorf("%s entry with index %d, id %d: %s", e.Kind, e.Index, e.ID, why)
	}
	return nil
}

// refusal returns the rule for entries of this kind that the entry violates, or an empty string if it violates none.
func (e *Entry) refusal(attributesBytes, dataBytes int) string {
	switch e.Kind {
	case KindPut:
		switch {
		case attributesBytes > AttributesBytesMax:
			return "attributes are too long"
		case dataBytes > DataBytesMax:
			return "data is too long for an entry: it must be in a blob"
		case e.Codec > CodecBlob:
			return "codec is unknown"
		case e.Codec == CodecBlob && dataBytes != BlobRefBytes:
			return "reference to a blob has the wrong length"
		}
	case KindDelete:
		if attributesBytes+dataBytes != 0 || e.Codec != CodecPlain {
			return "a delete has neither attributes nor data"
		}
	case KindRequest: // DecodeContent and DecodePayload check what the data contains
		if attributesBytes != 0 || dataBytes != requestDataBytes || e.Codec != CodecPlain || e.Timestamp != 0 ||
			e.RequestID == [16]byte{} {
			return "a remembered request has a request id, no attributes, no timestamp and 8 bytes of data"
		}
	case KindEmpty, KindConf, KindState:
		if why := e.internalRefusal(attributesBytes, dataBytes); why != "" {
			return why
		}
	default:
		return "kind is unknown"
	}
	if e.Index == 0 && e.Kind != KindState {
		return "index is zero"
	}
	return ""
}

func (e *Entry) internalRefusal(attributesBytes, dataBytes int) string {
	if e.ID != 0 || e.Codec != CodecPlain || attributesBytes != 0 || e.CommitTime != 0 || e.Timestamp != 0 ||
		e.RequestID != [16]byte{} {
		return "an internal entry has no id, attributes, times or request id"
	}
	switch e.Kind {
	case KindEmpty:
		if dataBytes != 0 {
			return "an empty entry has no data"
		}
	case KindConf:
		if dataBytes > DataBytesMax {
			return "membership change is too long"
		}
	case KindState:
		if dataBytes != StateRecordBytes || e.Index != 0 || e.Term != 0 {
			return "a state record has 40 bytes and neither index nor term"
		}
	}
	return ""
}

var kindWords = [...]string{KindPut: "put", KindDelete: "delete", KindEmpty: "empty", KindConf: "conf",
	KindState: "state", KindRequest: "request"}

// String returns the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindWords) && k != 0 {
		return kindWords[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}
