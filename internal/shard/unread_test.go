package shard

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// unreadSlack is the memory that an unread stream may take beyond the memory that is counted. It covers 64 KiB that
// the caller's side has received, messages that are too small to be counted one by one, goroutines, and gRPC's own
// state for the stream.
const unreadSlack = 256 << 10

// sends counts the messages that a shard begins and finishes sending on streams, and the streams whose handlers have
// returned.
type sends struct{ begun, ended, calls atomic.Int64 }

type countedStream struct {
	grpc.ServerStream
	sends *sends
}

func (s countedStream) SendMsg(m any) error {
	s.sends.begun.Add(1)
	defer s.sends.ended.Add(1)
	return s.ServerStream.SendMsg(m)
}

func (s *sends) option() grpc.ServerOption {
	return grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo,
		handler grpc.StreamHandler) error {
		defer s.calls.Add(1)
		return handler(srv, countedStream{ss, s})
	})
}

// quiet waits until n streams have come to rest. Each of them must either be sending a message that its reader does
// not take, or have passed everything to gRPC, so that its handler has returned. In addition, no stream may have
// begun another message for a while.
func (f *fixture) quiet(s *sends, n int64) {
	f.t.Helper()
	last, since := int64(-1), time.Now()
	f.eventually("nobody sends any more", func() bool {
		begun, ended := s.begun.Load(), s.ended.Load()
		if begun != last {
			last, since = begun, time.Now()
		}
		return begun-ended+s.calls.Load() >= n && time.Since(since) > 300*time.Millisecond
	})
}

// unreadConn returns a client that accepts 64 KiB of unread data for each stream.
func (f *fixture) unreadConn() recordv1.RecordServiceClient {
	f.t.Helper()
	return recordv1.NewRecordServiceClient(f.smallWindows())
}

// smallWindows returns a connection that accepts 64 KiB of unread data for each stream.
func (f *fixture) smallWindows() *grpc.ClientConn {
	f.t.Helper()
	conn, err := connect(&f.cfg, f.shard.Addr(),
		grpc.WithStaticStreamWindowSize(1<<16), grpc.WithStaticConnWindowSize(64<<20), grpc.WithDefaultCallOptions(
			// gRPC's own codec holds 1 MiB for a request above 32 KiB.
			grpc.MaxCallRecvMsgSize(16<<20), grpc.ForceCodecV2(message.Codec{})))
	must(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // the second collection frees the objects in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// unreadCall opens the n-th stream, which nobody reads.
type unreadCall func(ctx context.Context, conn *grpc.ClientConn, n int) error

func unreadScan(ctx context.Context, conn *grpc.ClientConn, _ int) error {
	_, err := recordv1.NewRecordServiceClient(conn).Scan(ctx, &recordv1.ScanRequest{Group: "0"})
	return err
}

func unreadBatchGet(records int) unreadCall {
	in := &recordv1.BatchGetRequest{} // shared by all streams, because gRPC's client holds the request
	for id := range int64(records) {
		in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(id)})
	}
	return func(ctx context.Context, conn *grpc.ClientConn, _ int) error {
		_, err := recordv1.NewRecordServiceClient(conn).BatchGet(ctx, in)
		return err
	}
}

func unreadDownload(id int64) unreadCall {
	return func(ctx context.Context, conn *grpc.ClientConn, _ int) error {
		_, err := recordv1.NewRecordServiceClient(conn).Download(ctx, &recordv1.DownloadRequest{Key: key(id)})
		return err
	}
}

// unreadFlight reads ids from 0 by DoGet.
func unreadFlight(records int) unreadCall {
	var ids []int64
	for id := range int64(records) {
		ids = append(ids, id)
	}
	ticket := flightTicket(`{"get": {}}`, ids...) // shared by all streams
	return func(ctx context.Context, conn *grpc.ClientConn, _ int) error {
		_, err := flight.NewFlightServiceClient(conn).DoGet(ctx, ticket)
		return err
	}
}

// unreadTicket scans the whole group by DoGet.
func unreadTicket(ctx context.Context, conn *grpc.ClientConn, _ int) error {
	client := flight.NewFlightServiceClient(conn)
	info, err := client.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
		Cmd: []byte(`{"scan": {}}`)})
	if err == nil {
		_, err = client.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	}
	return err
}

func unreadWatch(ctx context.Context, conn *grpc.ClientConn, _ int) error {
	stream, err := recordv1.NewRecordServiceClient(conn).Watch(ctx, &recordv1.WatchRequest{Group: "0"})
	if err == nil {
		_, err = stream.Recv() // the first message arrives even without changes
	}
	return err
}

