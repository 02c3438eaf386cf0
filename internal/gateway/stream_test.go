package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

func upload(c *cluster, id int64, requestID []byte, data []byte, chunk int) (*recordv1.UploadResponse, error) {
	stream, err := c.records.Upload(c.ctx)
	if err != nil {
		return nil, err
	}
	header := &recordv1.UploadHeader{Key: key(id), RequestId: requestID}
	if err := stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: header}}); err != nil {
		return nil, err
	}
	for piece := range slices.Chunk(data, chunk) {
		if err := stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: piece}}); err != nil {
			break // CloseAndRecv returns the reason for the error
		}
	}
	return stream.CloseAndRecv()
}

func download(ctx context.Context, c *cluster, id int64) ([]byte, error) {
	stream, err := c.records.Download(ctx, &recordv1.DownloadRequest{Key: key(id)})
	if err != nil {
		return nil, err
	}
	var data []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return data, err
		}
		data = append(data, part.GetChunk().GetData()...)
	}
}

func TestUploadAndDownloadOfManyMiB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a", "b")
		data := bytes.Repeat([]byte("sheaf of records "), 2<<20)
		out, err := upload(c, 5, nil, data, 1<<20)
		if err != nil || out.GetSizeBytes() != int64(len(data)) {
			t.Fatalf("%v, %v", out, err)
		}
		got, err := download(c.ctx, c, 5)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d of %d bytes came back, %v", len(got), len(data), err)
		}
	})
}

func TestInterruptedUploadStoresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(c.ctx)
		stream, err := c.records.Upload(ctx)
		must.OK(t, err)
		entered := make(chan struct{})
		c.shards["a"].fault = func(method string, _ *recordv1.RecordKey) error {
			switch method {
			case "Upload":
				close(entered)
			case "Upload end":
				close(ended)
			}
			return nil
		}
		header := &recordv1.UploadHeader{Key: key(1)}
		must.OK(t, stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: header}}))
		<-entered
		cancel()
		// This test cannot use CloseAndRecv, because its half-close could overtake the cancellation.
		if err := stream.RecvMsg(&recordv1.UploadResponse{}); status.Code(err) != codes.Canceled {
			t.Fatalf("got %v", err)
		}
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the shard saw the end of an upload that was cut")
		default:
		}
		if c.shards["a"].applied != 0 {
			t.Fatal("something was stored")
		}
	})
}

func TestASmallUploadIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		data := bytes.Repeat([]byte("x"), 300_000)
		for _, method := range []string{"Upload", "Upload end"} {
			fired := c.shards["a"].failFirst(3, method, refuse(codes.FailedPrecondition, "WRONG_SHARD"))
			if out, err := upload(c, 1, nil, data, 100_000); err != nil || out.GetSizeBytes() != 300_000 || *fired != 3 {
				t.Fatalf("%s: %v, %v; fault fired %d times", method, out, err, *fired)
			}
		}
		c.shards["a"].fault = nil
		applied := c.shards["a"].applied
		fired := closeConnections(c.shards["a"], 2)
		out, err := upload(c, 1, []byte("0123456789abcdef"), data, 100_000)
		if err != nil || !out.GetPut().GetRepeated() || *fired != 2 || c.shards["a"].applied != applied+1 {
			t.Fatalf("%v, %v; fault fired %d times", out, err, *fired)
		}
		fired = closeConnections(c.shards["a"], 1)
		_, err = upload(c, 1, nil, data, 100_000)
		wantError(t, err, codes.Unknown, "OUTCOME_UNKNOWN")
		if *fired != 1 {
			t.Fatalf("fault fired %d times", *fired)
		}
	})
}

func TestALargeUploadIsNotRepeatedButSaysWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		data := make([]byte, 3<<20)
		fired := c.shards["a"].failFirst(1, "Upload end", refuse(codes.ResourceExhausted, "DISK_FULL"))
		_, err := upload(c, 1, nil, data, 1<<20)
		wantError(t, err, codes.ResourceExhausted, "DISK_FULL")
		if *fired != 1 {
			t.Fatalf("fault fired %d times", *fired)
		}
		c.shards["a"].fault = nil
		fired = closeConnections(c.shards["a"], 1)
		_, err = upload(c, 1, []byte("0123456789abcdef"), data, 1<<20)
		wantError(t, err, codes.Unknown, "OUTCOME_UNKNOWN")
		if *fired != 1 {
			t.Fatalf("fault fired %d times", *fired)
		}
	})
}

func TestADownloadIsRepeatedOnlyBeforeItsFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		data := make([]byte, 500_000)
		if _, err := upload(c, 1, nil, data, 1<<20); err != nil {
			t.Fatal(err)
		}
		broken := status.Error(codes.Unavailable, "error reading from server: EOF")
		fired := c.shards["a"].failFirst(3, "Download", broken)
		if got, err := download(c.ctx, c, 1); err != nil || len(got) != len(data) || *fired != 3 {
			t.Fatalf("%d bytes, %v; fault fired %d times", len(got), err, *fired)
		}
		fired = c.shards["a"].failFirst(1, "Download chunk", broken)
		if _, err := download(c.ctx, c, 1); status.Code(err) != codes.Unavailable || *fired != 1 {
			t.Fatalf("%v; fault fired %d times", err, *fired)
		}
	})
}

