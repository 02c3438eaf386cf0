package message

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
)

// A request with very many empty parts is not decoded, because it would take a hundred times as much memory as it has
// bytes.
func TestRequestsOfTooManyPartsAreNotDecoded(t *testing.T) {
	empty := bytes.Repeat([]byte{0x0a, 0}, 4<<20) // field 1 without any bytes, four million times
	within := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), empty)
	for _, into := range []proto.Message{&recordv1.BatchPutRequest{}, &recordv1.BatchGetRequest{},
		&recordv1.PlanScanRequest{}} {
		for name, encoded := range map[string][]byte{"top": empty, "within": within} {
			if _, texts := into.(*recordv1.PlanScanRequest); texts && name == "within" {
				continue // this field of PlanScanRequest is a string, so it has no parts
			}
			for _, to := range []any{into, &Bounded{Message: into, BytesMax: 16 << 20}} {
				proto.Reset(into)
				err := Codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, to)
				if err == nil || !strings.Contains(err.Error(), "fewer") {
					t.Errorf("%s of %T into %T: %v", name, into, to, err)
				}
			}
		}
	}
	full := &recordv1.BatchPutRequest{}
	for n := range 1024 {
		put := &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: int64(n), Group: "g"}, Data: make([]byte, 1000),
			Attributes: map[string][]byte{}}
		for a := range 64 {
			put.Attributes[fmt.Sprint(a)] = []byte("x")
		}
		full.Puts = append(full.Puts, put)
	}
	encoded, err := proto.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	got := &recordv1.BatchPutRequest{}
	if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, got); err != nil || !proto.Equal(got, full) {
		t.Errorf("a full batch: %v", err)
	}
}

// BenchmarkParts compares the cost of counting the parts of a full batch with the cost of decoding the batch.
func BenchmarkParts(b *testing.B) {
	full := &recordv1.BatchPutRequest{}
	for n := range 1024 {
		full.Puts = append(full.Puts, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: int64(n), Group: "g"},
			Data: make([]byte, 4000)})
	}
	encoded, err := proto.Marshal(full)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			if err := CheckParts(encoded, full); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if err := proto.Unmarshal(encoded, &recordv1.BatchPutRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
