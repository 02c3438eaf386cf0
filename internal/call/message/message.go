// Package message says how the messages of gRPC lie in memory: a protobuf codec, and the pool of its buffers.
package message

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Pool of message buffers. gRPC's own pool has no size between 32 KiB and 1 MiB and clears a buffer whole before it is
// used, which is most of the cost of a batch: for a message of 100 KiB it clears 1 MiB. This one has every power of two
// and clears nothing: whoever takes a buffer must write all of it before it is read.
var Pool mem.BufferPool = &pool{}

const (
	sizeBitsMin = 10 // smaller ones are left to the garbage collector
	sizeBitsMax = 24 // and larger ones
)

type pool struct {
	sizes [sizeBitsMax + 1]sync.Pool // of *[]byte with a capacity of 1<<i
}

// Get implements mem.BufferPool. The bytes are what somebody else left.
func (p *pool) Get(length int) *[]byte {
	size := bits.Len(uint(max(length-1, 0)))
	if size > sizeBitsMax {
		b := make([]byte, length)
		return &b
	}
	size = max(size, sizeBitsMin)
	if b, ok := p.sizes[size].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<size)
	return &b
}

// Put implements mem.BufferPool.
func (p *pool) Put(b *[]byte) {
	size := bits.Len(uint(cap(*b))) - 1
	if size < sizeBitsMin || size > sizeBitsMax || cap(*b) != 1<<size {
		return
	}
	p.sizes[size].Put(b)
}

// Encoder is a message that encodes itself as protobuf would: one with so many bytes that they should not be copied for
// it.
type Encoder interface {
	// Encode gives the encoded message. gRPC frees its buffers when they are sent.
	Encode() (mem.BufferSlice, error)
}

// Decoder is a message that decodes itself, for the same reason.
type Decoder interface {
	// Decode takes a message in. It holds nothing of data afterwards.
	Decode(data mem.BufferSlice) error
}

// Undecoded is a request that its handler passes on by its bytes. Interceptors are given it in the place of the
// message.
type Undecoded interface {
	// DecodeInto takes the request into a message of the type that the method takes. The message holds nothing of the
	// request.
	DecodeInto(m proto.Message) error
}

// Codec is gRPC's protobuf codec with buffers of Pool. On the wire nothing changes.
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
	// The size was just taken, and nobody changes a message that is being sent.
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
	if cap(encoded) != cap(*buffer) { // it outgrew the buffer: somebody did change it
		Pool.Put(buffer)
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
	}
	*buffer = encoded
	return mem.BufferSlice{mem.NewBuffer(buffer, Pool)}, nil
}

// RefusedBytesMax is what a server must let gRPC take in so that callers learn from it, and not from gRPC, what to do
// instead of sending a message above a limit. gRPC answers a longer one itself: it gives no way to say more.
func RefusedBytesMax(bytesMax int) int { return 3 * bytesMax }

// ServerWorkers is how many goroutines a gRPC server of records keeps for its calls; more calls at a time get one of
// their own. A new goroutine grows its stack in each call, which is a fifteenth of what a server spends on a durable
// put.
const ServerWorkers = 64

// What whoever is not known yet may cost a server: the bytes of the headers of a call, as HTTP/2 counts them, and the
// time from a connection to the end of its handshake.
const (
	HeaderBytesMax = 16 << 10
	HandshakeTime  = 20 * time.Second
)

// Bounded receives a message that is decoded only where it is not too long. Of a longer one the message holds the first
// fields, as far as they are whole within the first headBytes.
type Bounded struct {
	Message  proto.Message
	BytesMax int
	Bytes    int // of the message that came
}

// headBytes of a message hold the key of a record, and not its data.
const headBytes = 2 << 10

// decodeHead decodes the first fields of a message. What cannot be decoded is left out: nobody asks for it.
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

// TooLarge tells that the message was not decoded whole.
func (b *Bounded) TooLarge() bool { return b.Bytes > b.BytesMax }

// Unmarshal implements encoding.CodecV2. The message holds nothing of data afterwards.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Bounded:
		if v.Bytes = data.Len(); v.TooLarge() {
			v.decodeHead(data)
			return nil
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
	if err := proto.Unmarshal(buffer.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decoding a message: %w", err)
	}
	return nil
}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return protocodec.Name }
