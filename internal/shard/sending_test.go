package shard

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// stalled opens scans that nobody reads.
func (f *fixture) stalled(n int) (streams []recordv1.RecordService_ScanClient) {
	f.t.Helper()
	client := f.unreadConn()
	for range n {
		stream, err := client.Scan(f.ctx(), &recordv1.ScanRequest{})
		must(f.t, err)
		streams = append(streams, stream)
	}
	return streams
}

// stalledShard starts a shard with 20 records of 500 kB.
func stalledShard(t testing.TB, answers int64, sendTimeout time.Duration) *fixture {
	f := start(t, newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1"), func(c *Config) {
		c.Limits, c.sendTimeout = Limits{BytesInFlightMax: 4 << 20, AnswerBytesMax: answers}, sendTimeout
	}).ready()
	f.putEach(20, 500_000)
	return f
}

// TestReadersThatDoNotReadKeepNobodyFromWriting checks that stalled readers block neither writes nor Get. Further
// streams are refused.
func TestReadersThatDoNotReadKeepNobodyFromWriting(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := stalledShard(t, 4<<20, time.Hour)
		f.stalled(10)
		f.eventually("no further scan of such records fits", func() bool { return f.shard.calls.AnswerBytes() >= 3<<20 })
		f.put(100, data(100, 1000))
		for f.shard.calls.StreamAnswers().Take(10_000, 0) == nil { // uses up all response memory that streams may take
			continue
		}
		f.put(101, data(101, 400_000))
		f.holds(101, data(101, 400_000))
		f.put(102, data(102, 1_000_000)) // larger than the response memory that is reserved for Get
		stream, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		want(t, err, codes.ResourceExhausted, reason.Overloaded)
		if retryAfter(err) <= 0 {
			t.Errorf("%v does not say when to try again", err)
		}
	})
}

func TestAReaderThatDoesNotReadIsDisconnected(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := stalledShard(t, 64<<20, 100*time.Millisecond)
		streams := f.stalled(4)
		watch, err := f.records.Watch(f.ctx(), &recordv1.WatchRequest{Group: "0"})
		must(t, err)
		f.putEach(20, 500_000)
		// The transport keeps a part of each stream until the caller reads it or disconnects, and that part remains
		// counted. It consists of one whole message and the rest of a message that is partly written.
		f.eventually("what the readers held is given back but for two messages each", func() bool {
			return f.shard.calls.Calls() == 0 && f.shard.calls.AnswerBytes() <= 2*5*serve.ResultBytes
		})
		// When a reader reads on, it learns why its stream ended. It then resumes at its position.
		for _, stream := range streams {
			given, last := 0, []byte(nil)
			for err = nil; err == nil; {
				var out *recordv1.ScanResponse
				if out, err = stream.Recv(); err == nil {
					given += len(out.GetRecords())
					last = out.GetCursor()
				}
			}
			want(t, err, codes.Unavailable, reason.SlowReader)
			err := error(nil)
			// On a busy machine, this reader may also be disconnected as a slow reader. It then continues from its
			// cursor.
			for again := true; again; again = reasonOf(err) == reason.SlowReader {
				var rest []*recordv1.Record
				var cursor []byte
				rest, cursor, err = f.scan(&recordv1.ScanRequest{Cursor: last}, 0)
				if given += len(rest); cursor != nil {
					last = cursor
				}
			}
			if err != nil || given != 20 {
				t.Fatalf("%d records in all: %v", given, err)
			}
		}
		for err = nil; err == nil; {
			_, err = watch.Recv()
		}
		want(t, err, codes.Unavailable, reason.SlowReader)
		f.eventually("all is given back", func() bool { return f.shard.calls.AnswerBytes() == 0 })
	})
}

// The whole response takes longer than the time limit for one message. If the machine stood still for longer than that
// limit, the reader was indeed too slow. In that case, the test is repeated with a longer limit.
func TestAReaderThatReadsSlowlyIsNotDisconnected(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for limit := 2 * time.Second; ; limit *= 2 {
			f := stalledShard(t, 4<<20, limit)
			given, began := 0, time.Now()
			stream, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{})
			for err == nil {
				var out *recordv1.ScanResponse
				if out, err = stream.Recv(); err == nil {
					given += len(out.GetRecords())
					time.Sleep(limit * 3 / 20) // pace of the slow reader
				}
			}
			f.shard.Kill()
			if reasonOf(err) == reason.SlowReader && limit < time.Minute {
				continue
			}
			if !errors.Is(err, io.EOF) || given != 20 {
				t.Fatalf("%d records, of which each may take %v, after %v: %v", given, limit, time.Since(began), err)
			}
			return
		}
	})
}

// TestAStopDoesNotWaitForCallersThatDoNothing stops a shard while some readers do not read, and while another caller
// has begun an upload but sends nothing more. All of them receive the error that the shard is stopping. A reader that
// is merely slow must not be disconnected. If the machine stalls, however, a slow reader may pause for as long as an
// idle one, so the test passes if one of several attempts succeeds.
func TestAStopDoesNotWaitForCallersThatDoNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		err := stopsDespiteCallers(t)
		for tries := 1; err != nil && tries < 6; tries++ {
			t.Logf("a slow reader was cut off: %v", err)
			err = stopsDespiteCallers(t)
		}
		if err != nil {
			t.Errorf("each slow reader was cut off: %v", err)
		}
	})
}

// stopsDespiteCallers stops a shard that many idle callers would keep from stopping. It returns the error of a slow
// caller, which reads one message at a time, with a pause after each. In total, this caller reads for longer than the
// 2 s for which the shard waits for an idle caller.
func stopsDespiteCallers(t testing.TB) error {
	t.Helper()
	f := stalledShard(t, 64<<20, time.Hour)
	defer f.shard.Kill()
	const blob = 8 << 20
	if _, err := f.upload(&recordv1.UploadHeader{Key: key(1000)},
		cut(data(1000, blob), format.BlobChunkBytes)...); err != nil {
		t.Fatal(err)
	}
	conn := f.smallWindows()
	unread := recordv1.NewRecordServiceClient(conn)
	calls := int64(0)
	for _, call := range []unreadCall{unreadScan, unreadBatchGet(20), unreadFlight(20), unreadDownload(1000),
		unreadWatch} {
		for n := range 3 {
			must(t, call(f.ctx(), conn, n))
			calls++
		}
	}
	upload, err := f.records.Upload(f.ctx())
	must(t, err)
	must(t, upload.Send(
		&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
			1)}}}))
	slow, err := unread.Download(f.ctx(), &recordv1.DownloadRequest{Key: key(1000)})
	must(t, err)
	f.eventually("all calls are under way", func() bool { return f.shard.calls.Calls() == calls+2 })
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- f.shard.Stop(ctx) }()
	got, errSlow := 0, error(nil)
	for errSlow == nil {
		var out *recordv1.DownloadResponse
		if out, errSlow = slow.Recv(); errSlow == nil {
			got += len(out.GetChunk().GetData())
			time.Sleep(400 * time.Millisecond) // pace of the slow reader
		}
	}
	if errors.Is(errSlow, io.EOF) {
		errSlow = nil
	}
	if errSlow == nil && got != blob {
		t.Errorf("the slow reader has %d bytes of %d", got, blob)
	}
	_, err = upload.CloseAndRecv()
	want(t, err, codes.Unavailable, reason.Stopping)
	if err := <-stopped; err != nil || ctx.Err() != nil {
		t.Errorf("stopping: %v; waited for the end: %v", err, ctx.Err())
	}
	return errSlow
}
