package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"sheaf.dev/sheaf/client/recordv1"
)

// oneAnswer is one answer of scriptedStore. The zero value is success.
type oneAnswer struct {
	code   codes.Code
	reason string // empty if the transport fails
	wait   time.Duration
}

var (
	unknown    = oneAnswer{code: codes.Unknown, reason: "OUTCOME_UNKNOWN"}
	overloaded = oneAnswer{code: codes.ResourceExhausted, reason: "OVERLOADED", wait: time.Second}
	broken     = oneAnswer{code: codes.Unavailable}
	silent     = oneAnswer{code: codes.Unavailable, reason: "SHARD_UNREACHABLE"}
	slowReader = oneAnswer{code: codes.Unavailable, reason: "SLOW_READER"}
	mismatch   = oneAnswer{code: codes.Aborted, reason: "VERSION_MISMATCH"}
	exists     = oneAnswer{code: codes.AlreadyExists, reason: "RECORD_EXISTS"}
	failed     = oneAnswer{code: codes.FailedPrecondition, reason: "GROUP_FAILED"}
	rate       = oneAnswer{code: codes.ResourceExhausted, reason: "QUOTA_EXCEEDED", wait: time.Second}
	storage    = oneAnswer{code: codes.ResourceExhausted, reason: "QUOTA_EXCEEDED"}
)

// putAnswers are the successive answers to the puts of each record. Puts of other records succeed.
var putAnswers = map[int64][]oneAnswer{
	1:  {unknown, overloaded, broken, {}},
	2:  {mismatch},
	3:  {unknown, failed},
	4:  {unknown, exists},
	5:  {failed},
	8:  {rate, {}},
	9:  {storage},
	10: {{}},
	11: {overloaded, {}},
	12: {mismatch},
	13: {failed},
}

// clientLines are the lines that a driver prints for puts and reads. Programs with all calls also print
// clientLinesOfAll. "maybe" in a line says that the write may have been done.
var (
	clientLines = []string{
		"put 1: stored", "put 2: VERSION_MISMATCH", "put 3: GROUP_FAILED, maybe done", "put 4: RECORD_EXISTS",
		"put 5: GROUP_FAILED",
		"put 8: stored", "put 9: QUOTA_EXCEEDED",
		"get 6: harmed", "get 7: hello",
	}
	clientLinesOfAll = []string{
		"batch 12: VERSION_MISMATCH", "batch 13: GROUP_FAILED, maybe done",
		"watched 20", "watched 21", "scanned 30", "scanned 31",
	}
)

// scriptedStore answers each call according to its script. It records each call that a correct client would not make.
type scriptedStore struct {
	recordv1.UnimplementedRecordServiceServer
	mu       sync.Mutex
	puts     map[int64]int       // number of puts received
	ids      map[int64][]byte    // request id of each record's put
	late     map[int64]time.Time // maps each record to the time before which no other put of it may arrive
	calls    map[string]int      // number of calls of other methods
	breaches []string
}

func (s *scriptedStore) breach(format string, args ...any) {
	s.breaches = append(s.breaches, fmt.Sprintf(format, args...))
}

// next counts a call, and returns the number of earlier calls of the method.
func (s *scriptedStore) next(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
	return s.calls[method] - 1
}

func (a oneAnswer) status() *status.Status {
	st := status.New(a.code, "as the script says")
	var details []protoadapt.MessageV1
	if a.wait > 0 { // RetryInfo comes first, so that a client that reads only one detail misses the reason
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(a.wait)})
	}
	if a.reason != "" {
		details = append(details, &errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: a.reason})
	}
	st, err := st.WithDetails(details...)
	if err != nil && a.code != codes.OK {
		panic(err)
	}
	return st
}

// put checks a put and returns the scripted answer.
func (s *scriptedStore) put(ctx context.Context, in *recordv1.PutRequest) (*recordv1.PutResponse, oneAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := in.GetKey().GetId()
	n := s.puts[id]
	s.puts[id]++
	if first, ok := s.ids[id]; ok && !bytes.Equal(first, in.GetRequestId()) || len(in.GetRequestId()) != 16 {
		s.breach("put %d, attempt %d: the request id is %x, and was %x", id, n+1, in.GetRequestId(), first)
	}
	s.ids[id] = in.GetRequestId()
	if _, ok := ctx.Deadline(); !ok {
		s.breach("put %d has no deadline", id)
	}
	if time.Now().Before(s.late[id]) {
		s.breach("put %d, attempt %d came before the time that the last answer named", id, n+1)
	}
	if in.DataCrc32C != nil && in.GetDataCrc32C() != castagnoli(in.GetData()) {
		s.breach("put %d: the checksum is wrong", id)
	}
	if n >= len(putAnswers[id]) {
		s.breach("put %d came %d times, %d were right", id, n+1, len(putAnswers[id]))
		return nil, failed
	}
	answer := putAnswers[id][n]
	s.late[id] = time.Now().Add(answer.wait)
	return &recordv1.PutResponse{Version: "v1", DataCrc32C: castagnoli(in.GetData())}, answer
}

