package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/call/paging"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/livenesstest"
)

// The shard in these tests is a stand-in that keeps records in a map. The tests need faults that a real shard shows
// only by chance. The tests of package client run the gateway with real shards.

// standIn is a shard in memory. The function fault is called before each call, or item of a batch, is applied. The
// function late is called after it is applied.
type standIn struct {
	recordv1.UnimplementedRecordServiceServer
	recordv1.UnimplementedAdminServiceServer
	name     string
	address  string
	volume   uuid.UUID
	raftID   uint64
	server   *grpc.Server
	listener *livenesstest.Listener
	mu       sync.Mutex
	records  map[string]map[int64]*recordv1.Record
	requests map[string]string // the version that was written under each request id
	large    int               // size above which Get needs a Download; 0: no limit
	applied  int
	calls    map[string]int
	epochs   []uint64
	routing  placement.Routing
	fault    func(method string, key *recordv1.RecordKey) error
	late     func(method string, key *recordv1.RecordKey) error
	trailer  metadata.MD // sent with each Put response
	moves    []*recordv1.Move
	members  map[string][]*recordv1.Member // the members that the stand-in reports when it leads, by group
	bad      []*recordv1.Damage            // the damages that Verify finds
	listed   []*recordv1.Group             // the groups to list in pages; if nil, the groups that the stand-in holds
}

func (s *standIn) Verify(_ context.Context, in *recordv1.VerifyRequest) (*recordv1.VerifyResponse, error) {
	if err := s.begin("Verify", &recordv1.RecordKey{Group: in.GetGroup()}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &recordv1.VerifyResponse{Bytes: 100, Entries: 10, Damages: s.bad}, nil
}

func (s *standIn) begin(method string, key *recordv1.RecordKey) error {
	s.mu.Lock()
	s.calls[method]++
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		return fault(method, key)
	}
	return nil
}

func (s *standIn) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// failFirst makes the first n calls to the method fail with err, and returns a counter of these failures.
func (s *standIn) failFirst(n int, method string, err error) *int {
	fired := new(int)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(called string, _ *recordv1.RecordKey) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if called != method || *fired == n {
			return nil
		}
		*fired++
		return err
	}
	return fired
}

func (s *standIn) group(key *recordv1.RecordKey) string {
	if s.routing.Mode == placement.Hash {
		return placement.GroupName(s.routing.GroupOf(key.GetId()))
	}
	return key.GetGroup()
}

func (s *standIn) put(key *recordv1.RecordKey, requestID, data []byte) *recordv1.PutResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	if v := s.requests[string(requestID)]; len(requestID) > 0 && v != "" {
		return &recordv1.PutResponse{Version: v, DataCrc32C: sum, Repeated: true}
	}
	s.applied++
	version := fmt.Sprint("v", s.applied)
	if len(requestID) > 0 {
		s.requests[string(requestID)] = version
	}
	group := s.group(key)
	if s.records[group] == nil {
		s.records[group] = map[int64]*recordv1.Record{}
	}
	s.records[group][key.GetId()] = &recordv1.Record{
		Key: &recordv1.RecordKey{Id: key.GetId(), Group: group}, Version: version, Data: slices.Clone(data),
		SizeBytes: int64(len(data)), DataCrc32C: &sum,
	}
	return &recordv1.PutResponse{Version: version, DataCrc32C: sum}
}

func (s *standIn) get(key *recordv1.RecordKey) (*recordv1.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[s.group(key)][key.GetId()]; r != nil {
		return r, nil
	}
	return nil, refuse(codes.NotFound, "RECORD_NOT_FOUND")
}

// bare returns a record without its data.
func bare(r *recordv1.Record) *recordv1.Record {
	out, _ := proto.Clone(r).(*recordv1.Record)
	out.Data = nil
	return out
}

// isLarge reports whether the data of a record need a Download.
func (s *standIn) isLarge(r *recordv1.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.large > 0 && len(r.GetData()) > s.large
}

// read answers a Get.
func (s *standIn) read(key *recordv1.RecordKey, metadataOnly bool) (*recordv1.Record, error) {
	r, err := s.get(key)
	switch {
	case err != nil:
		return nil, err
	case metadataOnly:
		return bare(r), nil
	case s.isLarge(r):
		return nil, refuse(codes.FailedPrecondition, "USE_DOWNLOAD")
	}
	return r, nil
}

