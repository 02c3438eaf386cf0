package shard

import (
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/placement"
)

// stalled opens scans that nobody reads.
func (f *fixture) stalled(n int) (streams []recordv1.RecordService_ScanClient) {
	f.t.Helper()
	for range n {
		stream, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{})
		if err != nil {
			f.t.Fatal(err)
		}
		streams = append(streams, stream)
	}
	return streams
}

func stalledShard(t *testing.T, answers int64, sendTimeout time.Duration) *fixture {
	f := start(t, newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1"), func(c *Config) {
		c.Limits = Limits{BytesInFlightMax: 4 << 20, AnswerBytesMax: answers, SendTimeout: sendTimeout}
	}).ready()
	for id := range int64(20) {
		f.put(id, data(id, 500_000))
	}
	return f
}

func TestReadersThatDoNotReadRefuseNoWrites(t *testing.T) {
	f := stalledShard(t, 4<<20, time.Hour)
	f.stalled(10)
	f.eventually("no further scan of such records fits", func() bool { return f.shard.answers.used.Load() >= 3<<20 })
	f.put(100, data(100, 1000))
	stream, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	want(t, err, codes.ResourceExhausted, reasonOverloaded)
	if retryAfter(err) <= 0 {
		t.Errorf("%v does not say when to try again", err)
	}
}

func TestAReaderThatDoesNotReadIsCutOff(t *testing.T) {
	f := stalledShard(t, 64<<20, 100*time.Millisecond)
	streams := f.stalled(4)
	watch, err := f.records.Watch(f.ctx(), &recordv1.WatchRequest{Group: "0"})
	if err != nil {
		t.Fatal(err)
	}
	for id := range int64(20) {
		f.put(id, data(id, 500_000))
	}
	// What the transport has of a stream stays counted: it is there until the caller reads it, or goes. That is one message, and the rest of
	// another one that is nearly written.
	f.eventually("what the readers held is given back but for two messages each", func() bool {
		return f.shard.calls.used.Load() == 0 && f.shard.answers.used.Load() <= 2*5*answerBytes
	})
	// One that comes back hears why, and goes on where it was.
	for _, stream := range streams {
		given, last := 0, []byte(nil)
		for err = nil; err == nil; {
			var out *recordv1.ScanResponse
			if out, err = stream.Recv(); err == nil {
				given += len(out.GetRecords())
				last = out.GetCursor()
			}
		}
		want(t, err, codes.Unavailable, reasonSlowReader)
		rest, _, err := f.scan(&recordv1.ScanRequest{Cursor: last}, 0)
		if err != nil || given+len(rest) != 20 {
			t.Fatalf("%d records and then %d: %v", given, len(rest), err)
		}
	}
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	want(t, err, codes.Unavailable, reasonSlowReader)
	f.eventually("all is given back", func() bool { return f.shard.answers.used.Load() == 0 })
}

func TestAReaderThatReadsSlowlyIsNotCutOff(t *testing.T) {
	f := stalledShard(t, 4<<20, 2*time.Second)
	stream, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{})
	if err != nil {
		t.Fatal(err)
	}
	given := 0
	for begin := time.Now(); ; {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(begin), err)
		}
		given += len(out.GetRecords())
		time.Sleep(300 * time.Millisecond) // the pace of the reader, which is what is tested: all of it takes longer than one message may
	}
	if given != 20 {
		t.Errorf("%d records", given)
	}
}
