package flight

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
)

// encoded returns a message as Arrow's reader takes it.
func encoded(t testing.TB, m *Message) *flight.FlightData {
	t.Helper()
	bufs, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	out := &flight.FlightData{}
	if err := proto.Unmarshal(bufs.Materialize(), out); err != nil {
		t.Fatal(err)
	}
	bufs.Free()
	return out
}

// stream gives messages to Arrow's reader.
type stream struct{ messages []*flight.FlightData }

func (s *stream) Recv() (*flight.FlightData, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

// TestArrowReadsABatch checks that Arrow's reader finds in a batch what was put into it, with every set of columns.
func TestArrowReadsABatch(t *testing.T) {
	rows := []Row{
		{Group: "a", ID: math.MinInt64, Version: "3t", Timestamp: -1, CommitTime: 2, Size: 3, CRC32C: 4,
			Data: []byte("abc"), Filled: AllColumns, Attributes: []Attribute{{"k", []byte("v")}, {"z", nil}}},
		{Group: "", ID: math.MaxInt64, Status: "RECORD_NOT_FOUND"},
		{Group: "b", ID: 0, Version: "4", Size: 2 << 20, Status: "USE_DOWNLOAD", Filled: AllColumns &^ (1<<Data | 1<<CRC32C)},
		{Group: "c", ID: 5, Filled: AllColumns, Data: []byte{}},
	}
	for range 20 {
		rows = append(rows, rows[:4]...)
	}
	rows = rows[:61]
	for columns := Columns(0); columns <= AllColumns; columns += 37 {
		b := NewBatch(columns, 1<<10)
		for i := range rows {
			b.Add(&rows[i])
		}
		if b.Rows() != len(rows) {
			t.Fatalf("%d rows", b.Rows())
		}
		m := encoded(t, b.Take([]byte("meta")))
		if !bytes.Equal(m.GetAppMetadata(), []byte("meta")) || len(m.GetDataBody())%8 != 0 {
			t.Errorf("metadata %q, body of %d bytes", m.GetAppMetadata(), len(m.GetDataBody()))
		}
		reader, err := arrowflight.NewRecordReader(&stream{[]*flight.FlightData{encoded(t, Schema()), m}})
		if err != nil {
			t.Fatal(err)
		}
		batch, err := reader.Read()
		if err != nil {
			t.Fatal(err)
		}
		if err := array.ValidateRecord(batch); err != nil {
			t.Fatal(err)
		}
		want := columns | alwaysFilled
		for i, r := range rows {
			filled := (r.Filled | 1<<Group | 1<<ID) &^ (1 << Status)
			if r.Status != "" {
				filled |= 1 << Status
			}
			for c := range columnCount {
				if batch.Column(int(c)).IsNull(i) == (filled & want).Has(c) {
					t.Fatalf("columns %b, row %d: column %s is null: %v", columns, i, columnNames[c], batch.Column(int(c)).IsNull(i))
				}
			}
			if got := batch.Column(int(Data)).(*array.LargeBinary); want.Has(Data) && !bytes.Equal(got.Value(i), r.Data) {
				t.Fatalf("row %d: data %q", i, got.Value(i))
			}
			if got := batch.Column(int(ID)).(*array.Int64).Value(i); got != r.ID {
				t.Fatalf("row %d: id %d", i, got)
			}
		}
		reader.Release()
	}
}

// TestABatchIsReused checks that a batch has nothing of the batch before.
func TestABatchIsReused(t *testing.T) {
	b := NewBatch(AllColumns, 1<<10)
	row := Row{Group: "a", ID: 1, Version: "v", Data: bytes.Repeat([]byte{1}, 3000), Filled: AllColumns,
		Attributes: []Attribute{{"k", []byte("v")}}}
	b.Add(&row)
	first := encoded(t, b.Take(nil))
	b.Add(&row)
	next := Row{ID: 2, Data: append(b.Tail()[:0], 7, 8), Filled: AllColumns}
	if second := encoded(t, b.TakeBefore(&next, nil)); !proto.Equal(first, second) {
		t.Error("the second batch differs from the first one")
	}
	b.Add(&next)
	if body := encoded(t, b.Take(nil)).GetDataBody(); !bytes.HasSuffix(body, []byte{7, 8, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("the data of the row that did not fit are %v", body[len(body)-8:])
	}
	b.Drop()
}

// TestABatchAdoptsABuffer checks that data which lie in an adopted buffer are sent from there, and that data behind a
// gap are moved.
func TestABatchAdoptsABuffer(t *testing.T) {
	add := func(b *Batch, data []byte, parts ...[2]int) {
		for i, p := range parts {
			b.Add(&Row{ID: int64(i), Data: data[p[0]:p[1]:p[1]], Filled: AllColumns})
		}
	}
	text := []byte("one, two and three")
	for name, parts := range map[string][][2]int{
		"without gaps":          {{0, 4}, {4, 4}, {4, 9}, {9, 18}},
		"the second is missing": {{0, 4}, {9, 18}},
	} {
		plain := NewBatch(AllColumns, 1<<10)
		add(plain, text, parts...)
		want := encoded(t, plain.Take(nil))

		buffer := message.Pool.Get(1 << 10)
		copy(*buffer, text)
		data := *buffer
		b := NewBatch(AllColumns, 1<<10)
		b.Adopt(buffer)
		add(b, data[:len(text)], parts...)
		m := b.Take(nil)
		sent := m.bufs[1].ReadOnlyData()
		if &sent[0] != &data[0] {
			t.Errorf("%s: the data were copied to another buffer", name)
		}
		if got := encoded(t, m); !proto.Equal(got, want) {
			t.Errorf("%s: the batch differs from one whose data were copied", name)
		}
	}
}

// puts encodes a batch as Arrow's writer does.
func puts(t testing.TB, schema *arrow.Schema, json string) (head, body []byte, schemaHead []byte) {
	t.Helper()
	batch, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Release()
	var w payloads
	writer := ipc.NewWriterWithPayloadWriter(&w, ipc.WithSchema(schema))
	if err := writer.Write(batch); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	return w.heads[1], w.bodies[1], w.heads[0]
}

// payloads collects what Arrow's writer writes.
type payloads struct{ heads, bodies [][]byte }

func (*payloads) Start() error { return nil }
func (*payloads) Close() error { return nil }

func (w *payloads) WritePayload(p ipc.Payload) error {
	meta := p.Meta()
	defer meta.Release()
	var body bytes.Buffer
	if err := p.SerializeBody(&body); err != nil {
		return err
	}
	w.heads, w.bodies = append(w.heads, bytes.Clone(meta.Bytes())), append(w.bodies, body.Bytes())
	return nil
}

var fullPuts = arrow.NewSchema([]arrow.Field{
	{Name: "data", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "attributes", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.Binary), Nullable: true},
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "group", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "if_absent", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "if_version", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "request_id", Type: &arrow.FixedSizeBinaryType{ByteWidth: 16}, Nullable: true},
	{Name: "timestamp", Type: &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}, Nullable: true},
}, nil)