func castagnoli(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

func (s *scriptedStore) Put(ctx context.Context, in *recordv1.PutRequest) (*recordv1.PutResponse, error) {
	out, answer := s.put(ctx, in)
	if answer.code != codes.OK {
		return nil, answer.status().Err()
	}
	return out, nil
}

func (s *scriptedStore) Get(_ context.Context, in *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	if in.GetKey().GetId() == 7 && s.next("Get 7") == 0 {
		return nil, silent.status().Err()
	}
	out := scriptedRecord(in.GetKey().GetId())
	if in.GetKey().GetId() == 6 {
		out.Data = []byte("hallo")
	}
	return &recordv1.GetResponse{Record: out}, nil
}

// scriptedRecord returns a record that holds "hello". It has the attribute sha256, as if the shell program had stored
// it.
func scriptedRecord(id int64) *recordv1.Record {
	sum := castagnoli([]byte("hello"))
	return &recordv1.Record{
		Key: &recordv1.RecordKey{Id: id, Group: "g"}, Version: "v1", Data: []byte("hello"), SizeBytes: 5, DataCrc32C: &sum,
		Attributes: map[string][]byte{"sha256": []byte("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")},
	}
}

// BatchPut answers the puts of a message one by one. The second and the fourth stream, however, break after they have
// received a message.
func (s *scriptedStore) BatchPut(stream grpc.BidiStreamingServer[recordv1.BatchPutRequest,
	recordv1.BatchPutResponse]) error {
	n := s.next("BatchPut")
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has sent all its messages
		}
		if want, ok := map[int][]int64{0: {10, 11, 12}, 1: {11}, 2: {11}, 3: {13}, 4: {13}}[n]; !ok ||
			!slices.Equal(want, putIDs(in)) {
			s.mu.Lock()
			s.breach("batch %d puts %v, not %v", n+1, putIDs(in), want)
			s.mu.Unlock()
		}
		switch n {
		case 1:
			return broken.status().Err()
		case 3:
			return oneAnswer{code: codes.ResourceExhausted, reason: "OVERLOADED"}.status().Err()
		}
		out := &recordv1.BatchPutResponse{}
		for _, put := range in.GetPuts() {
			done, answer := s.put(stream.Context(), put)
			result := &recordv1.BatchPutResult{Put: done}
			if answer.code != codes.OK {
				result = &recordv1.BatchPutResult{Status: answer.status().Proto()}
			}
			out.Results = append(out.Results, result)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func putIDs(in *recordv1.BatchPutRequest) (ids []int64) {
	for _, put := range in.GetPuts() {
		ids = append(ids, put.GetKey().GetId())
	}
	return ids
}

// Watch breaks after its first record, and sends the next record only if the caller sends the cursor of the first one.
func (s *scriptedStore) Watch(in *recordv1.WatchRequest,
	stream grpc.ServerStreamingServer[recordv1.WatchResponse]) error {
	id, breaks := int64(20), s.next("Watch") == 0
	if !breaks {
		id = 21
	}
	if want := map[bool]string{true: "", false: "cursor 20"}[breaks]; string(in.GetCursor()) != want ||
		in.GetGroup() != "g" {
		return status.Errorf(codes.InvalidArgument, "the watch of %q begins at %q, not at %q", in.GetGroup(), in.GetCursor(),
			want)
	}
	if err := stream.Send(&recordv1.WatchResponse{Cursor: in.GetCursor()}); err != nil {
		return err
	}
	cursor := []byte(fmt.Sprintf("cursor %d", id))
	if err := stream.Send(&recordv1.WatchResponse{Records: []*recordv1.Record{scriptedRecord(id)},
		Cursor: cursor}); err != nil {
		return err
	}
	if breaks {
		return slowReader.status().Err()
	}
	<-stream.Context().Done() // only the caller ends a watch
	return nil
}

// Scan breaks after its first record.
func (s *scriptedStore) Scan(in *recordv1.ScanRequest, stream grpc.ServerStreamingServer[recordv1.ScanResponse]) error {
	id, breaks := int64(30), s.next("Scan") == 0
	if !breaks {
		id = 31
	}
	if want := map[bool]string{true: "g", false: "cursor 30"}[breaks]; string(in.GetCursor())+in.GetGroup() != want {
		return status.Errorf(codes.InvalidArgument, "the scan of %q begins at %q", in.GetGroup(), in.GetCursor())
	}
	cursor := []byte(fmt.Sprintf("cursor %d", id))
	if err := stream.Send(&recordv1.ScanResponse{Records: []*recordv1.Record{scriptedRecord(id)},
		Cursor: cursor}); err != nil {
		return err
	}
	if breaks {
		return broken.status().Err()
	}
	return nil
}

// TestClientsHeedAnswers runs the programs of examples/ against a store that answers according to a script. A client
// must repeat a write only if the reason allows it, with the same request id, and not earlier than the answer's
// RetryInfo says. It must remember that a result is unknown, refuse damaged bytes, repeat the failed part of a batch,
// and continue a stream from its cursor.
func TestClientsHeedAnswers(t *testing.T) {
	for _, program := range clientPrograms {
		t.Run(program.language, func(t *testing.T) {
			command := program.driverCommand(t)
			store := &scriptedStore{puts: map[int64]int{}, ids: map[int64][]byte{}, late: map[int64]time.Time{},
				calls: map[string]int{}}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			server := grpc.NewServer()
			recordv1.RegisterRecordServiceServer(server, store)
			reflection.Register(server)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(server.Stop)
			d := startDriver(t, append(command, listener.Addr().String(), "answers"))
			got := d.awaitExit()
			want := clientLines
			if program.calls == "all" {
				want = slices.Concat(want, clientLinesOfAll)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the driver says\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			store.mu.Lock()
			defer store.mu.Unlock()
			for _, breach := range store.breaches {
				t.Error(breach)
			}
			for _, id := range []int64{1, 2, 3, 4, 5, 8, 9} {
				if store.puts[id] != len(putAnswers[id]) {
					t.Errorf("put %d came %d times, not %d", id, store.puts[id], len(putAnswers[id]))
				}
			}
		})
	}
}
