package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group"
)

// flightSchema is the schema of docs/flight.md. It never changes.
var flightSchema = arrow.NewSchema([]arrow.Field{
	{Name: "group", Type: arrow.BinaryTypes.String},
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "version", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "timestamp", Type: &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}, Nullable: true},
	{Name: "commit_time", Type: &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}, Nullable: true},
	{Name: "attributes", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.Binary), Nullable: true},
	{Name: "size", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "crc32c", Type: arrow.PrimitiveTypes.Uint32, Nullable: true},
	{Name: "status", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "data", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
}, nil)

// flightRow is a row that a test has read.
type flightRow struct {
	*recordv1.Record
	status  string
	present map[string]bool // columns that are not null
}

// flightTicket returns the ticket of a command with ids.
func flightTicket(command string, ids ...int64) *flight.Ticket {
	out := []byte(command)
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint64(out, uint64(id))
	}
	return &flight.Ticket{Ticket: out}
}

// readFlight reads a stream by Arrow's own reader, at most the given number of batches, or all of them if most is 0. It
// returns the app_metadata of the last batch.
func readFlight(t testing.TB, stream flight.FlightService_DoGetClient, most int) (rows []flightRow, last []byte,
	err error) {
	t.Helper()
	reader, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return nil, nil, err
	}
	defer reader.Release()
	if !reader.Schema().Equal(flightSchema) {
		t.Fatalf("the schema is %v", reader.Schema())
	}
	for n := 0; most == 0 || n < most; n++ {
		batch, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return rows, last, err
		}
		last = reader.LatestAppMetadata()
		bytes := 0
		for i := range int(batch.NumRows()) {
			rows = append(rows, rowOf(batch, i))
			bytes += len(rows[len(rows)-1].GetData())
		}
		if batch.NumRows() == 0 || batch.NumRows() > 4096 || batch.NumRows() > 1 && bytes > 1<<20 {
			t.Errorf("a batch of %d rows with %d bytes", batch.NumRows(), bytes)
		}
	}
	return rows, last, nil
}

func rowOf(batch arrow.RecordBatch, i int) flightRow {
	r := flightRow{Record: &recordv1.Record{Key: &recordv1.RecordKey{}}, present: map[string]bool{}}
	for n, field := range batch.Schema().Fields() {
		column := batch.Column(n)
		if column.IsNull(i) {
			continue
		}
		r.present[field.Name] = true
		switch field.Name {
		case "group":
			r.Key.Group = strings.Clone(column.(*array.String).Value(i))
		case "id":
			r.Key.Id = column.(*array.Int64).Value(i)
		case "version":
			r.Version = strings.Clone(column.(*array.String).Value(i))
		case "timestamp":
			r.TimestampUnixNs = int64(column.(*array.Timestamp).Value(i))
		case "commit_time":
			r.CommitTimeUnixNs = int64(column.(*array.Timestamp).Value(i))
		case "attributes":
			m := column.(*array.Map)
			from, to := m.ValueOffsets(i)
			for at := int(from); at < int(to); at++ {
				if r.Attributes == nil {
					r.Attributes = map[string][]byte{}
				}
				r.Attributes[strings.Clone(m.Keys().(*array.String).Value(at))] =
					bytes.Clone(m.Items().(*array.Binary).Value(at))
			}
		case "size":
			r.SizeBytes = column.(*array.Int64).Value(i)
		case "crc32c":
			r.DataCrc32C = new(column.(*array.Uint32).Value(i))
		case "status":
			r.status = strings.Clone(column.(*array.String).Value(i))
		case "data":
			r.Data = bytes.Clone(column.(*array.LargeBinary).Value(i))
		}
	}
	return r
}

// flightGet reads ids by DoGet.
func (f *fixture) flightGet(command string, ids ...int64) ([]flightRow, error) {
	f.t.Helper()
	return f.flightRead(flightTicket(command, ids...))
}

func (f *fixture) flightRead(ticket *flight.Ticket) ([]flightRow, error) {
	f.t.Helper()
	stream, err := flight.NewFlightServiceClient(f.conn).DoGet(f.ctx(), ticket,
		grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(128<<20))
	must(f.t, err)
	rows, _, err := readFlight(f.t, stream, 0)
	return rows, err
}

// wantText checks the code of an error, and the beginning of its text.
func wantText(t testing.TB, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.HasPrefix(status.Convert(err).Message(), text) {
		t.Errorf("got %v, want %s with %q", err, code, text)
	}
}