const fullRows = `[
	{"id": -9223372036854775808, "data": "YWJj", "group": "g", "if_absent": true, "request_id": "MDEyMzQ1Njc4OWFiY2RlZg==",
	 "attributes": [{"key": "k", "value": "dg=="}, {"key": "l", "value": ""}], "timestamp": "1970-01-01T00:00:01Z"},
	{"id": 9223372036854775807, "data": "", "if_version": "3t", "if_absent": false},
	{"id": 3, "data": "eA==", "attributes": []}]`

func TestPutsOfABatch(t *testing.T) {
	head, body, schema := puts(t, fullPuts, fullRows)
	s, err := readSchema(schema)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.putsOf(head, body, "command")
	if err != nil {
		t.Fatal(err)
	}
	want := &recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{
		{Key: &recordv1.RecordKey{Group: "g", Id: math.MinInt64}, Data: []byte("abc"), RequestId: []byte("0123456789abcdef"),
			Attributes: map[string][]byte{"k": []byte("v"), "l": {}}, TimestampUnixNs: new(int64(1e9)),
			Condition: &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{IfAbsent: true}}},
		{Key: &recordv1.RecordKey{Group: "command", Id: math.MaxInt64},
			Condition: &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfVersion{IfVersion: "3t"}}},
		{Key: &recordv1.RecordKey{Group: "command", Id: 3}, Data: []byte("x")},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestBadPutsAreRefused(t *testing.T) {
	column := func(name string, of arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: of, Nullable: true}
	}
	id, data := column("id", arrow.PrimitiveTypes.Int64), column("data", arrow.BinaryTypes.LargeBinary)
	for _, row := range []struct {
		fields     []arrow.Field
		rows, want string
	}{
		{[]arrow.Field{id}, `[{"id": 1}]`, "the columns id and data are required"},
		{[]arrow.Field{id, data, column("extra", arrow.PrimitiveTypes.Int64)}, `[{"id": 1}]`, `column "extra" is none of`},
		{[]arrow.Field{column("id", arrow.PrimitiveTypes.Int32), data}, `[{"id": 1}]`, "column id has another type"},
		{[]arrow.Field{id, column("data", arrow.BinaryTypes.String)}, `[{"id": 1}]`, "column data has another type"},
		{[]arrow.Field{id, data, column("timestamp", arrow.FixedWidthTypes.Timestamp_us)}, `[{"id": 1}]`,
			"column timestamp has another type"},
		{[]arrow.Field{id, data, column("request_id", &arrow.FixedSizeBinaryType{ByteWidth: 8})}, `[{"id": 1}]`,
			"column request_id has another type"},
		{[]arrow.Field{id, data}, `[{"id": 1, "data": "eA=="}, {"data": "eA=="}]`, "column id: row 1 is null"},
		{[]arrow.Field{id, data}, `[{"id": 1}]`, "column data: row 0 is null"},
		{[]arrow.Field{id, data}, `[]`, "the batch has 0 rows: send 1 to 1024"},
		{[]arrow.Field{id, data}, "[" + strings.Repeat(`{"id": 1, "data": ""},`, 1024) + `{"id": 1, "data": ""}]`,
			"the batch has 1025 rows: send 1 to 1024"},
	} {
		head, body, schema := puts(t, arrow.NewSchema(row.fields, nil), row.rows)
		s, err := readSchema(schema)
		if err == nil {
			_, err = s.putsOf(head, body, "")
		}
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v", row.want, err)
		}
	}
}

