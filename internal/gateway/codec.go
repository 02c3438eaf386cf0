package gateway

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/call/message"
)

// frame is one gRPC message as bytes, undecoded. It holds a reference on its buffers until it is freed or sent.
type frame struct {
	bufs mem.BufferSlice
	// keep: sending takes further references, so that the frame can be sent again. Otherwise sending gives the frame's
	// own references away.
	keep bool
}

// free gives the buffers back. A frame may be freed more than once.
func (f *frame) free() {
	f.bufs.Free()
	f.bufs = nil
}

// DecodeInto implements message.Undecoded.
func (f *frame) DecodeInto(m proto.Message) error { return message.Codec{}.Unmarshal(f.bufs, m) }

// codec passes frames through as they are and everything else to the protobuf codec.
type codec struct{ proto encoding.CodecV2 }

func newCodec() codec { return codec{proto: message.Codec{}} }

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
	data.Ref() // the caller frees its own references when this returns
	f.bufs = data
	return nil
}

// Name implements encoding.CodecV2: on the wire these are ordinary protobuf messages.
func (c codec) Name() string { return c.proto.Name() }
