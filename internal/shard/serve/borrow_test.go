package serve

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/must"
)

// puts returns requests for all combinations of present and absent fields of a put.
func puts() []*recordv1.PutRequest {
	return []*recordv1.PutRequest{
		{},
		{Key: &recordv1.RecordKey{}},
		{Data: []byte("data without a key")},
		{Key: &recordv1.RecordKey{Id: -1, Group: "a"}, Data: []byte{}},
		{
			Key: &recordv1.RecordKey{Id: 1 << 62, Group: "quotes"}, RoutingEpoch: 7, RequestId: make([]byte, 16),
			Condition:       &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfVersion{IfVersion: "12"}},
			TimestampUnixNs: proto.Int64(-5), Attributes: map[string][]byte{"a": []byte("b"), "c": nil},
			DataCrc32C: proto.Uint32(9), Data: make([]byte, 20_000),
		},
	}
}

// whole checks that decoding a message has the same result as with protobuf: either the same puts, or an error.
func whole(t *testing.T, encoded []byte) {
	t.Helper()
	want, got := &recordv1.BatchPutRequest{}, &putsIn{batch: &recordv1.BatchPutRequest{}}
	wantErr := proto.Unmarshal(encoded, want)
	gotErr := got.Decode(mem.BufferSlice{mem.SliceBuffer(encoded)})
	defer got.free()
	if (wantErr == nil) != (gotErr == nil) {
		t.Fatalf("error %v, protobuf's is %v, of %x", gotErr, wantErr, encoded)
	}
	if gotErr != nil {
		return
	}
	if got.n != len(want.GetPuts()) || got.n <= BatchPutsMax && len(got.batch.GetPuts()) != got.n {
		t.Fatalf("%d puts, of them %d decoded, want %d", got.n, len(got.batch.GetPuts()), len(want.GetPuts()))
	}
	for i, put := range got.batch.GetPuts() {
		if !proto.Equal(put, want.GetPuts()[i]) {
			t.Fatalf("put %d: %v, want %v", i, put, want.GetPuts()[i])
		}
	}
	for _, put := range want.GetPuts() {
		one, again := encode(t, put), &recordv1.PutRequest{}
		in := putIn{put: again}
		if err := in.Decode(mem.BufferSlice{mem.SliceBuffer(one)}); err != nil || !proto.Equal(put, again) {
			t.Fatalf("alone: %v, %v, want %v", err, again, put)
		}
		in.free()
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(m)
	must.OK(t, err)
	return encoded
}

func batchOf(puts ...[]byte) (batch []byte) {
	for _, put := range puts {
		batch = protowire.AppendTag(batch, putsField, protowire.BytesType)
		batch = protowire.AppendBytes(batch, put)
	}
	return batch
}

// TestPutsAreDecodedAsProtobufDoes also checks puts whose fields are repeated or in a different order, which protobuf
// allows.
func TestPutsAreDecodedAsProtobufDoes(t *testing.T) {
	whole(t, encode(t, &recordv1.BatchPutRequest{Puts: puts()}))
	whole(t, nil)
	var fields [][]byte
	for _, put := range puts() {
		for rest := encode(t, put); len(rest) > 0; {
			_, _, n := protowire.ConsumeField(rest)
			fields, rest = append(fields, rest[:n]), rest[n:]
		}
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	otherType := protowire.AppendVarint(protowire.AppendTag(nil, dataField, protowire.VarintType), 1)
	fields = append(fields, unknown, otherType, []byte{}, []byte{0xff}, []byte{0x0a, 0x05})
	source := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var batch [][]byte
		for range source.IntN(4) {
			var put []byte
			for range source.IntN(8) {
				put = append(put, fields[source.IntN(len(fields))]...)
			}
			batch = append(batch, put)
		}
		whole(t, append(batchOf(batch...), fields[source.IntN(len(fields))]...))
	}
	many := make([][]byte, BatchPutsMax+1)
	whole(t, batchOf(many...))
	whole(t, batchOf(many[1:]...))
}

// The data of a put are not copied, but alias the message.
func TestTheDataOfAPutAliasItsMessage(t *testing.T) {
	encoded := batchOf(encode(t, puts()[4]))
	in := &putsIn{batch: &recordv1.BatchPutRequest{}}
	must.OK(t, in.Decode(mem.BufferSlice{mem.SliceBuffer(encoded)}))
	encoded[len(encoded)-1] = 42
	if data := in.batch.GetPuts()[0].GetData(); len(data) != 20_000 || data[len(data)-1] != 42 {
		t.Fatalf("%d bytes of data, which are a copy", len(data))
	}
}

// A message of empty puts, or of puts with countless small fields, is refused before memory is allocated for its parts.
func TestPutsOfTooManyPartsAreNotDecoded(t *testing.T) {
	attribute := encode(t, &recordv1.PutRequest{Attributes: map[string][]byte{"": nil}})
	for name, encoded := range map[string][]byte{
		"puts":       bytes.Repeat(batchOf(nil), 1<<19),
		"attributes": batchOf(bytes.Repeat(attribute, 1<<18)),
	} {
		in := &putsIn{batch: &recordv1.BatchPutRequest{}}
		if err := in.Decode(mem.BufferSlice{mem.SliceBuffer(encoded)}); err == nil || in.n != 0 {
			t.Errorf("%s: error %v, %d puts", name, err, in.n)
		}
	}
	one := putIn{put: &recordv1.PutRequest{}}
	if err := one.Decode(mem.BufferSlice{mem.SliceBuffer(bytes.Repeat(attribute, 1<<18))}); err == nil {
		t.Error("a put of too many attributes is decoded")
	}
}

func FuzzPuts(f *testing.F) {
	f.Add(encode(f, &recordv1.BatchPutRequest{Puts: puts()}))
	f.Add([]byte{0x0a, 0x02, 0x0a, 0x00})
	f.Fuzz(func(t *testing.T, encoded []byte) { whole(t, encoded) })
}
