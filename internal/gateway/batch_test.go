package gateway_test

import (
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

func puts(ids ...int64) *recordv1.BatchPutRequest {
	message := &recordv1.BatchPutRequest{}
	for _, id := range ids {
		message.Puts = append(message.Puts, &recordv1.PutRequest{Key: key(id), Data: []byte(fmt.Sprint(id))})
	}
	return message
}

func batchPut(t *testing.T, c *cluster, messages ...*recordv1.BatchPutRequest) ([]*recordv1.BatchPutResponse, error) {
	t.Helper()
	stream, err := c.records.BatchPut(c.ctx)
	must.OK(t, err)
	go func() {
		for _, m := range messages {
			if stream.Send(m) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	var answers []*recordv1.BatchPutResponse
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return answers, nil
		}
		if err != nil {
			return answers, err
		}
		answers = append(answers, answer)
	}
}

func TestBatchPutAnswersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(8), gateway.Config{}, "a", "b", "c")
		var messages []*recordv1.BatchPutRequest
		for m := range int64(20) {
			var ids []int64
			for i := range int64(100) {
				ids = append(ids, m*100+i)
			}
			messages = append(messages, puts(ids...))
		}
		answers, err := batchPut(t, c, messages...)
		if err != nil || len(answers) != len(messages) {
			t.Fatalf("%d answers, %v", len(answers), err)
		}
		for m, answer := range answers {
			if len(answer.GetResults()) != 100 {
				t.Fatalf("message %d: %d results", m, len(answer.GetResults()))
			}
			for i, result := range answer.GetResults() {
				id := int64(m*100 + i)
				r, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(id)})
				if err != nil || r.GetRecord().GetVersion() != result.GetPut().GetVersion() ||
					string(r.GetRecord().GetData()) != fmt.Sprint(id) {
					t.Fatalf("record %d: %v, %v; its put answered %v", id, r, err, result)
				}
			}
		}
		for name, s := range c.shards {
			if s.applied == 0 || s.count("BatchPut") != 20 {
				t.Fatalf("shard %s applied %d puts in %d messages", name, s.applied, s.count("BatchPut"))
			}
		}
	})
}

func TestPutsOfOneRecordInABatchStreamKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a", "b")
		var messages []*recordv1.BatchPutRequest
		for m := range 50 {
			message := puts(1, 2, 3)
			for _, put := range message.GetPuts() {
				put.Data = []byte(fmt.Sprint(m))
			}
			messages = append(messages, message)
		}
		if _, err := batchPut(t, c, messages...); err != nil {
			t.Fatal(err)
		}
		for id := range int64(3) {
			r, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(id + 1)})
			if err != nil || string(r.GetRecord().GetData()) != "49" {
				t.Fatalf("record %d: %v, %v", id+1, r, err)
			}
		}
	})
}

func TestBatchPutItemsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a", "b")
		for _, s := range c.shards {
			s.fault = func(method string, k *recordv1.RecordKey) error {
				if method == "BatchPut item" && k.GetId()%3 == 0 {
					return refuse(codes.Aborted, "VERSION_MISMATCH")
				}
				return nil
			}
		}
		message := puts(0, 1, 2, 3, 4, 5)
		message.Puts[1].Key = nil
		answers, err := batchPut(t, c, message)
		must.OK(t, err)
		for i, want := range []codes.Code{codes.Aborted, codes.InvalidArgument, codes.OK, codes.Aborted, codes.OK, codes.OK} {
			if got := codes.Code(answers[0].GetResults()[i].GetStatus().GetCode()); got != want {
				t.Errorf("item %d: %v, want %v", i, got, want)
			}
		}
	})
}

func TestBatchPutRepeatsRefusedItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a", "b")
		fired := map[string]*int{}
		for name, s := range c.shards {
			fired[name] = s.failFirst(5, "BatchPut item", refuse(codes.FailedPrecondition, "WRONG_SHARD"))
		}
		answers, err := batchPut(t, c, puts(1, 2, 3, 4, 5, 6, 7, 8))
		must.OK(t, err)
		for i, result := range answers[0].GetResults() {
			if result.GetStatus().GetCode() != 0 {
				t.Errorf("item %d: %v", i, result)
			}
		}
		for name, n := range fired {
			if *n == 0 {
				t.Errorf("no fault fired on %s", name)
			}
		}
	})
}

func TestABrokenBatchStreamRepeatsOnlyItemsWithARequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		s := c.shards["a"]
		fired := closeConnections(s, 1)
		message := puts(1, 2, 3)
		message.Puts[1].RequestId = []byte("0123456789abcdef")
		answers, err := batchPut(t, c, message)
		if err != nil || *fired != 1 {
			t.Fatalf("%v, fault fired %d times", err, *fired)
		}
		results := answers[0].GetResults()
		for _, i := range []int{0, 2} {
			wantError(t, status.FromProto(results[i].GetStatus()).Err(), codes.Unknown, "OUTCOME_UNKNOWN")
		}
		if !results[1].GetPut().GetRepeated() {
			t.Fatalf("the item with a request id: %v", results[1])
		}
		if s.applied != 3 {
			t.Fatalf("%d puts applied", s.applied)
		}
	})
}

func TestBatchPutToStoppedShardWasNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a", "b")
		c.shards["b"].server.Stop()
		var onA, onB int64 = -1, -1
		for id := int64(0); onA < 0 || onB < 0; id++ {
			if c.meta.Routing.GroupOf(id) == 0 {
				onA = id
			} else {
				onB = id
			}
		}
		answers, err := batchPut2(c, puts(onA, onB))
		must.OK(t, err)
		results := answers.GetResults()
		if results[0].GetPut() == nil {
			t.Fatalf("the item of the live shard: %v", results[0])
		}
		wantError(t, status.FromProto(results[1].GetStatus()).Err(), codes.Unavailable, "SHARD_UNREACHABLE")
	})
}

// batchPut2 sends one message on a BatchPut stream without a deadline.
func batchPut2(c *cluster, message *recordv1.BatchPutRequest) (*recordv1.BatchPutResponse, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	defer cancel()
	stream, err := c.records.BatchPut(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(message); err != nil {
		return nil, err
	}
	return stream.Recv()
}

func TestBatchesOutsideTheirLimitsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		_, err := batchPut(t, c, puts(make([]int64, 1025)...))
		wantFieldViolation(t, err, "puts")
		_, err = batchPut(t, c, &recordv1.BatchPutRequest{})
		wantFieldViolation(t, err, "puts")
		large := puts(1, 2, 3, 4, 5)
		for _, put := range large.GetPuts() {
			put.Data = make([]byte, 1<<20)
		}
		_, err = batchPut(t, c, large)
		wantFieldViolation(t, err, "puts")
		for _, n := range []int{0, 4097} {
			_, err = batchGet(c, make([]int64, n)...)
			wantFieldViolation(t, err, "gets")
		}
		// The gateway answers the messages that precede the invalid one.
		answers, err := batchPut(t, c, puts(1), puts(2), &recordv1.BatchPutRequest{})
		if len(answers) != 2 {
			t.Fatalf("%d answers, %v", len(answers), err)
		}
		wantFieldViolation(t, err, "puts")
	})
}

func batchGet(c *cluster, ids ...int64) (map[uint32]*recordv1.BatchGetResult, error) {
	in := &recordv1.BatchGetRequest{}
	for _, id := range ids {
		in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(id)})
	}
	stream, err := c.records.BatchGet(c.ctx, in)
	if err != nil {
		return nil, err
	}
	got := map[uint32]*recordv1.BatchGetResult{}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		for _, result := range answer.GetResults() {
			if got[result.GetPosition()] != nil {
				return got, fmt.Errorf("position %d came twice", result.GetPosition())
			}
			got[result.GetPosition()] = result
		}
	}
}

func TestBatchGetNamesPositionsOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(8), gateway.Config{}, "a", "b", "c")
		var ids []int64
		for id := range int64(300) {
			ids = append(ids, id)
		}
		if _, err := batchPut(t, c, puts(ids...)); err != nil {
			t.Fatal(err)
		}
		fired := map[string]*int{}
		for name, s := range c.shards {
			fired[name] = s.failFirst(7, "BatchGet item", refuse(codes.Unavailable, "NO_LEADER"))
		}
		ids = append(ids, 1000) // no record has this id
		slices.Reverse(ids)
		got, err := batchGet(c, ids...)
		if err != nil || len(got) != len(ids) {
			t.Fatalf("%d of %d results, %v", len(got), len(ids), err)
		}
		for i, id := range ids {
			result := got[uint32(i)]
			if id == 1000 {
				wantError(t, status.FromProto(result.GetStatus()).Err(), codes.NotFound, "RECORD_NOT_FOUND")
				continue
			}
			if result.GetRecord().GetKey().GetId() != id || string(result.GetRecord().GetData()) != fmt.Sprint(id) {
				t.Fatalf("position %d is record %d, got %v", i, id, result)
			}
		}
		for name, n := range fired {
			if *n != 7 {
				t.Errorf("%d faults fired on %s", *n, name)
			}
		}
	})
}

func TestBatchGetGoesOnWhenAShardBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a", "b")
		ids := []int64{1, 2, 3, 4, 5, 6, 7, 8}
		if _, err := batchPut(t, c, puts(ids...)); err != nil {
			t.Fatal(err)
		}
		fired := c.shards["a"].failFirst(2, "BatchGet", status.Error(codes.Unavailable, "error reading from server: EOF"))
		got, err := batchGet(c, ids...)
		if err != nil || len(got) != len(ids) || *fired != 2 {
			t.Fatalf("%d of %d results, %v; fault fired %d times", len(got), len(ids), err, *fired)
		}
		for i, result := range got {
			if result.GetRecord() == nil {
				t.Errorf("position %d: %v", i, result)
			}
		}
	})
}

func TestABatchMakesAllItsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, named(), gateway.Config{}, "a", "b")
		// This goroutine acts for the shards: it creates the store's groups.
		go func() {
			for view := range c.store.Watch(c.ctx) {
				for _, g := range view.Groups {
					if len(g.Members) == 0 {
						g.Members, g.Leader = []placement.Member{{Shard: "a", VolumeUUID: c.shards["a"].volume}}, "a"
						_, _ = c.store.PutGroup(c.ctx, g)
					}
				}
			}
		}()
		message := &recordv1.BatchPutRequest{}
		for i := range 200 {
			message.Puts = append(message.Puts, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 1,
				Group: fmt.Sprint("g", i/2)}})
		}
		message.Puts[7].Key.Group = "a/b"
		answers, err := batchPut(t, c, message)
		must.OK(t, err)
		for i, result := range answers[0].GetResults() {
			if want := i == 7; want != (codes.Code(result.GetStatus().GetCode()) == codes.InvalidArgument) || !want &&
				result.GetPut() == nil {
				t.Fatalf("item %d: %v", i, result)
			}
		}
	})
}
