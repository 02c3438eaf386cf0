package message

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/apipb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestPoolGivesTheLengthAskedForAndKeepsPowersOfTwo(t *testing.T) {
	for _, n := range []int{0, 1, 1023, 1024, 1025, 100_000, 1 << 20, 1<<20 + 1, 1 << 24, 1<<24 + 1} {
		b := Pool.Get(n)
		if len(*b) != n {
			t.Fatalf("asked for %d bytes, got %d", n, len(*b))
		}
		if n <= 1<<sizeBitsMax && cap(*b)&(cap(*b)-1) != 0 {
			t.Fatalf("%d bytes have a capacity of %d, which the pool would not take back", n, cap(*b))
		}
		if n > 1<<sizeBitsMin && cap(*b) >= 2*n {
			t.Fatalf("%d bytes take %d", n, cap(*b))
		}
		Pool.Put(b)
	}
	// Pool must not keep a buffer whose capacity is not a power of two, because Get could then return a buffer that is
	// too short.
	odd := make([]byte, 3000)
	Pool.Put(&odd)
	for range 100 {
		if b := Pool.Get(4096); len(*b) != 4096 {
			t.Fatal("a buffer that is too small was handed out")
		}
		if b := Pool.Get(2048); cap(*b) != 2048 {
			t.Fatalf("a buffer of %d bytes was taken in", cap(*b))
		}
	}
}

// Buffers are reused without being cleared, but neither encoding nor decoding may show their old content.
func TestCodecRoundTripsThroughDirtyBuffers(t *testing.T) {
	var c Codec
	for _, n := range []int{0, 10, 1000, 1024, 10_000, 50_000, 1 << 20, 3 << 20} {
		for range 3 {
			dirty := Pool.Get(n + 16)
			for i := range *dirty {
				(*dirty)[i] = 0xaa
			}
			Pool.Put(dirty)
			in := &wrapperspb.BytesValue{Value: bytes.Repeat([]byte{7}, n)}
			encoded, err := c.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			want, err := proto.Marshal(in)
			if err != nil || !bytes.Equal(encoded.Materialize(), want) {
				t.Fatalf("%d bytes are encoded otherwise than by protobuf: %v", n, err)
			}
			half := len(want) / 2 // the message is in two buffers, as it may be when it arrives
			parts := mem.BufferSlice{mem.SliceBuffer(want[:half]), mem.SliceBuffer(want[half:])}
			out := &wrapperspb.BytesValue{}
			if err := c.Unmarshal(parts, out); err != nil || !proto.Equal(in, out) {
				t.Fatalf("%d bytes are decoded otherwise: %v", n, err)
			}
			encoded.Free()
		}
	}
}

// A decoded message must not change when its buffer is used again.
func TestDecodedMessagesHoldNothingOfTheBuffer(t *testing.T) {
	var c Codec
	in := &wrapperspb.BytesValue{Value: bytes.Repeat([]byte{7}, 60_000)}
	encoded, err := c.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	out := &wrapperspb.BytesValue{}
	if err := c.Unmarshal(encoded, out); err != nil {
		t.Fatal(err)
	}
	raw := encoded[0].ReadOnlyData()
	clear(raw)
	if !proto.Equal(in, out) {
		t.Fatal("the message changed with its buffer")
	}
}

func TestCodecRefusesOtherTypes(t *testing.T) {
	var c Codec
	if _, err := c.Marshal("text"); err == nil {
		t.Error("text was encoded")
	}
	if err := c.Unmarshal(nil, new(string)); err == nil {
		t.Error("text was decoded")
	}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer("\xff\xff")}, &wrapperspb.BytesValue{}); err == nil {
		t.Error("bytes that are no message were decoded")
	}
}

// plain is a message whose encoding is its own bytes.
type plain struct{ b []byte }

func (p *plain) Encode() (mem.BufferSlice, error) { return mem.BufferSlice{mem.SliceBuffer(p.b)}, nil }

func (p *plain) Decode(data mem.BufferSlice) error {
	p.b = data.Materialize()
	return nil
}

func TestCodecLetsMessagesEncodeAndDecodeThemselves(t *testing.T) {
	var c Codec
	encoded, err := c.Marshal(&plain{[]byte("as it is")})
	if err != nil || string(encoded.Materialize()) != "as it is" {
		t.Fatalf("encoded as %q, %v", encoded.Materialize(), err)
	}
	out := &plain{}
	if err := c.Unmarshal(encoded, out); err != nil || string(out.b) != "as it is" {
		t.Fatalf("decoded as %q, %v", out.b, err)
	}
}

// If a message is too long, the complete fields at its beginning are decoded, regardless of the bytes that follow them.
func TestBoundedDecodesTheBeginningOfALongMessage(t *testing.T) {
	long := &apipb.Api{Name: "api", Methods: []*apipb.Method{{Name: string(make([]byte, 10_000))}}, Version: "v1"}
	encoded, err := proto.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	in := func(parts ...[]byte) (bufs mem.BufferSlice) {
		for _, p := range parts {
			bufs = append(bufs, mem.SliceBuffer(p))
		}
		return bufs
	}
	for what, c := range map[string]struct {
		data mem.BufferSlice
		name string
	}{
		"in one piece":       {in(encoded), "api"},
		"in pieces":          {in(encoded[:1], encoded[1:3], nil, encoded[3:7], encoded[7:]), "api"},
		"the data first":     {in(append(bytes.Clone(encoded[5:]), encoded[:5]...)), ""},
		"what is no message": {in(bytes.Repeat([]byte{0xff}, len(encoded))), ""},
		"no UTF-8":           {in([]byte("\x0a\x01\xff"), encoded[5:]), ""},
	} {
		got := &apipb.Api{}
		b := &Bounded{Message: got, BytesMax: 9_000}
		if err := (Codec{}).Unmarshal(c.data, b); err != nil || !b.TooLarge() || b.Bytes != c.data.Len() {
			t.Fatalf("%s: %v, %d of %d bytes", what, err, b.Bytes, c.data.Len())
		}
		if got.GetName() != c.name || len(got.GetMethods()) != 0 {
			t.Errorf("%s: name %q and %d methods", what, got.GetName(), len(got.GetMethods()))
		}
	}
	got := &apipb.Api{}
	b := &Bounded{Message: got, BytesMax: len(encoded)}
	if err := (Codec{}).Unmarshal(in(encoded), b); err != nil || b.TooLarge() || !proto.Equal(got, long) {
		t.Fatalf("a message that is not too long is decoded as %v, %v", got, err)
	}
}