// FuzzPuts gives hostile messages to the decoder of puts, which must neither panic nor read outside of the body.
func FuzzPuts(f *testing.F) {
	head, body, schema := puts(f, fullPuts, fullRows)
	f.Add(schema, head, body)
	f.Add(schemaMessage, head, body)
	for _, at := range []int{0, 4, 8, 20, len(head) / 2, len(head) - 9} {
		broken := bytes.Clone(head)
		broken[at] ^= 0xff
		f.Add(schema, broken, body)
	}
	f.Add(schema, head, []byte(nil))
	f.Fuzz(func(t *testing.T, schema, head, body []byte) {
		s, err := readSchema(schema)
		if err != nil {
			return
		}
		out, err := s.putsOf(head, body, "g")
		if err == nil && (len(out.GetPuts()) < 1 || len(out.GetPuts()) > PutRowsMax) {
			t.Errorf("%d puts", len(out.GetPuts()))
		}
	})
}

// FuzzCommand gives hostile bytes to the decoders of commands and tickets. What they take, they give back.
func FuzzCommand(f *testing.F) {
	for _, seed := range []string{`{"get": {}}12345678`, `{"get": {"group": "a", "columns": ["data"]}}12345678`,
		`{"get": {"view": "v"}}`, `{"scan": {"groups": ["a"], "split_bytes": 5}}`, `{"put": {"group": "a"}}`, `{`, `null`,
		"\x01\x00\x07\x01xyz", "\x01\x01\xff\x03xyz", `{"get":{},"get":null}12345678`, `[[[[[[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, err := ParseGet(b); err == nil {
			if n := g.Len(); n < 1 || n > IDsMax || g.Columns&alwaysFilled != alwaysFilled {
				t.Errorf("%d ids, columns %b", n, g.Columns)
			}
			_ = g.ID(g.Len() - 1)
		}
		if s, err := ParseScan(b); err == nil && s.Columns&^AllColumns != 0 {
			t.Errorf("columns %b", s.Columns)
		}
		_, _ = ParsePut(b)
		if ticket, err := ParseTicket(b); err == nil && !bytes.Equal(ticket.Encode(), b) {
			t.Errorf("ticket %v", ticket)
		}
	})
}

func TestRoutingComesInParts(t *testing.T) {
	table := &recordv1.WatchRoutingResponse{Epoch: 7, StoreUuid: "u"}
	for range routingPartGroups + 1 {
		table.Groups = append(table.Groups, &recordv1.GroupRoute{Group: "0", KeyLast: math.MaxUint64})
	}
	var sizes []int
	err := EachRouting(table, 3, func(result []byte) error {
		sizes = append(sizes, bytes.Count(result, []byte(`"key_last":"ffffffffffffffff"`)))
		return nil
	})
	if err != nil || !slices.Equal(sizes, []int{routingPartGroups, 1}) {
		t.Errorf("parts %v, %v", sizes, err)
	}
	stop := errors.New("stop")
	if err := EachRouting(&recordv1.WatchRoutingResponse{}, 0, func(result []byte) error {
		if want := `{"epoch":0,"store":"","mode":"named","groups":[]}`; string(result) != want {
			t.Errorf("%s", result)
		}
		return stop
	}); !errors.Is(err, stop) {
		t.Error(err)
	}
}
