package recordv1

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fillMessage sets every field of a message. It puts two elements into each list, and sets each enum to its second
// value.
func fillMessage(m protoreflect.Message, depth int) {
	number := int32(0)
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		number++
		value := func() protoreflect.Value {
			switch f.Kind() {
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(-number)
			case protoreflect.Int64Kind, protoreflect.Sfixed64Kind:
				return protoreflect.ValueOfInt64(math.MinInt64 + int64(number))
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(math.MaxUint64 - uint64(number))
			case protoreflect.DoubleKind:
				return protoreflect.ValueOfFloat64(float64(number) + .5)
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(string(f.Name()) + ` "<&>` + "\n")
			default:
				return protoreflect.ValueOfEnum(2)
			}
		}
		switch message := f.Message() != nil; {
		case message && depth == 0:
		case message && f.IsList():
			for range 2 {
				fillMessage(m.Mutable(f).List().AppendMutable().Message(), depth-1)
			}
		case message:
			fillMessage(m.Mutable(f).Message(), depth-1)
		case f.IsList():
			m.Mutable(f).List().Append(value())
			m.Mutable(f).List().Append(value())
		default:
			m.Set(f, value())
		}
	}
}

// TestJSONRoundTrip checks that messages with their own JSON format lose nothing in a round trip, that their
// field names are those of protojson, and that protojson can read everything except enum values.
func TestJSONRoundTrip(t *testing.T) {
	for _, empty := range []interface {
		proto.Message
		json.Marshaler
		json.Unmarshaler
	}{&ShardStatus{}, &StatusSummary{}, &Shard{}, &Group{}, &Load{}} {
		for _, fill := range []bool{false, true} {
			want := proto.Clone(empty)
			if fill {
				fillMessage(want.ProtoReflect(), 4)
			}
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			got := proto.Clone(empty)
			if err := json.Unmarshal(text, got); err != nil || !proto.Equal(got, want) {
				t.Errorf("%T: %v: %s is read as %v", empty, err, text, got)
			}
			names := func(text []byte) map[string]any {
				all := map[string]any{}
				if err := json.Unmarshal(text, &all); err != nil {
					t.Fatal(err)
				}
				return all
			}
			theirs, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			ours, known := names(text), names(theirs)
			for name := range known {
				if _, ok := ours[name]; !ok && fill {
					t.Errorf("%T has no %s, which protojson writes", empty, name)
				}
			}
			for name := range ours {
				if _, ok := known[name]; !ok {
					t.Errorf("%T has %s, which protojson does not write", empty, name)
				}
			}
		}
	}
}

// TestJSONOfUnknownValues checks which unknown values are left out of the JSON, and how numbers, enum values and
// strings are written.
func TestJSONOfUnknownValues(t *testing.T) {
	for _, c := range []struct {
		of  json.Marshaler
		has []string
		not []string
	}{
		{&Shard{Alive: true}, []string{`"freeBytes":0`, `"problems":[]`, `"state":""`},
			[]string{"rotational", "load", "etcdSilentSeconds", "traffic", "null"}},
		{&Shard{Name: "a", MemoryUsedBytes: 7}, []string{`"alive":false`, `"memoryUsedBytes":7`, `"message":""`},
			[]string{"freeBytes", "capacityBytes", "generation"}},
		{&Group{State: GroupState_GROUP_STATE_DAMAGED}, []string{`"state":"Damaged"`, `"records":0`}, []string{"lagEntries"}},
		{&Group{State: GroupState_GROUP_STATE_LOADING}, []string{`"state":"Loading"`, `"leader":false`},
			[]string{"records", "storedBytes"}},
		{&Group{State: 99}, []string{`"state":""`}, nil},
		{&Group{Damages: []*Damage{{Ids: []int64{math.MaxInt64}, OffsetBytes: math.MaxInt64}}},
			[]string{`"ids":["9223372036854775807"]`, `"offsetBytes":9223372036854775807`}, []string{`"records"`}},
		{&Load{BytesPerSecond: math.NaN(), EtaSeconds: math.Inf(1)},
			[]string{`"bytesPerSecond":null`, `"etaSeconds":null`}, nil},
		{(*Load)(nil), []string{"null"}, nil},
	} {
		text, err := json.Marshal(c.of)
		for _, part := range c.has {
			if err != nil || !strings.Contains(string(text), part) {
				t.Errorf("%v: no %s in %s", err, part, text)
			}
		}
		for _, part := range c.not {
			if strings.Contains(string(text), part) {
				t.Errorf("%s in %s", part, text)
			}
		}
	}
	for _, bad := range []string{`[]`, `{"name":7}`, `{"freeBytes":"x"}`, `{"problems":{}}`, `{"load":5}`} {
		if json.Unmarshal([]byte(bad), &Shard{}) == nil {
			t.Errorf("%s is read", bad)
		}
	}
	shard := &Shard{}
	if err := json.Unmarshal([]byte(`{"newer":{"a":1},"state":"Newer","load":null,"name":"a"}`), shard); err != nil ||
		!proto.Equal(shard, &Shard{Name: "a"}) {
		t.Errorf("%v, %v", shard, err)
	}
}
