package gateway_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/must"
)

// afterDoubt lists a shard's possible responses to a retried write that was already applied, but whose response was
// lost.
var afterDoubt = []struct {
	code   codes.Code
	reason string
	told   bool // whether the shard looks up the request id before it returns this error
}{
	{codes.ResourceExhausted, "OVERLOADED", false},
	{codes.ResourceExhausted, "DISK_FULL", false},
	{codes.ResourceExhausted, "MEMORY_FULL", false},
	{codes.DataLoss, "DAMAGED", false},
	{codes.InvalidArgument, "", false},
	{codes.NotFound, "GROUP_NOT_FOUND", false},
	{codes.Aborted, "VERSION_MISMATCH", true},
	{codes.AlreadyExists, "RECORD_EXISTS", true},
	{codes.InvalidArgument, "REQUEST_ID_REUSED", true},
}

func TestOnlyAnAnswerBehindTheRequestIDEndsTheDoubtOfAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		s := c.shards["a"]
		writes := map[string]func(id []byte) error{
			"put": func(id []byte) error {
				_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), RequestId: id})
				return err
			},
			"upload": func(id []byte) error {
				_, err := upload(c, 1, id, []byte("0123456789"), 4)
				return err
			},
			"batch": func(id []byte) error {
				message := puts(1)
				message.Puts[0].RequestId = id
				answers, err := batchPut(t, c, message)
				if err != nil {
					return err
				}
				return status.FromProto(answers[0].GetResults()[0].GetStatus()).Err()
			},
		}
		for n, after := range afterDoubt {
			for name, write := range writes {
				t.Logf("%s %s", after.reason, name)
				fired := closeConnections(s, 1)
				refused := 0
				s.fault = func(method string, _ *recordv1.RecordKey) error {
					s.mu.Lock()
					defer s.mu.Unlock()
					if *fired == 0 || method == "BatchPut" {
						return nil
					}
					refused++
					return refuse(after.code, after.reason)
				}
				err := write([]byte{15: byte(n + 1), 0: name[0]})
				if after.told {
					wantError(t, err, after.code, after.reason)
				} else {
					wantError(t, err, codes.Unknown, "OUTCOME_UNKNOWN")
				}
				if *fired != 1 || refused == 0 {
					t.Fatalf("%d answers lost, %d repetitions refused", *fired, refused)
				}
			}
		}
	})
}

// A shard that stops aborts its streams with STOPPING, even while puts on them are unanswered.
func TestStoppedStreamLeavesPutOutcomesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		s := c.shards["a"]
		stopped := 0
		s.late = func(string, *recordv1.RecordKey) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			stopped++
			return refuse(codes.Unavailable, "STOPPING")
		}
		answers, err := batchPut(t, c, puts(1))
		must.OK(t, err)
		wantError(t, status.FromProto(answers[0].GetResults()[0].GetStatus()).Err(), codes.Unknown, "OUTCOME_UNKNOWN")
		if stopped == 0 || s.applied == 0 {
			t.Fatalf("%d streams stopped, %d puts applied", stopped, s.applied)
		}
	})
}