// sameRecord checks that a row has what Get and Scan return for a record.
func sameRecord(t testing.TB, r flightRow, want *recordv1.Record) {
	t.Helper()
	a, b := fmt.Sprint(r.GetKey(), r.GetVersion(), r.GetTimestampUnixNs(), r.GetCommitTimeUnixNs(), r.GetSizeBytes(),
		r.GetAttributes(), r.GetDataCrc32C()), fmt.Sprint(want.GetKey(), want.GetVersion(), want.GetTimestampUnixNs(),
		want.GetCommitTimeUnixNs(), want.GetSizeBytes(), want.GetAttributes(), want.GetDataCrc32C())
	if a != b || !bytes.Equal(r.GetData(), want.GetData()) || r.status != "" {
		t.Errorf("row %s with %d bytes, status %q;\nwant %s with %d bytes", a, len(r.GetData()), r.status, b,
			len(want.GetData()))
	}
}

// TestFlightGetsWhatBatchGetGets reads records of all sizes in an order with duplicates, absent ids and both ends of
// int64, and compares each row with the answer to Get.
func TestFlightGetsWhatBatchGetGets(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			ids := []int64{math.MinInt64, math.MaxInt64, 0, -1}
			for id := range int64(400) {
				ids = append(ids, id*7)
			}
			for i, id := range ids {
				size := []int{0, 1, 10_000, 100, 17_000, 70_000, 3_000}[i%7]
				if i == 50 || i == 51 || i == 200 {
					size = 1 << 20
				}
				in := &recordv1.PutRequest{Key: key(id), Data: data(id, size)}
				if i%3 == 0 {
					in.Attributes = map[string][]byte{"kind": []byte("x"), "a": {}, "z": {0, 1, 2}}
					in.TimestampUnixNs = new(int64(i) - 200)
				}
				_, err := f.records.Put(f.ctx(), in)
				must(t, err)
			}
			f.delete(7)
			asked := []int64{ids[5], 7, 5, ids[0], ids[1]}
			asked = append(append(asked, ids...), ids[10], ids[10], ids[10])
			rows, err := f.flightGet(`{"get": {}}`, asked...)
			must(t, err)
			if len(rows) != len(asked) {
				t.Fatalf("%d rows for %d ids", len(rows), len(asked))
			}
			for i, r := range rows {
				if r.GetKey().GetId() != asked[i] {
					t.Fatalf("row %d is of %d, and must be of %d", i, r.GetKey().GetId(), asked[i])
				}
				out, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(asked[i])})
				if err != nil {
					if reasonOf(err) != r.status || len(r.present) != 3 {
						t.Errorf("row of %d: status %q, columns %v; Get: %v", asked[i], r.status, r.present, err)
					}
					continue
				}
				sameRecord(t, r, out.GetRecord())
			}
			f.eventually("nothing is taken", func() bool {
				return f.shard.calls.AnswerBytes() == 0 && f.shard.calls.Calls() == 0
			})
		})
	})
}

// TestFlightFillsInTheColumnsThatAreAskedFor checks which columns are null.
func TestFlightFillsInTheColumnsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			f.put(1, data(1, 5000))
			for columns, want := range map[string]string{
				`[]`:                         "group id",
				`["data"]`:                   "data group id",
				`["crc32c"]`:                 "crc32c group id",
				`["size","version"]`:         "group id size version",
				`["attributes","timestamp"]`: "attributes group id timestamp",
				`null`:                       "attributes commit_time crc32c data group id size timestamp version",
			} {
				rows, err := f.flightGet(`{"get": {"columns": `+columns+`}}`, 1)
				must(t, err)
				var got []string
				for _, field := range flightSchema.Fields() {
					if rows[0].present[field.Name] {
						got = append(got, field.Name)
					}
				}
				if !sameWords(got, strings.Fields(want)) {
					t.Errorf("columns %s: %v", columns, got)
				}
				if rows[0].present["data"] && !bytes.Equal(rows[0].GetData(), data(1, 5000)) {
					t.Errorf("columns %s: other data", columns)
				}
			}
		})
	})
}

func sameWords(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for _, word := range a {
		if !strings.Contains(" "+strings.Join(b, " ")+" ", " "+word+" ") {
			return false
		}
	}
	return true
}