// This test runs in real time and on real disks. It measures the heap of the process, and a disk in memory would be
// part of that heap.
func TestWhatUnreadStreamsHoldIsCounted(t *testing.T) {
	soaktest.Only(t, "raft",
		"it counts the memory of the whole process, of which other tests and the race detector take their part")
	const (
		streams = 16
		blobID  = 1 << 40
		bigID   = 1<<40 + 1
	)
	writes := func(f *fixture) {
		for id := range int64(300) {
			f.put(id, data(id+1, 10_000))
		}
	}
	for _, c := range []struct {
		name      string
		residency group.Residency
		cold      bool
		records   int // number of 10,000-byte records
		bytes     int // size of a record; 0 means 10,000
		call      unreadCall
		after     func(f *fixture) // called when the streams are open
	}{
		{name: "Scan/warm", call: unreadScan},
		{name: "Scan/cold", call: unreadScan, cold: true},
		{name: "Scan/resident", call: unreadScan, residency: group.Resident},
		{name: "Scan/small records", call: unreadScan, records: 20_000, bytes: 20},
		{name: "Scan/large records", call: unreadScan, records: 12, bytes: format.DataBytesMax},
		{name: "BatchGet/4 of 10,000 bytes", call: unreadBatchGet(4)},
		{name: "BatchGet/100 of 10,000 bytes", call: unreadBatchGet(100)},
		{name: "BatchGet/1,000 of 10,000 bytes", call: unreadBatchGet(1000)},
		{name: "BatchGet/resident", call: unreadBatchGet(1000), residency: group.Resident},
		{name: "BatchGet/small records", call: unreadBatchGet(4096), records: 5000, bytes: 20},
		{name: "BatchGet/large records", call: unreadBatchGet(12), records: 12, bytes: format.DataBytesMax},
		{name: "DoGet/1,000 of 10,000 bytes", call: unreadFlight(1000)},
		{name: "DoGet/resident", call: unreadFlight(1000), residency: group.Resident},
		{name: "DoGet/small records", call: unreadFlight(40_000), records: 20_000, bytes: 20},
		{name: "DoGet/large records", call: unreadFlight(12), records: 12, bytes: format.DataBytesMax},
		{name: "DoGet/ticket", call: unreadTicket},
		{name: "DoGet/ticket, small records", call: unreadTicket, records: 20_000, bytes: 20},
		{name: "DoGet/ticket, large records", call: unreadTicket, records: 12, bytes: format.DataBytesMax},
		{name: "Download/blob", call: unreadDownload(blobID)},
		{name: "Download/inline", call: unreadDownload(bigID)},
		{name: "Watch", call: unreadWatch, after: writes},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &sends{}
			f := start(t, newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1"), func(cfg *Config) {
				cfg.Residency, cfg.SegmentBytes = c.residency, 4<<20
				cfg.Limits, cfg.sendTimeout = Limits{AnswerBytesMax: 1 << 30}, time.Hour
				cfg.ServerOptions = []grpc.ServerOption{s.option()}
			}).ready()
			c.records = cmp.Or(c.records, 1200)
			c.bytes = cmp.Or(c.bytes, 10_000)
			f.fillBatches(c.records, c.bytes)
			f.put(bigID, data(bigID, format.DataBytesMax))
			if _, err := f.upload(&recordv1.UploadHeader{Key: key(blobID)}, cut(data(blobID, 8<<20), 1<<20)...); err != nil {
				t.Fatal(err)
			}
			if c.cold {
				f.stop()
				f = f.again(nil).ready()
			}
			client := f.smallWindows()
			first, end := context.WithCancel(f.ctx())
			// The first call allocates memory that later calls reuse, so that memory must not be counted.
			if err := unreadBatchGet(1)(first, client, 0); err != nil {
				t.Fatal(err)
			}
			end()
			f.eventually("the first call has ended", func() bool { return f.shard.calls.Calls() == 0 })
			f.eventually("what was held is given back", func() bool { return f.shard.calls.AnswerBytes() == 0 })
			ended := s.calls.Load()
			before := heapBytes()
			for n := range streams {
				must(t, c.call(f.ctx(), client, n))
			}
			if c.after != nil {
				c.after(f)
			}
			f.quiet(s, ended+streams)
			var growth, counted int64
			ok := func() bool {
				growth, counted = heapBytes()-before, f.shard.calls.AnswerBytes()
				return growth <= counted+streams*unreadSlack
			}
			for end := time.Now().Add(20 * time.Second); !ok() && time.Now().Before(end); {
				time.Sleep(100 * time.Millisecond) // a scan releases the log's buffers after a while
			}
			what := fmt.Sprintf("%d streams hold %.2f MiB each, %.2f MiB are counted", streams, mebibytes(growth)/streams,
				mebibytes(counted)/streams)
			t.Log(what)
			if !ok() {
				t.Error(what)
			}
			_ = f.conn.Close()
		})
	}
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

// fillBatches stores n records with ids from 0.
func (f *fixture) fillBatches(n, bytes int) {
	f.t.Helper()
	stream, err := f.records.BatchPut(f.ctx())
	must(f.t, err)
	per := max(1, min(serve.BatchPutsMax, (3<<20)/bytes))
	for id := 0; id < n; {
		in := &recordv1.BatchPutRequest{}
		for ; id < n && len(in.GetPuts()) < per; id++ {
			in.Puts = append(in.Puts, &recordv1.PutRequest{Key: key(int64(id)), Data: data(int64(id), bytes)})
		}
		must(f.t, stream.Send(in))
		out, err := stream.Recv()
		must(f.t, err)
		for _, r := range out.GetResults() {
			if r.GetStatus().GetCode() != int32(codes.OK) {
				f.t.Fatalf("put: %v", r.GetStatus())
			}
		}
	}
	must(f.t, stream.CloseSend())
	_, _ = stream.Recv() // waits until the stream has ended
}