func (s *standIn) Put(ctx context.Context, in *recordv1.PutRequest) (*recordv1.PutResponse, error) {
	_ = grpc.SetTrailer(ctx, s.trailer)
	if err := s.begin("Put", in.GetKey()); err != nil {
		return nil, err
	}
	out := s.put(in.GetKey(), in.GetRequestId(), in.GetData())
	if s.late != nil {
		if err := s.late("Put", in.GetKey()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *standIn) Get(ctx context.Context, in *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	if err := s.begin("Get", in.GetKey()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.epochs = append(s.epochs, in.GetRoutingEpoch())
	s.mu.Unlock()
	r, err := s.read(in.GetKey(), in.GetMetadataOnly())
	return &recordv1.GetResponse{Record: r}, err
}

func (s *standIn) BatchPut(stream recordv1.RecordService_BatchPutServer) error {
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.begin("BatchPut", nil); err != nil {
			return err
		}
		out := &recordv1.BatchPutResponse{}
		for _, put := range in.GetPuts() {
			result := &recordv1.BatchPutResult{}
			if err := s.begin("BatchPut item", put.GetKey()); err != nil {
				result.Status = status.Convert(err).Proto()
			} else {
				result.Put = s.put(put.GetKey(), put.GetRequestId(), put.GetData())
			}
			out.Results = append(out.Results, result)
		}
		if s.late != nil {
			if err := s.late("BatchPut", nil); err != nil {
				return err
			}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (s *standIn) BatchGet(in *recordv1.BatchGetRequest, stream recordv1.RecordService_BatchGetServer) error {
	if err := s.begin("BatchGet", nil); err != nil {
		return err
	}
	// The results are sent in reverse order, one in each message, because the contract does not specify the order.
	for i := len(in.GetGets()) - 1; i >= 0; i-- {
		result := &recordv1.BatchGetResult{Position: uint32(i)}
		err := s.begin("BatchGet item", in.GetGets()[i].GetKey())
		if err == nil {
			result.Record, err = s.read(in.GetGets()[i].GetKey(), in.GetGets()[i].GetMetadataOnly())
		}
		if err != nil {
			result.Status = status.Convert(err).Proto()
		}
		if err := stream.Send(&recordv1.BatchGetResponse{Results: []*recordv1.BatchGetResult{result}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *standIn) Upload(stream recordv1.RecordService_UploadServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	header := first.GetHeader()
	if err := s.begin("Upload", header.GetKey()); err != nil {
		return err
	}
	var data []byte
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		data = append(data, in.GetChunk()...)
	}
	if err := s.begin("Upload end", header.GetKey()); err != nil {
		return err
	}
	put := s.put(header.GetKey(), header.GetRequestId(), data)
	if s.late != nil {
		if err := s.late("Upload", header.GetKey()); err != nil {
			return err
		}
	}
	return stream.SendAndClose(&recordv1.UploadResponse{Put: put, SizeBytes: int64(len(data))})
}

func (s *standIn) Download(in *recordv1.DownloadRequest, stream recordv1.RecordService_DownloadServer) error {
	if err := s.begin("Download", in.GetKey()); err != nil {
		return err
	}
	r, err := s.get(in.GetKey())
	if err != nil {
		return err
	}
	if err := stream.Send(&recordv1.DownloadResponse{Part: &recordv1.DownloadResponse_Record{Record: bare(
		r)}}); err != nil {
		return err
	}
	data := r.GetData()[in.GetOffsetBytes():]
	if in.LengthBytes != nil {
		data = data[:min(in.GetLengthBytes(), int64(len(data)))]
	}
	for chunk := range slices.Chunk(data, 100_000) {
		if err := s.begin("Download chunk", in.GetKey()); err != nil {
			return err
		}
		if err := stream.Send(
			&recordv1.DownloadResponse{Part: &recordv1.DownloadResponse_Chunk{Chunk: &recordv1.DownloadChunk{
				Data: chunk}}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *standIn) Find(_ context.Context, in *recordv1.FindRequest) (*recordv1.FindResponse, error) {
	if err := s.begin("Find", nil); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &recordv1.FindResponse{}
	for _, records := range s.records {
		if r := records[in.GetId()]; r != nil {
			out.Records = append(out.Records, r)
		}
	}
	return out, nil
}

func (s *standIn) PlanScan(_ context.Context, in *recordv1.PlanScanRequest) (*recordv1.PlanScanResponse, error) {
	out := &recordv1.PlanScanResponse{}
	for _, group := range in.GetGroups() {
		c := cursor.Cursor{Kind: cursor.Split, Group: group, Through: 1000}
		out.Splits = append(out.Splits, &recordv1.ScanSplit{Group: group, Split: c.Encode()})
	}
	return out, nil
}

// Scan sends one record per message, in the order of the ids.
func (s *standIn) Scan(in *recordv1.ScanRequest, stream recordv1.RecordService_ScanServer) error {
	group, after := in.GetGroup(), uint64(0)
	if encoded := append(in.GetCursor(), in.GetSplit()...); len(encoded) > 0 {
		c, err := cursor.Decode(encoded)
		if err != nil || c.All {
			return status.Errorf(codes.InvalidArgument, "cursor %v, all %v", err, c.All)
		}
		group, after = c.Group, c.After
	}
	if err := s.begin("Scan", &recordv1.RecordKey{Group: group}); err != nil {
		return err
	}
	s.mu.Lock()
	var ids []int64
	for id := range s.records[group] {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		if uint64(id) <= after {
			continue
		}
		r, err := s.get(&recordv1.RecordKey{Id: id, Group: group})
		if err != nil {
			return err
		}
		if s.isLarge(r) {
			r = bare(r)
		}
		c := cursor.Cursor{Kind: cursor.Resume, Group: group, After: uint64(id), Through: 1000}
		if err := stream.Send(&recordv1.ScanResponse{Records: []*recordv1.Record{r}, Cursor: c.Encode()}); err != nil {
			return err
		}
	}
	return s.begin("Scan end", &recordv1.RecordKey{Group: group})
}

func (s *standIn) ListGroups(_ context.Context, in *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &recordv1.ListGroupsResponse{}
	if s.listed != nil {
		page, _, err := paging.Asked(paging.Groups, in)
		begin := slices.IndexFunc(s.listed, func(g *recordv1.Group) bool { return g.GetGroup() > page.After })
		out.Groups, out.NextPageToken = paging.Cut(page, s.listed[begin:], (*recordv1.Group).GetGroup, false)
		return out, err
	}
	for group := range s.records {
		out.Groups = append(out.Groups, &recordv1.Group{
			Group: group, Shard: s.name, State: recordv1.GroupState_GROUP_STATE_SERVING, RaftId: s.raftID,
			Members: s.members[group],
		})
	}
	return out, nil
}

func (s *standIn) PlanMoves(context.Context, *recordv1.PlanMovesRequest) (*recordv1.PlanMovesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moves == nil {
		return nil, status.Error(codes.Unimplemented, "as an older shard answers")
	}
	return &recordv1.PlanMovesResponse{Moves: s.moves}, nil
}

func (s *standIn) ListShards(context.Context, *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	return &recordv1.ListShardsResponse{Shards: []*recordv1.Shard{{Name: s.name, Address: s.address, FileSystem: "none"}}},
		nil
}

func (s *standIn) WatchLoad(_ *recordv1.WatchLoadRequest, stream recordv1.AdminService_WatchLoadServer) error {
	for done := int64(0); done <= 2; done++ {
		load := &recordv1.Load{GroupsTotal: 2, BytesTotal: 2, BytesDone: done, Done: done == 2}
		if err := stream.Send(&recordv1.WatchLoadResponse{Load: load}); err != nil {
			return err
		}
	}
	return nil
}

// refuse returns an error with the given code and reason.
func refuse(code codes.Code, reason string, more ...protoadapt.MessageV1) error {
	st, err := status.New(code, "told by the stand-in").WithDetails(append([]protoadapt.MessageV1{
		&errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: reason, Metadata: map[string]string{"version": "v0"}},
	}, more...)...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func retryInfo(d time.Duration) protoadapt.MessageV1 {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}
