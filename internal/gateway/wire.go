package gateway

import (
	"encoding/binary"
	"errors"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// errWire says that the bytes are not a protobuf message.
var errWire = errors.New("the message is not valid protobuf")

// scanner iterates over the fields of a protobuf message that lies in several buffers, without joining them. A copy of
// a scanner is a bookmark. Source of the encoding: protobuf.dev/programming-guides/encoding.
type scanner struct {
	cur  []byte // may be longer than left
	rest mem.BufferSlice
	left int // bytes to the end of the message
}

func scan(bufs mem.BufferSlice) scanner { return scanner{rest: bufs, left: bufs.Len()} }

// fill makes cur non-empty. It is only called if left > 0.
func (s *scanner) fill() {
	for len(s.cur) == 0 && len(s.rest) > 0 {
		s.cur, s.rest = s.rest[0].ReadOnlyData(), s.rest[1:]
	}
}

func (s *scanner) uvarint() (uint64, error) {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		if s.left == 0 {
			return 0, errWire
		}
		s.fill()
		b := s.cur[0]
		s.cur, s.left = s.cur[1:], s.left-1
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errWire
}

// skip skips n bytes.
func (s *scanner) skip(n int) error {
	if n < 0 || n > s.left {
		return errWire
	}
	s.left -= n
	for n > len(s.cur) {
		n -= len(s.cur)
		s.cur = nil
		s.fill()
	}
	s.cur = s.cur[n:]
	return nil
}

// take returns the next n bytes: a slice of the buffer if they lie in one, else a copy.
func (s *scanner) take(n int) ([]byte, error) {
	if n < 0 || n > s.left {
		return nil, errWire
	}
	if n == 0 {
		return nil, nil
	}
	s.fill()
	if n <= len(s.cur) {
		b := s.cur[:n:n]
		s.cur, s.left = s.cur[n:], s.left-n
		return b, nil
	}
	return s.appendTo(make([]byte, 0, n), n), nil
}

// appendTo appends the next n bytes. The caller knows that they exist.
func (s *scanner) appendTo(dst []byte, n int) []byte {
	s.left -= n
	for n > 0 {
		s.fill()
		m := min(n, len(s.cur))
		dst = append(dst, s.cur[:m]...)
		s.cur, n = s.cur[m:], n-m
	}
	return dst
}

// next reads the tag of the next field and, for a field with a length, the length.
func (s *scanner) next() (number protowire.Number, kind protowire.Type, length int, err error) {
	tag, err := s.uvarint()
	if err != nil {
		return 0, 0, 0, err
	}
	number, kind = protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return 0, 0, 0, errWire
	}
	if kind == protowire.BytesType {
		n, err := s.uvarint()
		if err != nil || n > uint64(s.left) {
			return 0, 0, 0, errWire
		}
		length = int(n)
	}
	return number, kind, length, nil
}

// skipValue skips the value of a field whose tag (and length) next() has read.
func (s *scanner) skipValue(kind protowire.Type, length int) error {
	switch kind {
	case protowire.VarintType:
		_, err := s.uvarint()
		return err
	case protowire.Fixed64Type:
		return s.skip(8)
	case protowire.Fixed32Type:
		return s.skip(4)
	case protowire.BytesType:
		return s.skip(length)
	default: // groups are not part of this API
		return errWire
	}
}

// sub returns a scanner over the next n bytes and skips them.
func (s *scanner) sub(n int) (scanner, error) {
	inner := *s
	inner.left = n
	return inner, s.skip(n)
}

// key is the part of a request that routing needs.
type key struct {
	present   bool
	id        int64
	group     []byte // aliases the message if possible
	requestID bool   // the write can be retried
}

// fields holds the field numbers of a request message. A number is 0 if the message has no such field.
type fields struct {
	header    protowire.Number // message that holds the others (UploadRequest)
	key       protowire.Number // RecordKey
	id        protowire.Number // bare id (FindRequest)
	group     protowire.Number // bare group (admin requests)
	requestID protowire.Number
}

// readKey reads the key of a request, wherever it is in the message. As in protobuf, the last one counts if a field
// occurs twice, and messages that occur twice are merged.
func (f *fields) readKey(s scanner, k *key) error {
	for s.left > 0 {
		number, kind, length, err := s.next()
		if err != nil {
			return err
		}
		switch {
		case kind == protowire.BytesType && number == f.header:
			inner, err := s.sub(length)
			if err != nil {
				return err
			}
			plain := *f
			plain.header = 0
			if err := plain.readKey(inner, k); err != nil {
				return err
			}
		case kind == protowire.BytesType && number == f.key:
			inner, err := s.sub(length)
			if err != nil {
				return err
			}
			k.present = true
			if err := recordKey.readKey(inner, k); err != nil {
				return err
			}
		case kind == protowire.Fixed64Type && number == f.id:
			b, err := s.take(8)
			if err != nil {
				return err
			}
			k.present = true
			k.id = int64(binary.LittleEndian.Uint64(b))
		case kind == protowire.BytesType && number == f.group:
			if k.group, err = s.take(length); err != nil {
				return err
			}
		case kind == protowire.BytesType && number == f.requestID:
			k.requestID = length > 0
			if err := s.skip(length); err != nil {
				return err
			}
		default:
			if err := s.skipValue(kind, length); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordKey holds the field numbers of RecordKey itself.
var recordKey = fields{id: 1, group: 2}

// eachItem calls the function each for every item of a message that consists only of `repeated Item items = 1`. begin
// and end are the item's place in the message, including its tag and length.
func eachItem(bufs mem.BufferSlice, each func(item scanner, begin, end int) error) error {
	s := scan(bufs)
	total := s.left
	for s.left > 0 {
		begin := total - s.left
		number, kind, length, err := s.next()
		if err != nil {
			return err
		}
		if number != 1 || kind != protowire.BytesType {
			if err := s.skipValue(kind, length); err != nil {
				return err
			}
			continue
		}
		item, err := s.sub(length)
		if err != nil {
			return err
		}
		if err := each(item, begin, total-s.left); err != nil {
			return err
		}
	}
	return nil
}