// TestFlightScansWhatScanScans reads all tickets of a plan, resumes behind each batch, and compares with Scan.
func TestFlightScansWhatScanScans(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		there := f.fill(300, 20_000)
		client := flight.NewFlightServiceClient(f.conn)
		info, err := client.GetFlightInfo(f.ctx(), &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
			Cmd: []byte(`{"scan": {"split_bytes": 1048576}}`)})
		must(t, err)
		if schema, err := arrowflight.DeserializeSchema(info.GetSchema(), nil); err != nil || !schema.Equal(flightSchema) {
			t.Errorf("schema %v, %v", schema, err)
		}
		if len(info.GetEndpoint()) < 4 || info.GetTotalRecords() == 0 || info.GetTotalBytes() == 0 {
			t.Errorf("%d endpoints, %d records, %d bytes", len(info.GetEndpoint()), info.GetTotalRecords(),
				info.GetTotalBytes())
		}
		var all, resumed []*recordv1.Record
		for _, e := range info.GetEndpoint() {
			if len(e.GetLocation()) != 1 || !strings.HasPrefix(e.GetLocation()[0].GetUri(), "grpc+tcp://") {
				t.Errorf("locations %v", e.GetLocation())
			}
			var known struct{ Group string }
			must(t, json.Unmarshal(e.GetAppMetadata(), &known))
			rows, err := f.flightRead(e.GetTicket())
			must(t, err)
			for _, r := range rows {
				if r.status != "" || r.GetKey().GetGroup() != known.Group {
					t.Errorf("record %v: status %q", r.GetKey(), r.status)
				}
				all = append(all, r.Record)
			}
			for ticket := e.GetTicket(); ticket != nil; {
				ctx, cancel := context.WithCancel(f.ctx())
				stream, err := client.DoGet(ctx, ticket)
				must(t, err)
				rows, last, err := readFlight(t, stream, 1)
				must(t, err)
				cancel()
				for _, r := range rows {
					resumed = append(resumed, r.Record)
				}
				if ticket = nil; len(rows) > 0 {
					ticket = &flight.Ticket{Ticket: last}
				}
			}
		}
		same(t, all, there)
		same(t, resumed, there)
	})
}

// TestFlightRefusesBadCommands checks that each bad command is refused with words.
func TestFlightRefusesBadCommands(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		const invalid = "[INVALID_ARGUMENT] "
		for command, want := range map[string]string{
			``:                                invalid,
			`{`:                               invalid,
			`{"get": {}`:                      invalid,
			`{"got": {}}`:                     invalid + `the command is not one of docs/flight.md: json: unknown field "got"`,
			`{"get": {"group": 5}}`:           invalid,
			`{"get": {"order": "random"}}`:    invalid,
			`{"get": {}, "scan": {}}`:         invalid,
			`{"scan": {}}`:                    invalid,
			`{}`:                              invalid,
			`null`:                            invalid,
			`{"get": {"columns": ["datum"]}}`: invalid + `columns: "datum" is none of group, id, version`,
			`{"get": {"view": "v"}}`:          invalid + `view: "v" is not the id of a view`,
			`{"get": {"view": ""}}`:           invalid + `view: is empty`,
			`{"get": {"group": "4"}}`:         invalid + `group: "4" is no group`,
			`{"get": {}} `:                    invalid + `get: 9 bytes follow the command`,
			"\x01":                            invalid + `ticket: is not a ticket`,
			"\x01\x00\x07\x01" + strings.Repeat("x", 60): invalid + `split: is not a value that a shard gave out`,
			"\x01\x02\xff\x03" + strings.Repeat("x", 60): invalid + `ticket: is not a ticket`,
			strings.Repeat(" ", 2<<20):                   invalid,
		} {
			_, err := f.flightGet(command, 1)
			if status.Code(err) == codes.NotFound {
				wantText(t, err, codes.NotFound, want)
				continue
			}
			wantText(t, err, codes.InvalidArgument, want)
		}
		_, err := f.flightGet(`{"get": {}}`)
		wantText(t, err, codes.InvalidArgument, "[INVALID_ARGUMENT] get: has 0 ids: give 1 to 65536")
		_, err = f.flightGet(`{"get": {}}`, make([]int64, 65537)...)
		wantText(t, err, codes.InvalidArgument, "[INVALID_ARGUMENT] get: has 65537 ids: give 1 to 65536")
		_, err = f.flightGet(`{"get": {}}`, make([]int64, 1_200_000)...)
		wantText(t, err, codes.InvalidArgument, "[INVALID_ARGUMENT] get: the ticket is too long")
		_, err = f.flightGet(`{"get": {}}`, make([]int64, 10_000_000)...)
		wantText(t, err, codes.ResourceExhausted, "grpc: received message larger than max") // gRPC refuses it unread
		client := flight.NewFlightServiceClient(f.conn)
		for command, want := range map[string]string{
			`{"get": {}}`:                     invalid,
			`{"scan": {}} x`:                  invalid,
			`{"scan": {"groups": ["x"]}}`:     invalid + "groups",
			`{"scan": {"split_bytes": 1}}`:    invalid + "split_bytes",
			`{"scan": {"view": "v"}}`:         invalid + "view: ",
			`{"scan": {"columns": ["x"]}}`:    invalid + "columns",
			`{"scan": {"groups": ["0","0"]}}`: invalid + "groups",
		} {
			_, err := client.GetFlightInfo(f.ctx(), &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
				Cmd: []byte(command)})
			if !strings.HasPrefix(status.Convert(err).Message(), want) {
				t.Errorf("%s: %v", command, err)
			}
		}
		_, err = client.GetFlightInfo(f.ctx(), &flight.FlightDescriptor{Type: flight.FlightDescriptor_PATH})
		wantText(t, err, codes.InvalidArgument, "[INVALID_ARGUMENT] the descriptor is a path")
		_, err = client.GetSchema(f.ctx(), &flight.FlightDescriptor{})
		wantText(t, err, codes.Unimplemented, "[UNIMPLEMENTED] GetSchema is not served")
		action, err := client.DoAction(f.ctx(), &flight.Action{Type: "routing"})
		must(t, err)
		_, err = action.Recv()
		wantText(t, err, codes.Unimplemented, "[UNIMPLEMENTED] action \"routing\" is not served by a shard")
		f.eventually("nothing is taken", func() bool { return f.shard.calls.AnswerBytes() == 0 })
	})
}

