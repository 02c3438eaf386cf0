package gateway

import (
	"google.golang.org/grpc/mem"
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
	data.Ref() // the caller frees its own references after this returns
	f.bufs = data
	return nil
}

// Name implements encoding.CodecV2: on the wire these are ordinary protobuf messages.
func (c codec) Name() string { return c.proto.Name() }
