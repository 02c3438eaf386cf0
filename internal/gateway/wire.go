package gateway

import (
	"encoding/binary"
	"errors"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
)

// frame is one gRPC message as undecoded bytes. It holds a reference to its buffers until it is freed or sent.
type frame struct {
	bufs mem.BufferSlice
	// If keep is true, sending takes additional references, so that the frame can be sent again. Otherwise sending
	// consumes the frame's own references.
	keep bool
}

// free releases the buffers. A frame may be freed more than once.
func (f *frame) free() {
	f.bufs.Free()
	f.bufs = nil
}

// DecodeInto implements message.Undecoded.
func (f *frame) DecodeInto(m proto.Message) error { return message.Codec{}.Unmarshal(f.bufs, m) }

// codec passes frames through unchanged and delegates all other messages to the protobuf codec.
type codec struct{ proto message.Codec }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return c.proto.Marshal(v)
	}
	bufs := f.bufs
	if f.keep {
		bufs.Ref()
	} else {
		f.bufs = nil
	}
	return bufs, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.proto.Unmarshal(data, v)
	}
	data.Ref() // needed because the caller frees its own references when this function has returned
	f.bufs = data
	return nil
}

// Name implements encoding.CodecV2. On the wire, frames are ordinary protobuf messages, so the name is that of the
// protobuf codec.
func (c codec) Name() string { return c.proto.Name() }

// errWire means that the bytes are not a protobuf message.
var errWire = errors.New("the message is not valid protobuf")

// scanner iterates over the fields of a protobuf message that lies in several buffers, without joining them. To
// remember a position, copy the scanner. The encoding is described at protobuf.dev/programming-guides/encoding.
type scanner struct {
	cur  []byte // the unread part of a buffer; may extend beyond the message
	rest mem.BufferSlice
	left int // remaining bytes of the message
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

// take returns the next n bytes. If they are in one buffer, the result is a slice of that buffer, and otherwise a copy.
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

// appendTo appends the next n bytes. The caller must know that they exist.
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

// next reads the next field. The result value is a scanner over the field's value, without its tag and length.
func (s *scanner) next() (number protowire.Number, kind protowire.Type, value scanner, err error) {
	tag, err := s.uvarint()
	if err != nil {
		return 0, 0, scanner{}, err
	}
	number, kind = protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return 0, 0, scanner{}, errWire
	}
	length := uint64(0)
	if kind == protowire.BytesType {
		if length, err = s.uvarint(); err != nil || length > uint64(s.left) {
			return 0, 0, scanner{}, errWire
		}
	}
	value = *s
	switch kind {
	case protowire.VarintType:
		_, err = s.uvarint()
	case protowire.Fixed64Type:
		err = s.skip(8)
	case protowire.Fixed32Type:
		err = s.skip(4)
	case protowire.BytesType:
		err = s.skip(int(length))
	default: // protobuf groups are not part of this API
		err = errWire
	}
	value.left -= s.left
	return number, kind, value, err
}

// find returns the value of a field. If the field occurs twice, the last value is returned, as in protobuf. If the
// field is absent, the value is empty.
func (s scanner) find(field protowire.Number, of protowire.Type) (found scanner, err error) {
	for s.left > 0 {
		number, kind, value, err := s.next()
		if err != nil {
			return scanner{}, err
		}
		if number == field && kind == of {
			found = value
		}
	}
	return found, nil
}

// key is the part of a request that routing needs.
type key struct {
	present   bool
	id        int64
	group     []byte // shares memory with the message if possible
	requestID bool   // whether the request has a request id, so that a write can be retried
}

// fields holds the field numbers of a request message. A number is 0 if the message has no such field.
type fields struct {
	header    protowire.Number // number of the field whose message holds the other fields (UploadRequest)
	key       protowire.Number // a RecordKey
	id        protowire.Number // number of an id field, either outside a RecordKey (FindRequest) or in RecordKey itself
	group     protowire.Number // number of the group field in RecordKey itself
	requestID protowire.Number
}

// readKey reads the key of a request, wherever it is in the message. As in protobuf, the last value is used if a
// scalar field occurs twice, and messages that occur twice are merged.
func (f *fields) readKey(s scanner, k *key) error {
	for s.left > 0 {
		number, kind, value, err := s.next()
		if err != nil {
			return err
		}
		switch {
		case kind == protowire.BytesType && number == f.header:
			plain := *f
			plain.header = 0
			err = plain.readKey(value, k)
		case kind == protowire.BytesType && number == f.key:
			k.present = true
			err = recordKey.readKey(value, k)
		case kind == protowire.Fixed64Type && number == f.id:
			var b []byte
			if b, err = value.take(8); err == nil {
				k.present, k.id = true, int64(binary.LittleEndian.Uint64(b))
			}
		case kind == protowire.BytesType && number == f.group:
			k.group, err = value.take(value.left)
		case kind == protowire.BytesType && number == f.requestID:
			k.requestID = value.left > 0
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recordKey holds the field numbers of RecordKey itself.
var recordKey = fields{id: 1, group: 2}

// eachItem calls the function each for every item in a message that consists only of `repeated Item items = 1`. The
// arguments begin and end of that function are the offsets of the item in the message, including its tag and length.
func eachItem(bufs mem.BufferSlice, each func(item scanner, begin, end int) error) error {
	s := scan(bufs)
	total := s.left
	for s.left > 0 {
		begin := total - s.left
		number, kind, item, err := s.next()
		if err == nil && number == 1 && kind == protowire.BytesType {
			err = each(item, begin, total-s.left)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
