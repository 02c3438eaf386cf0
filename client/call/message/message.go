// Package message defines how gRPC messages are stored in memory: a protobuf codec, and its buffer pool.
package message

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Pool holds message buffers. gRPC's own pool has no size between 32 KiB and 1 MiB, and clears a whole buffer before
// use. Clearing is most of a batch's cost, because for a message of 100 KiB that pool clears 1 MiB. Pool has a size for
// every power of two and clears nothing, so a buffer must be written completely before it is read.
var Pool mem.BufferPool = &pool{}

const (
	sizeBitsMin = 10 // smaller buffers are left to the garbage collector
	sizeBitsMax = 24 // larger buffers are left to the garbage collector
)

type pool struct {
	sizes [sizeBitsMax + 1]sync.Pool // sizes[i] holds *[]byte with a capacity of 1<<i
}

// Get implements mem.BufferPool. The buffer still contains its previous user's bytes.
func (p *pool) Get(length int) *[]byte {
	size := bits.Len(uint(max(length-1, 0)))
	if size > sizeBitsMax {
		return new(make([]byte, length))
	}
	size = max(size, sizeBitsMin)
	if b, ok := p.sizes[size].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	return new(make([]byte, length, 1<<size))
}

// Put implements mem.BufferPool.
func (p *pool) Put(b *[]byte) {
	size := bits.Len(uint(cap(*b))) - 1
	if size < sizeBitsMin || size > sizeBitsMax || cap(*b) != 1<<size {
		return
	}
	p.sizes[size].Put(b)
}

// Encoder is a message that encodes itself in protobuf format. It is for messages so large that their bytes should not
// be copied.
type Encoder interface {
	// Encode returns the encoded message. gRPC frees its buffers when they are sent.
	Encode() (mem.BufferSlice, error)
}

// Decoder is a message that decodes itself. It is for messages so large that their bytes should not be copied.
type Decoder interface {
	// Decode decodes a message. Afterwards it may keep a reference to a buffer of data only if it has increased the
	// buffer's reference count.
	Decode(data mem.BufferSlice) error
}

// Undecoded is a request that remains encoded, because its handler forwards its bytes. Interceptors receive the
// Undecoded instead of the message.
type Undecoded interface {
	// DecodeInto decodes the request into a message of the method's request type. Afterwards the message has no reference
	// to the bytes of the request.
	DecodeInto(m proto.Message) error
}

// Codec is gRPC's protobuf codec with buffers of Pool. The wire format is unchanged.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(Encoder); ok {
		return e.Encode()
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encoding a message: %T is no protobuf message", v)
	}
	size := proto.Size(m)
	// The size was just computed, and no code changes a message that is being sent.
	options := proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		encoded, err := options.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encoding a message: %w", err)
		}
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
	}
	buffer := Pool.Get(size)
	encoded, err := options.MarshalAppend((*buffer)[:0], m)
	if err != nil {
		Pool.Put(buffer)
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	return Appended(buffer, encoded), nil // encoded outgrows the buffer only if other code changed the message
}

// Appended returns the buffers of an encoded message. The message was appended to an empty buffer from Pool. If it
// did not fit, encoded is another, larger buffer.
func Appended(buffer *[]byte, encoded []byte) mem.BufferSlice {
	if cap(encoded) != cap(*buffer) {
		Pool.Put(buffer)
		return mem.BufferSlice{mem.SliceBuffer(encoded)}
	}
	*buffer = encoded
	return mem.BufferSlice{mem.NewBuffer(buffer, Pool)}
}

// BytesMax is the size of the largest message that a gRPC server for records decodes. It is twice the 4 MiB of data
// that the API allows in one message, so that callers need not count keys and metadata exactly.
const BytesMax = 8 << 20

// RefusedBytesMax is a gRPC server's receive limit. It is a little above BytesMax, so that the server itself refuses a
// message that is slightly too long, with a response that contains advice for the caller. gRPC refuses longer messages,
// with a response that cannot contain advice. The limit is not higher, because a whole message is held in memory before
// the server can refuse it.
const RefusedBytesMax = BytesMax + BytesMax/4

// ServerWorkers is the number of goroutines that a gRPC server for records keeps for its calls. Each further concurrent
// call gets a new goroutine, which has to grow its stack. In a durable put, growing the stack takes a fifteenth of the
// server's time.
const ServerWorkers = 64

// These limits bound what an unauthenticated peer costs a server: the header bytes of a call, as HTTP/2 counts them,
// and the time from a connection to the end of its handshake.
const (
	HeaderBytesMax = 16 << 10
	HandshakeTime  = 20 * time.Second
)

// RefuseCompressed returns the option that makes a server refuse compressed messages. Without this option, a library
// that registers an encoding for its own calls makes each gRPC server of the process accept that encoding. The trace
// exporter does this with gzip. 24 KiB of compressed zeros would then take 24 MiB of memory before the caller is
// authenticated. gRPC refuses encodings that no library registers.
func RefuseCompressed() grpc.ServerOption {
	//nolint:staticcheck // RegisterCompressor would change the encoding for the exporter of traces, too
	return grpc.RPCDecompressor(refusingDecompressor{})
}

// refusingDecompressor is a decompressor that refuses every message.
type refusingDecompressor struct{}

// Type implements grpc.Decompressor.
func (refusingDecompressor) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (refusingDecompressor) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("compressed messages are not taken: send them without grpc-encoding")
}

// Bounded receives a message, and decodes it only if its size is within a limit. From a longer message, Bounded decodes
// only those first fields that lie completely within the first headBytes.
type Bounded struct {
	Message  proto.Message
	Decoder  Decoder // decodes a message within the limit, instead of Message; may be nil
	BytesMax int
	Bytes    int // size of the received message
}

// headBytes is the number of bytes at the start of a message that contain a record's key, but not its data.
const headBytes = 2 << 10

// decodeHead decodes the first fields of a message. Bytes that cannot be decoded are skipped, because no code needs
// them.
func (b *Bounded) decodeHead(data mem.BufferSlice) {
	head := make([]byte, 0, headBytes)
	for _, part := range data {
		head = append(head, part.ReadOnlyData()[:min(part.Len(), headBytes-len(head))]...)
	}
	whole := 0
	for whole < len(head) {
		_, _, n := protowire.ConsumeField(head[whole:])
		if n < 0 {
			break
		}
		whole += n
	}
	if proto.Unmarshal(head[:whole], b.Message) != nil {
		proto.Reset(b.Message)
	}
}

// TooLarge reports that the message was not decoded completely.
func (b *Bounded) TooLarge() bool { return b.Bytes > b.BytesMax }

// Unmarshal implements encoding.CodecV2. The message keeps no reference to data.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Bounded:
		if v.Bytes = data.Len(); v.TooLarge() {
			v.decodeHead(data)
			return nil
		}
		if v.Decoder != nil {
			return v.Decoder.Decode(data)
		}
		return c.Unmarshal(data, v.Message)
	case Decoder:
		return v.Decode(data)
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decoding a message: %T is no protobuf message", v)
	}
	buffer := data.MaterializeToBuffer(Pool)
	defer buffer.Free()
	if err := CheckParts(buffer.ReadOnlyData(), m); err != nil {
		return err
	}
	if err := proto.Unmarshal(buffer.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decoding a message: %w", err)
	}
	return nil
}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return protocodec.Name }