// TestFlightRowsOfOneGroup checks the status of rows: absent, above 1 MiB, and a group that the command names. A
// changed ticket is refused.
func TestFlightRowsOfOneGroup(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(named, "s1", "a", "b"), nil).ready()
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: "a", Id: 1}, Data: []byte("x")})
		must(t, err)
		upload, err := f.records.Upload(f.ctx())
		must(t, err)
		must(t, upload.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{
			Key: &recordv1.RecordKey{Group: "a", Id: 2}}}}))
		for range 3 {
			must(t, upload.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: data(2, 500_000)}}))
		}
		_, err = upload.CloseAndRecv()
		must(t, err)
		rows, err := f.flightGet(`{"get": {"group": "a"}}`, 1, 2, 3)
		must(t, err)
		if rows[0].status != "" || string(rows[0].GetData()) != "x" {
			t.Errorf("record 1: %v %q", rows[0], rows[0].status)
		}
		if r := rows[1]; r.status != "USE_DOWNLOAD" || r.GetSizeBytes() != 1_500_000 || r.present["data"] ||
			r.present["crc32c"] || r.GetVersion() == "" {
			t.Errorf("record 2: %v %q", r, r.status)
		}
		if rows[2].status != "RECORD_NOT_FOUND" || rows[2].GetKey().GetGroup() != "a" {
			t.Errorf("record 3: %v %q", rows[2], rows[2].status)
		}
		rows, err = f.flightGet(`{"get": {"group": "a", "columns": ["size"]}}`, 2)
		must(t, err)
		if rows[0].status != "" || rows[0].GetSizeBytes() != 1_500_000 {
			t.Errorf("without data: %v %q", rows[0], rows[0].status)
		}
		_, err = f.flightGet(`{"get": {"group": "c"}}`, 1)
		wantText(t, err, codes.NotFound, "[GROUP_NOT_FOUND] ")
		_, err = f.flightGet(`{"get": {}}`, 1)
		must(t, err)
		info, err := flight.NewFlightServiceClient(f.conn).GetFlightInfo(f.ctx(), &flight.FlightDescriptor{
			Type: flight.FlightDescriptor_CMD, Cmd: []byte(`{"scan": {"groups": ["a"]}}`)})
		must(t, err)
		rows, err = f.flightRead(info.GetEndpoint()[0].GetTicket())
		must(t, err)
		if len(rows) != 2 || rows[1].status != "USE_DOWNLOAD" || rows[1].present["data"] {
			t.Errorf("scan: %v", rows)
		}
		rows, err = f.flightRead(&flight.Ticket{Ticket: append([]byte{1, 0, 0xff, 3}, info.GetEndpoint()[0].GetTicket().
			GetTicket()[4:]...)})
		must(t, err)
		if len(rows) != 2 {
			t.Errorf("the same ticket again: %d rows", len(rows))
		}
		for at := range info.GetEndpoint()[0].GetTicket().GetTicket() {
			forged := bytes.Clone(info.GetEndpoint()[0].GetTicket().GetTicket())
			if at == 2 || at == 3 {
				continue // the columns are outside of the seal
			}
			forged[at] ^= 0x80
			if _, err := f.flightRead(&flight.Ticket{Ticket: forged}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a ticket with another byte %d: %v", at, err)
			}
		}
	})
}

