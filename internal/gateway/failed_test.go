package gateway_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
)

// failAll makes the stand-in fail every read and write, like a shard that could not load its copy of the group.
func (s *standIn) failAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(method string, _ *recordv1.RecordKey) error {
		if method == "BatchPut" || method == "BatchGet" {
			return nil // the batch itself succeeds, and each of its items fails
		}
		return refuse(codes.FailedPrecondition, "GROUP_FAILED")
	}
}

// callsOnAGroup returns one function for each way to call a group. The keys are the names under which a stand-in counts
// such calls.
func callsOnAGroup(c *cluster) map[string]func() error {
	return map[string]func() error{
		"Get": func() error { _, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)}); return err },
		"Put": func() error {
			_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("1")})
			return err
		},
		"Find": func() error { _, err := c.records.Find(c.ctx, &recordv1.FindRequest{Id: 1}); return err },
		"BatchPut item": func() error {
			out, err := batchPut(c.t, c, puts(1))
			if err != nil {
				return err
			}
			return status.FromProto(out[0].GetResults()[0].GetStatus()).Err()
		},
		"BatchGet item": func() error {
			out, err := batchGet(c, 1)
			if err != nil {
				return err
			}
			return status.FromProto(out[0].GetStatus()).Err()
		},
		"Upload": func() error {
			stream, err := c.records.Upload(c.ctx)
			if err != nil {
				return err
			}
			_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
				1)}}})
			_, err = stream.CloseAndRecv()
			return err
		},
		"Download": func() error {
			stream, err := c.records.Download(c.ctx, &recordv1.DownloadRequest{Key: key(1)})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"Scan": func() error {
			stream, err := c.records.Scan(c.ctx, &recordv1.ScanRequest{Group: "0"})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
}

func TestCallsAvoidCopyThatCannotBeLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a", "b", "c")
		for _, s := range c.shards {
			s.put(key(1), nil, []byte("1"))
		}
		c.shards["a"].failAll()
		term := uint64(1)
		for name, do := range callsOnAGroup(c) {
			shareGroups(c, "b", term, "a", "b", "c") // makes the gateway forget the leader that it learned from the last call
			shareGroups(c, "a", term+1, "a", "b", "c")
			term += 2
			if err := do(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if n := c.shards["a"].count(name); n != 1 {
				t.Errorf("%s: %d calls at the copy that failed", name, n)
			}
		}
	})
}

func TestAGroupWithoutAMajorityThatCouldBeLoadedFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a", "b", "c")
		c.shards["a"].failAll()
		c.shards["b"].failAll()
		term := uint64(1)
		for name, do := range callsOnAGroup(c) {
			shareGroups(c, "b", term, "a", "b", "c")
			shareGroups(c, "a", term+1, "a", "b", "c")
			term += 2
			err := do()
			wantError(t, err, codes.FailedPrecondition, "GROUP_FAILED")
			if a, b, other := c.shards["a"].count(name), c.shards["b"].count(name), c.shards["c"].count(name); a != 1 ||
				b != 1 || other != 0 {
				t.Errorf("%s: %d, %d and %d calls", name, a, b, other)
			}
		}
	})
}

// TestBatchGetSaysWhyAReadWasRefused checks the item's own status, because the stream ends with OK even if a shard
// has refused a read and the gateway could not retry it.
func TestBatchGetSaysWhyAReadWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		// The retry delay ends after the caller's deadline, so the gateway answers immediately.
		c.shards["a"].failFirst(1<<30, "BatchGet item", refuse(codes.Unavailable, "GROUP_LOADING", retryInfo(time.Hour)))
		got, err := batchGet(c, 1)
		if err != nil || len(got) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		wantError(t, status.FromProto(got[0].GetStatus()).Err(), codes.Unavailable, "GROUP_LOADING")
	})
}
