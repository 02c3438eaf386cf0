package peer

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/test/must"
)

// inPieces splits an encoded message into buffers of at most n bytes, as a transport does.
func inPieces(encoded []byte, n int) (out mem.BufferSlice) {
	for len(encoded) > n {
		out = append(out, mem.SliceBuffer(encoded[:n]))
		encoded = encoded[n:]
	}
	return append(out, mem.SliceBuffer(encoded))
}

func chunkCases() map[string]*peerv1.FileChunk {
	return map[string]*peerv1.FileChunk{
		"empty":  {},
		"last":   {Last: true, OffsetBytes: 1 << 40},
		"first":  {Name: "seg-1", Data: []byte("data"), DataCrc32C: 7},
		"whole":  {Name: "seg-1", OffsetBytes: 5, Data: random(chunkBytes), DataCrc32C: 1 << 31, Last: true},
		"old":    {OffsetBytes: 1 << 20, Data: random(chunkBytesMax), DataCrc32C: 1},
		"before": {OffsetBytes: -1, Data: []byte{0}},
	}
}

func TestChunksAreWhatProtobufMakesOfThem(t *testing.T) {
	for name, chunk := range chunkCases() {
		buffer := message.Pool.Get(len(chunk.GetData()))
		copy(*buffer, chunk.GetData())
		dataless := proto.CloneOf(chunk)
		dataless.Data = nil
		for field, in := range map[protowire.Number]chunkMessage{
			chunkOfGroup: &peerv1.FetchGroupResponse{}, chunkOfBlob: &peerv1.FetchBlobResponse{},
		} {
			encoded, err := (&sentChunk{field: field, chunk: dataless, buffer: buffer}).Encode()
			must.OK(t, err)
			if err := proto.Unmarshal(encoded.Materialize(), in); err != nil || !proto.Equal(in.GetChunk(), chunk) {
				t.Errorf("%s: protobuf reads %v, %v", name, in.GetChunk().GetOffsetBytes(), err)
			}
		}
	}
}

func TestChunksAreDecodedAsProtobufEncodesThem(t *testing.T) {
	group := receiveChunks(chunkOfGroup, &peerv1.FetchGroupResponse{})
	blob := receiveChunks(chunkOfBlob, &peerv1.FetchBlobResponse{})
	// Each receivedChunk decodes one message after another, so no content of an earlier message may remain in it.
	for range 2 {
		for name, chunk := range chunkCases() {
			for in, message := range map[*receivedChunk]proto.Message{
				group: &peerv1.FetchGroupResponse{Part: &peerv1.FetchGroupResponse_Chunk{Chunk: chunk}},
				blob:  &peerv1.FetchBlobResponse{Chunk: chunk},
			} {
				encoded, err := proto.Marshal(message)
				must.OK(t, err)
				for _, n := range []int{3, 16 << 10, 2 << 20} {
					if err := in.Decode(inPieces(encoded, n)); err != nil || !proto.Equal(in.chunk, chunk) {
						t.Errorf("%s in pieces of %d: offset %d, %v", name, n, in.chunk.GetOffsetBytes(), err)
					}
				}
				if r := inPieces(encoded, 100).Reader(); name != "empty" && in.read(r) == nil {
					t.Errorf("%s goes the long way", name)
				}
			}
		}
	}
}

// These messages are not plain chunks: a later version may add fields, and an attacker may send anything.
func TestOtherMessagesThanChunksAreDecodedByProtobuf(t *testing.T) {
	in := receiveChunks(chunkOfGroup, &peerv1.FetchGroupResponse{})
	chunk := &peerv1.FileChunk{Name: "seg", Data: []byte("data"), DataCrc32C: 3}
	inner, err := proto.Marshal(chunk)
	must.OK(t, err)
	wrap := func(inner []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, chunkOfGroup, protowire.BytesType), inner)
	}
	unknown := func(b []byte) []byte {
		return protowire.AppendString(protowire.AppendTag(bytes.Clone(b), 99, protowire.BytesType), "new")
	}
	large := &peerv1.FileChunk{Data: random(chunkBytesMax + 1)}
	largeInner, err := proto.Marshal(large)
	must.OK(t, err)
	for name, c := range map[string]struct {
		encoded []byte
		want    *peerv1.FileChunk
	}{
		"a field in the chunk": {wrap(unknown(inner)), chunk},
		"a field behind it":    {unknown(wrap(inner)), chunk},
		"in two parts":         {append(wrap(inner[:5]), wrap(inner[5:])...), chunk},
		"more than a chunk":    {wrap(largeInner), large},
	} {
		err := in.Decode(inPieces(c.encoded, 4096))
		if err != nil || in.chunk.GetName() != c.want.GetName() || !bytes.Equal(in.chunk.GetData(), c.want.GetData()) {
			t.Errorf("%s: %q, %d bytes, %v", name, in.chunk.GetName(), len(in.chunk.GetData()), err)
		}
	}
	description, err := proto.Marshal(&peerv1.FetchGroupResponse{
		Part: &peerv1.FetchGroupResponse_Description{Description: &peerv1.FetchGroupDescription{Index: 1}},
	})
	must.OK(t, err)
	if err := in.Decode(inPieces(description, 2)); err != nil || in.chunk != nil {
		t.Errorf("a description: chunk %v, %v", in.chunk, err)
	}
	// A message with a wrong length, and every incomplete message, must be refused. Such a message must not make the
	// decoder wait for more data.
	if err := in.Decode(inPieces(protowire.AppendVarint(wrap(nil)[:1], 1<<62), 3)); err == nil {
		t.Error("a chunk of 2^62 bytes")
	}
	whole := wrap(inner)
	for n := 1; n < len(whole); n++ {
		if err := in.Decode(inPieces(whole[:n], 3)); err == nil {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), in.chunk)
		}
	}
	if err := in.Decode(inPieces(wrap(protowire.AppendString(protowire.AppendTag(nil, chunkName, protowire.BytesType),
		"\xff")), 9)); err == nil {
		t.Error("a name that is no text")
	}
}