// TestFlightPutsWhatBatchPutPuts puts batches of records, and reads the statuses and the records.
func TestFlightPutsWhatBatchPutPuts(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(named, "s1", "a"), nil).ready()
		schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64},
			{Name: "data", Type: arrow.BinaryTypes.LargeBinary}, {Name: "if_absent", Type: arrow.FixedWidthTypes.Boolean,
				Nullable: true}}, nil)
		stream, err := flight.NewFlightServiceClient(f.conn).DoPut(f.ctx())
		must(t, err)
		writer := arrowflight.NewRecordWriter(stream, ipc.WithSchema(schema))
		writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
			Cmd: []byte(`{"put": {"group": "a"}}`)})
		for n, text := range []string{`[{"id": 1, "data": "YWJj"}, {"id": 2, "data": ""}]`,
			`[{"id": 3, "data": "eA=="}, {"id": 1, "data": "eA==", "if_absent": true}]`} {
			batch, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(text))
			must(t, err)
			must(t, writer.Write(batch))
			batch.Release()
			out, err := stream.Recv()
			must(t, err)
			var got struct {
				Status, Message []*string
				Version         []string
				CommitTime      []*int64 `json:"commit_time"`
				Repeated        []bool
			}
			must(t, json.Unmarshal(out.GetAppMetadata(), &got))
			if len(got.Status) != 2 || len(got.Message) != 2 || len(got.Version) != 2 || len(got.CommitTime) != 2 ||
				len(got.Repeated) != 2 || got.Status[0] != nil || got.Version[0] == "" || got.CommitTime[0] == nil {
				t.Fatalf("batch %d: %s", n, out.GetAppMetadata())
			}
			if refused := got.Status[1]; n == 1 && (refused == nil || *refused != "RECORD_EXISTS" || got.Version[1] == "") {
				t.Errorf("%s", out.GetAppMetadata())
			}
		}
		must(t, stream.CloseSend())
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		rows, err := f.flightGet(`{"get": {"group": "a"}}`, 1, 2, 3)
		must(t, err)
		if string(rows[0].GetData()) != "abc" || len(rows[1].GetData()) != 0 || string(rows[2].GetData()) != "x" {
			t.Errorf("%v", rows)
		}
		bad, err := flight.NewFlightServiceClient(f.conn).DoPut(f.ctx())
		must(t, err)
		must(t, bad.Send(&flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
			Cmd: []byte(`{"put": {}}`)}, DataHeader: []byte("no schema")}))
		_, err = bad.Recv()
		wantText(t, err, codes.InvalidArgument, "[INVALID_ARGUMENT] schema: ")
	})
}

// TestFlightSaysWhichRowIsDamaged checks that damage is the status of its row alone, and that a scan ends with it after
// all other rows.
func TestFlightSaysWhichRowIsDamaged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			there := f.fill(60, 20_000)
			const hit = 13
			name := placement.GroupName(hash4.GroupOf(hit))
			f.stop()
			f.damage(name, there[hit])
			f = f.again(nil).ready()
			rows, err := f.flightGet(`{"get": {}}`, 12, hit, 14, hit)
			must(t, err)
			for i, want := range []string{"", "DAMAGED", "", "DAMAGED"} {
				if rows[i].status != want || rows[i].present["data"] != (want == "") {
					t.Errorf("row %d: status %q, columns %v", i, rows[i].status, rows[i].present)
				}
			}
			info, err := flight.NewFlightServiceClient(f.conn).GetFlightInfo(f.ctx(), &flight.FlightDescriptor{
				Type: flight.FlightDescriptor_CMD, Cmd: []byte(`{"scan": {"groups": ["` + name + `"]}}`)})
			must(t, err)
			rows, err = f.flightRead(info.GetEndpoint()[0].GetTicket())
			wantText(t, err, codes.DataLoss, "[DAMAGED] ")
			whole := 0
			for id := range there {
				if id != hit && hash4.GroupOf(id) == hash4.GroupOf(hit) {
					whole++
				}
			}
			if len(rows) != whole {
				t.Errorf("%d rows, and %d records are whole", len(rows), whole)
			}
		})
	})
}