func scanAll(c *cluster, in *recordv1.ScanRequest, stopAfter int) (ids []string, cursor []byte, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stream, err := c.records.Scan(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ids, cursor, nil
		}
		if err != nil {
			return ids, cursor, err
		}
		cursor = message.GetCursor()
		for _, r := range message.GetRecords() {
			ids = append(ids, fmt.Sprint(r.GetKey().GetGroup(), "/", r.GetKey().GetId()))
		}
		if len(ids) == stopAfter {
			return ids, cursor, nil
		}
	}
}

func TestScanOfAllGroupsResumesAtEveryRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(12), gateway.Config{}, "a", "b")
		var ids []int64
		for id := range int64(40) {
			ids = append(ids, id+1)
		}
		if _, err := batchPut(t, c, puts(ids...)); err != nil {
			t.Fatal(err)
		}
		all, last, err := scanAll(c, &recordv1.ScanRequest{}, -1)
		if err != nil || len(all) != len(ids) {
			t.Fatalf("%d of %d records, %v", len(all), len(ids), err)
		}
		if more, _, err := scanAll(c, &recordv1.ScanRequest{Cursor: last}, -1); err != nil || len(more) != 0 {
			t.Fatalf("behind the last record: %v, %v", more, err)
		}
		for n := 1; n < len(all); n += 3 {
			head, cursor, err := scanAll(c, &recordv1.ScanRequest{}, n)
			must.OK(t, err)
			tail, _, err := scanAll(c, &recordv1.ScanRequest{Cursor: cursor}, -1)
			if err != nil || !slices.Equal(append(head, tail...), all) {
				t.Fatalf("stopped after %d: %v, then %v, %v; want %v", n, head, tail, err, all)
			}
		}
		one, _, err := scanAll(c, &recordv1.ScanRequest{Group: "3"}, -1)
		must.OK(t, err)
		for _, r := range one {
			if r[:2] != "3/" {
				t.Fatalf("scan of group 3 gave %s", r)
			}
		}
		plan, err := c.records.PlanScan(c.ctx, &recordv1.PlanScanRequest{})
		if err != nil || len(plan.GetSplits()) != 12 {
			t.Fatalf("%d splits, %v", len(plan.GetSplits()), err)
		}
		n := 0
		for _, split := range plan.GetSplits() {
			part, _, err := scanAll(c, &recordv1.ScanRequest{Split: split.GetSplit()}, -1)
			if err != nil || len(split.GetAddresses()) != 1 {
				t.Fatalf("split %v: %v", split, err)
			}
			n += len(part)
		}
		if n != len(all) {
			t.Fatalf("the splits gave %d of %d records", n, len(all))
		}
		for _, bad := range []*recordv1.ScanRequest{{Group: "1", Cursor: last}, {Cursor: []byte("x")}, {Split: last},
			{Group: "a/b"}} {
			if _, _, err := scanAll(c, bad, -1); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v", bad, err)
			}
		}
	})
}

func TestScanReportsDamageAfterOtherGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a")
		if _, err := batchPut(t, c, puts(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)); err != nil {
			t.Fatal(err)
		}
		fired := c.shards["a"].failFirst(1, "Scan end", refuse(codes.DataLoss, "DAMAGED"))
		all, _, err := scanAll(c, &recordv1.ScanRequest{}, -1)
		wantError(t, err, codes.DataLoss, "DAMAGED")
		if len(all) != 10 || *fired != 1 {
			t.Fatalf("%d of 10 records; fault fired %d times", len(all), *fired)
		}
	})
}

func TestFindAsksEveryGroupOrSaysUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, named(), gateway.Config{}, "a", "b")
		for group, shard := range map[string]string{"x": "a", "y": "b", "z": "b"} {
			c.awaitEpoch(c.setOwner(placement.NewGroup(c.meta.Routing, group, 0), shard))
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 7, Group: group}}); err != nil {
				t.Fatal(err)
			}
		}
		out, err := c.records.Find(c.ctx, &recordv1.FindRequest{Id: 7})
		if err != nil || len(out.GetRecords()) != 3 {
			t.Fatalf("%v, %v", out, err)
		}
		if out, err := c.records.Find(c.ctx, &recordv1.FindRequest{Id: 8}); err != nil || len(out.GetRecords()) != 0 {
			t.Fatalf("%v, %v", out, err)
		}
		hasty := c.another(gateway.Config{}, c.gateway.Epoch())
		c.shards["a"].server.Stop()
		_, err = hasty.Find(c.withoutDeadline(), &recordv1.FindRequest{Id: 7})
		wantError(t, err, codes.Unavailable, "SHARD_UNREACHABLE")
	})
}

func TestFindIsUnavailableWhileAShardOfAGroupIsNotRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, named(), gateway.Config{}, "a")
		g := placement.NewGroup(c.meta.Routing, "x", 0)
		g.Members = []placement.Member{{Shard: "never-seen", VolumeUUID: g.UUID}}
		if _, err := c.store.PutGroup(c.ctx, g); err != nil {
			t.Fatal(err)
		}
		c.awaitEpoch(c.setOwner(placement.NewGroup(c.meta.Routing, "y", 0), "a"))
		_, err := c.records.Find(c.withoutDeadline(), &recordv1.FindRequest{Id: 7})
		wantError(t, err, codes.Unavailable, "SHARD_UNREACHABLE")
	})
}
