package peer

import (
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
)

// When groups move, most of the bytes that shards send to each other are chunks of files. With protobuf, gRPC copies
// each byte once to encode it, and twice, into newly allocated memory, to decode it. The code in this file avoids
// most of these copies. It sends the data directly from the buffer into which the data was read. On receipt it copies
// the data once, into a buffer that is reused for all chunks of a fetch. The encoding on the wire is the one that the
// .proto file defines.

// These are the numbers of the fields that hold a chunk.
const (
	chunkOfGroup protowire.Number = 2 // in FetchGroupResponse
	chunkOfBlob  protowire.Number = 1 // in FetchBlobResponse
)

// These are the field numbers of a FileChunk.
const (
	chunkName   protowire.Number = 1
	chunkOffset protowire.Number = 2
	chunkData   protowire.Number = 3
	chunkCRC    protowire.Number = 4
	chunkLast   protowire.Number = 5
)

// sentChunk is an outgoing message that holds a chunk.
type sentChunk struct {
	field  protowire.Number
	chunk  *peerv1.FileChunk // without the data, which buffer holds
	buffer *[]byte           // from message.Pool; sending returns the buffer to the pool
}

var _ message.Encoder = (*sentChunk)(nil)

// Encode implements message.Encoder.
func (c *sentChunk) Encode() (mem.BufferSlice, error) {
	inner, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 0, 64), c.chunk)
	if err != nil {
		return nil, fmt.Errorf("encoding a chunk: %w", err)
	}
	n := len(*c.buffer) // the data comes last, so that it stays in its own buffer and is not copied
	if n > 0 {
		inner = protowire.AppendTag(inner, chunkData, protowire.BytesType)
		inner = protowire.AppendVarint(inner, uint64(n))
	}
	head := protowire.AppendTag(make([]byte, 0, len(inner)+12), c.field, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(inner)+n))
	head = append(head, inner...)
	return mem.BufferSlice{mem.SliceBuffer(head), mem.NewBuffer(c.buffer, message.Pool)}, nil
}

// receivedChunk receives messages with a chunk, one after another.
type receivedChunk struct {
	field  protowire.Number
	whole  chunkMessage // decodes messages that read cannot decode
	buffer *[]byte      // from message.Pool
	// chunk is the chunk of the last message, or nil if that message had none. It is valid until the next message.
	chunk *peerv1.FileChunk
}

var _ message.Decoder = (*receivedChunk)(nil)

// chunkMessage is a message of the .proto file that may hold a chunk.
type chunkMessage interface {
	proto.Message
	GetChunk() *peerv1.FileChunk
}

// receiveChunks returns a receivedChunk for messages of the same type as whole, in which the given field holds the
// chunk.
func receiveChunks(field protowire.Number, whole chunkMessage) *receivedChunk {
	return &receivedChunk{field: field, whole: whole, buffer: message.Pool.Get(chunkBytesMax)}
}

// next returns a function that receives the next chunk of a stream. The argument receive receives one message from the
// stream.
func (c *receivedChunk) next(receive func(any) error) func() (*peerv1.FileChunk, error) {
	return func() (*peerv1.FileChunk, error) {
		if err := receive(c); err != nil {
			return nil, err
		}
		return c.chunk, nil
	}
}

// free releases the memory. The last chunk must not be used afterwards.
func (c *receivedChunk) free() {
	message.Pool.Put(c.buffer)
	c.buffer, c.chunk = nil, nil
}

// Decode implements message.Decoder.
func (c *receivedChunk) Decode(data mem.BufferSlice) error {
	r := data.Reader()
	c.chunk = c.read(r)
	if err := r.Close(); err != nil || c.chunk != nil {
		return err
	}
	// The message has something other than a chunk, or a chunk in the format of a later version.
	encoded := data.MaterializeToBuffer(message.Pool)
	defer encoded.Free()
	if err := proto.Unmarshal(encoded.ReadOnlyData(), c.whole); err != nil {
		return fmt.Errorf("decoding a chunk: %w", err)
	}
	c.chunk = c.whole.GetChunk()
	return nil
}

// read decodes a message that consists only of a chunk with known fields. It returns nil if the message does not have
// that form.
func (c *receivedChunk) read(r *mem.Reader) *peerv1.FileChunk {
	if tag, err := binary.ReadUvarint(r); err != nil || tag != protowire.EncodeTag(c.field, protowire.BytesType) {
		return nil
	}
	if n, err := binary.ReadUvarint(r); err != nil || n != uint64(r.Remaining()) {
		return nil
	}
	chunk := &peerv1.FileChunk{}
	for r.Remaining() > 0 {
		if !c.readField(r, chunk) {
			return nil
		}
	}
	return chunk
}

func (c *receivedChunk) readField(r *mem.Reader, chunk *peerv1.FileChunk) bool {
	tag, err := binary.ReadUvarint(r)
	if err != nil {
		return false
	}
	if tag == protowire.EncodeTag(chunkCRC, protowire.Fixed32Type) {
		var b [4]byte
		_, err := io.ReadFull(r, b[:])
		chunk.DataCrc32C = binary.LittleEndian.Uint32(b[:])
		return err == nil
	}
	value, err := binary.ReadUvarint(r) // the value of a varint field, or the length of a bytes field
	if err != nil {
		return false
	}
	switch tag {
	case protowire.EncodeTag(chunkOffset, protowire.VarintType):
		chunk.OffsetBytes = int64(value)
	case protowire.EncodeTag(chunkLast, protowire.VarintType):
		chunk.Last = value != 0
	case protowire.EncodeTag(chunkName, protowire.BytesType):
		if value > nameBytesMax {
			return false
		}
		name := make([]byte, value)
		_, err = io.ReadFull(r, name)
		chunk.Name = string(name)
		return err == nil && utf8.Valid(name)
	case protowire.EncodeTag(chunkData, protowire.BytesType):
		if value > uint64(len(*c.buffer)) {
			return false
		}
		chunk.Data = (*c.buffer)[:value]
		_, err = io.ReadFull(r, chunk.Data)
		return err == nil
	default:
		return false
	}
	return true
}
