package gateway_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/must"
)

// flightGet reads ids by DoGet, and returns the data or the status of each row.
func flightGet(t *testing.T, c *cluster, command string, ids ...int64) (rows []string, err error) {
	t.Helper()
	ticket := []byte(command)
	for _, id := range ids {
		ticket = binary.LittleEndian.AppendUint64(ticket, uint64(id))
	}
	stream, err := flight.NewFlightServiceClient(c.conn).DoGet(c.ctx, &flight.Ticket{Ticket: ticket})
	must.OK(t, err)
	reader, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return nil, err
	}
	defer reader.Release()
	for {
		batch, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		for i := range int(batch.NumRows()) {
			if got, want := batch.Column(1).(*array.Int64).Value(i), ids[len(rows)]; got != want {
				t.Fatalf("row %d is of %d, and must be of %d", len(rows), got, want)
			}
			if word := batch.Column(8); !word.IsNull(i) {
				rows = append(rows, "!"+strings.Clone(word.(*array.String).Value(i)))
				continue
			}
			rows = append(rows, string(batch.Column(9).(*array.LargeBinary).Value(i)))
		}
	}
}

// TestFlightGetsFromAllShardsInOrder reads ids of all groups and with duplicates, in an order of the caller.
func TestFlightGetsFromAllShardsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(8), gateway.Config{}, "a", "b", "c")
		var ids []int64
		for id := range int64(900) {
			ids = append(ids, (id*37)%700)
		}
		for id := range int64(600) {
			_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id), Data: []byte(strings.Repeat("x", int(id)))})
			must.OK(t, err)
		}
		rows, err := flightGet(t, c, `{"get": {}}`, ids...)
		must.OK(t, err)
		if len(rows) != len(ids) {
			t.Fatalf("%d rows for %d ids", len(rows), len(ids))
		}
		for i, id := range ids {
			want := strings.Repeat("x", int(id))
			if id >= 600 {
				want = "!RECORD_NOT_FOUND"
			}
			if rows[i] != want {
				t.Fatalf("record %d: %.40q", id, rows[i])
			}
		}
		for text, command := range map[string]string{
			"[INVALID_ARGUMENT] columns: ":       `{"get": {"columns": ["x"]}}`,
			"[INVALID_ARGUMENT] view: ":          `{"get": {"view": ""}}`,
			"[GROUP_NOT_FOUND] ":                 `{"get": {"group": "8"}}`,
			"[INVALID_ARGUMENT] ticket: is not ": "\x01\x00\xff\x03",
		} {
			if _, err := flightGet(t, c, command, 1); !strings.HasPrefix(status.Convert(err).Message(), text) {
				t.Errorf("%s: %v", command, err)
			}
		}
	})
}

// TestFlightRoutingComputesGroups checks that a client which follows the action "routing" finds the same groups.
func TestFlightRoutingComputesGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(3), gateway.Config{}, "a", "b")
		call := func(kind string) ([]byte, error) {
			stream, err := flight.NewFlightServiceClient(c.conn).DoAction(c.ctx, &flight.Action{Type: kind})
			must.OK(t, err)
			out, err := stream.Recv()
			return out.GetBody(), err
		}
		body, err := call("routing")
		must.OK(t, err)
		var got struct {
			Mode       string
			HashGroups uint64 `json:"hash_groups"`
			Key        struct {
				Shifts      []uint
				Multipliers []string
			}
			Groups []struct{ Name, Leader string }
		}
		must.OK(t, json.Unmarshal(body, &got))
		if got.Mode != "hash" || got.HashGroups != 3 || len(got.Groups) != 3 ||
			got.Groups[1].Leader != c.shards["b"].address ||
			len(got.Key.Shifts) != 3 || got.Key.Multipliers[0] != "bf58476d1ce4e5b9" {
			t.Errorf("%s", body)
		}
		if key := routing.Key(1); key != 0x5692161d100b05e5 {
			t.Errorf("the key of 1 is %x", key)
		}
		_, err = call("open-sesame")
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(),
			"[INVALID_ARGUMENT] type: \"open-sesame\" is no action") {
			t.Error(err)
		}
	})
}

// TestFlightPutsAtAllShards puts a batch whose rows belong to several shards.
func TestFlightPutsAtAllShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(8), gateway.Config{}, "a", "b")
		stream, err := flight.NewFlightServiceClient(c.conn).DoPut(c.ctx)
		must.OK(t, err)
		schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64},
			{Name: "data", Type: arrow.BinaryTypes.Binary}}, nil)
		ids := array.NewInt64Builder(memory.DefaultAllocator)
		data := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
		var asked []int64
		for id := range int64(100) {
			asked = append(asked, id)
			ids.Append(id)
			data.AppendString(strings.Repeat("y", int(id)))
		}
		batch := array.NewRecordBatch(schema, []arrow.Array{ids.NewArray(), data.NewArray()}, 100)
		writer := arrowflight.NewRecordWriter(stream, ipc.WithSchema(schema))
		writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD, Cmd: []byte(`{"put": {}}`)})
		must.OK(t, writer.Write(batch))
		out, err := stream.Recv()
		must.OK(t, err)
		if n := strings.Count(string(out.GetAppMetadata()), "false"); n != 100 {
			t.Errorf("%d results: %s", n, out.GetAppMetadata())
		}
		must.OK(t, stream.CloseSend())
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		rows, err := flightGet(t, c, `{"get": {}}`, asked...)
		must.OK(t, err)
		for id, row := range rows {
			if row != strings.Repeat("y", id) {
				t.Errorf("record %d: %.40q", id, row)
			}
		}
	})
}
