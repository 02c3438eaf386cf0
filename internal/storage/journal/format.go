// Package journal implements a file on a volume that collects small writes from many groups, so that one sync makes all
// of them durable. The bytes are also written to the groups' own segments, which are synced later. After a crash,
// Replay writes the bytes to the segments again before anything else reads the groups. See docs/adr/0012-journal.md and
// docs/format-volume.md.
//
// The bytes at an offset in a segment are written only once, and a segment is identified by its random id. Therefore it
// does no harm if Replay writes the same bytes again, any number of times and to segments in any state.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// Range is a range of bytes in a group's segment.
type Range struct {
	Group   uuid.UUID
	Number  uint64  // number in the segment's file name
	Segment [8]byte // id of the segment
	Offset  int64
	Bytes   []byte
	// Before is 0 in a range that carries its own bytes. A range with a different Before carries no bytes (Bytes is
	// empty), and Replay writes nothing for it. It repeats a range of the last earlier record that carried bytes, and
	// Before is the number of bytes in that range. If that earlier record cannot be read, this shows which bytes it made
	// durable.
	Before int64
}

// named returns a range in the form in which the next record repeats it, with the number of its bytes in place of the
// bytes themselves.
func named(r *Range) Range {
	return Range{Group: r.Group, Number: r.Number, Segment: r.Segment, Offset: r.Offset, Before: int64(len(r.Bytes))}
}

// A record holds the ranges that one sync made durable. It is little-endian, begins at a multiple of 4 KiB, and is
// padded with zeros to the next multiple:
//
//	offset  0        8        12       16       24         32      36     40
//	       +--------+--------+--------+--------+----------+-------+------+----------
//	       | magic  | CRC32C | length | epoch  | sequence | count | zero | ranges...
//	       +--------+--------+--------+--------+----------+-------+------+----------
//
// Each range is padded with zeros to a multiple of 8:
//
//	 0       16       24           32       40       44     48
//	+-------+--------+------------+--------+--------+--------+---------
//	| group | number | segment id | offset | length | before | bytes...
//	+-------+--------+------------+--------+--------+--------+---------
//
// There are two kinds of ranges. In a range that carries bytes, before is 0. A range without bytes has length 0. It
// repeats a range of the last earlier record that carried bytes, and before is the number of bytes in the repeated
// range (Range.Before). A record begins with one range without bytes for each range with bytes of that earlier record,
// even if that record is in the other file.
//
// The CRC32C covers the bytes after it, up to the given length. The upper half of the epoch counts the uses of the
// files. The lower half is random, so that data of a client cannot be mistaken for a record. All records of one use of
// a file have the epoch of the file's first record. Records of a different epoch that follow them remain from an
// earlier use of the file. The first record of a use has sequence 0 and no ranges, and is durable before any other
// record is written. It fits into a sector, so that no power cut can tear it. A file that does not begin with such a
// record is damaged.
const (
	magic       = "SHEAFJNL"
	crcAt       = 8
	lengthAt    = 12
	epochAt     = 16
	sequenceAt  = 24
	countAt     = 32
	zeroAt      = 36
	headerBytes = 40

	rangeHeaderBytes = 48
	blockBytes       = 4096
	// recordBytesMax is the maximum size of a record. No batch is nearly that large.
	recordBytesMax = 64 << 20
)

var errRecord = errors.New("is no record")

// record is one record, as read from the file.
type record struct {
	epoch, sequence uint64
	ranges          []Range // Bytes of these ranges points into the content of the file
	before          []Range // repeats the ranges of the last earlier record that carried bytes
	at, bytes       int     // offset in the file, and size including padding
}

func padded(n, to int) int { return (n + to - 1) / to * to }

func rangeBytes(bytes int) int { return rangeHeaderBytes + padded(bytes, 8) }