// TestFlightsThatNobodyReadsAreBounded opens streams that nobody reads. What they hold stays within the limit of all
// streams, further ones are refused, and after a minute all have ended.
func TestFlightsThatNobodyReadsAreBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := stalledShard(t, 16<<20, time.Minute)
		client := flight.NewFlightServiceClient(f.smallWindows())
		ids := make([]int64, 1000)
		for i := range ids {
			ids[i] = int64(i % 20)
		}
		var streams []flight.FlightService_DoGetClient
		for range 64 {
			stream, err := client.DoGet(f.ctx(), flightTicket(`{"get": {}}`, ids...))
			must(t, err)
			streams = append(streams, stream)
		}
		f.eventually("some hold as much as they may", func() bool { return f.shard.calls.AnswerBytes() > 6<<20 })
		if held := f.shard.calls.AnswerBytes(); held > 16<<20 {
			t.Errorf("%d bytes are held", held)
		}
		f.put(100, data(100, 1000))
		f.holds(100, data(100, 1000))
		f.eventually("all have ended", func() bool { return f.shard.calls.Calls() == 0 })
		refused := map[string]int{}
		for _, stream := range streams {
			var err error
			for err == nil {
				_, err = stream.Recv()
			}
			word, _, _ := strings.Cut(status.Convert(err).Message(), "]")
			refused[word+"]"]++
		}
		if refused["[SLOW_READER]"] < 1 || refused["[OVERLOADED]"] < 1 || len(refused) != 2 {
			t.Errorf("the streams ended with %v", refused)
		}
		f.eventually("nothing is held", func() bool { return f.shard.calls.AnswerBytes() == 0 })
	})
}

// BenchmarkFlight compares DoGet of 100 ids and a scan by tickets with BatchGet and Scan, in one run. It reports
// records per second, of client and server together, and the ratios.
func BenchmarkFlight(b *testing.B) {
	const callers = 4
	for _, residency := range []group.Residency{group.Resident, group.Index} {
		b.Run(residency.String(), func(b *testing.B) {
			f := start(b, newRegistry(hash4, "s1"), func(c *Config) { c.Residency, c.SegmentBytes = residency, 0 }).ready()
			f.fillBatches(records, 10<<10)
			client := flight.NewFlightServiceClient(f.conn)
			drain := func(ticket *flight.Ticket) error {
				stream, err := client.DoGet(context.Background(), ticket)
				if err != nil {
					return err
				}
				reader, err := arrowflight.NewRecordReader(stream)
				if err != nil {
					return err
				}
				defer reader.Release()
				for {
					if _, err := reader.Read(); err != nil {
						if errors.Is(err, io.EOF) {
							return nil
						}
						return err
					}
				}
			}
			doGet := func(c, n int) error {
				ids := make([]int64, batchRecords)
				for i := range ids {
					ids[i] = int64((c*batches+n*7)*batchRecords+i*31) % records
				}
				return drain(flightTicket(`{"get": {}}`, ids...))
			}
			scans := func(c, n int) error {
				info, err := client.GetFlightInfo(context.Background(), &flight.FlightDescriptor{
					Type: flight.FlightDescriptor_CMD, Cmd: []byte(`{"scan": {"groups": ["0"]}}`)})
				if err != nil {
					return err
				}
				return drain(info.GetEndpoint()[0].GetTicket())
			}
			scan := func(c, n int) error {
				stream, err := f.records.Scan(context.Background(), &recordv1.ScanRequest{Group: "0"})
				for err == nil {
					_, err = stream.Recv()
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			}
			m := rounds(func() float64 { return batchRecords * rate(b, callers, doGet) },
				func() float64 {
					return batchRecords * rate(b, callers, func(c, n int) error { return getBatch(f, c*batches+n*7) })
				},
				func() float64 { return records / 4 * rate(b, 2, scans) },
				func() float64 { return records / 4 * rate(b, 2, scan) })
			b.ReportMetric(m[0], "doget-records/s")
			b.ReportMetric(m[0]/m[1], "doget/batchget")
			b.ReportMetric(m[2], "flight-scan-records/s")
			b.ReportMetric(m[2]/m[3], "flight-scan/scan")
			b.ReportMetric(0, "ns/op")
			f.shard.Kill()
		})
	}
}