// appendRange appends a range to a record that is being encoded.
func appendRange(b []byte, r *Range) []byte {
	from := len(b)
	b = append(b, r.Group[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.Number)
	b = append(b, r.Segment[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Bytes)))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Before))
	b = append(b, r.Bytes...)
	return zeroTo(b, from+rangeBytes(len(r.Bytes)))
}

func zeroTo(b []byte, length int) []byte {
	var zeros [blockBytes]byte
	return append(b, zeros[:length-len(b)]...)
}

// encode returns the encoded record, padded to a multiple of the block size. It reuses the memory of b.
func encode(b []byte, epoch, sequence uint64, before, ranges []Range) []byte {
	b = append(b[:0], magic...)
	b = zeroTo(b, headerBytes)
	for i := range before {
		b = appendRange(b, &before[i])
	}
	for i := range ranges {
		b = appendRange(b, &ranges[i])
	}
	binary.LittleEndian.PutUint32(b[lengthAt:], uint32(len(b)))
	binary.LittleEndian.PutUint64(b[epochAt:], epoch)
	binary.LittleEndian.PutUint64(b[sequenceAt:], sequence)
	binary.LittleEndian.PutUint32(b[countAt:], uint32(len(before)+len(ranges)))
	binary.LittleEndian.PutUint32(b[crcAt:], crc32c.Of(b[lengthAt:]))
	return zeroTo(b, padded(len(b), blockBytes))
}

// bytesOf returns the size, including padding, of a record with the given ranges.
func bytesOf(before, ranges []Range) int {
	n := headerBytes + len(before)*rangeHeaderBytes
	for i := range ranges {
		n += rangeBytes(len(ranges[i].Bytes))
	}
	return padded(n, blockBytes)
}

// decode decodes the record at the beginning of b, which may hold any bytes.
func decode(b []byte) (record, error) {
	if len(b) < headerBytes || string(b[:len(magic)]) != magic {
		return record{}, errRecord
	}
	length := int(binary.LittleEndian.Uint32(b[lengthAt:]))
	if length < headerBytes || length > len(b) || length > recordBytesMax {
		return record{}, fmt.Errorf("%w: a length of %d", errRecord, length)
	}
	if crc32c.Of(b[lengthAt:length]) != binary.LittleEndian.Uint32(b[crcAt:]) {
		return record{}, fmt.Errorf("%w: its checksum is wrong", errRecord)
	}
	r := record{
		epoch: binary.LittleEndian.Uint64(b[epochAt:]), sequence: binary.LittleEndian.Uint64(b[sequenceAt:]),
		bytes: padded(length, blockBytes),
	}
	rest := b[headerBytes:length]
	for range binary.LittleEndian.Uint32(b[countAt:]) {
		if len(rest) < rangeHeaderBytes {
			return record{}, fmt.Errorf("%w: a range is cut off", errRecord)
		}
		one := Range{
			Group: uuid.UUID(rest[:16]), Number: binary.LittleEndian.Uint64(rest[16:]), Segment: [8]byte(rest[24:32]),
		}
		offset, bytes := binary.LittleEndian.Uint64(rest[32:]), binary.LittleEndian.Uint32(rest[40:])
		if offset > math.MaxInt64-uint64(bytes) || rangeBytes(int(bytes)) > len(rest) {
			return record{}, fmt.Errorf("%w: a range of %d bytes at offset %d", errRecord, bytes, offset)
		}
		one.Offset, one.Bytes = int64(offset), rest[rangeHeaderBytes:rangeHeaderBytes+bytes:rangeHeaderBytes+bytes]
		if one.Before = int64(binary.LittleEndian.Uint32(rest[44:])); one.Before > 0 && bytes == 0 {
			r.before = append(r.before, one)
		} else {
			one.Before = 0
			r.ranges = append(r.ranges, one)
		}
		rest = rest[rangeBytes(int(bytes)):]
	}
	if len(rest) > 0 {
		return record{}, fmt.Errorf("%w: %d bytes behind its ranges", errRecord, len(rest))
	}
	return r, nil
}
