package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/must"
)

// reluctantServer is a server that answers a Put only when a test allows it. Until then it answers that the group is
// loading.
type reluctantServer struct {
	recordv1.UnimplementedRecordServiceServer
	may      chan struct{}
	refusals int // number of puts to refuse; the puts after them wait
}

func (r *reluctantServer) Put(ctx context.Context, _ *recordv1.PutRequest) (*recordv1.PutResponse, error) {
	if r.refusals--; r.refusals >= 0 {
		return nil, withReason(codes.Unavailable, "GROUP_LOADING", "group 4 is loading")
	}
	select {
	case <-r.may:
		return &recordv1.PutResponse{Version: "1"}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (r *reluctantServer) Get(context.Context, *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	return nil, withReason(codes.Unavailable, "GROUP_LOADING", "group 4 is loading")
}

func withReason(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: reason,
		Metadata: map[string]string{"group": "4"}})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func served(t *testing.T, records recordv1.RecordServiceServer, timeout time.Duration) *Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	server := grpc.NewServer()
	recordv1.RegisterRecordServiceServer(server, records)
	go func() { _ = server.Serve(listener) }() // Serve returns when the server is stopped
	t.Cleanup(server.Stop)
	conn, err := Dial(listener.Addr().String(), TLS{}, timeout)
	must.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the only possible error is that conn is already closed
	return conn
}

func TestWaitingCommandPrintsTheReason(t *testing.T) {
	server := &reluctantServer{may: make(chan struct{})}
	conn := served(t, server, 0)
	notes := make(chan string, 10)
	conn.noteWaits(time.Millisecond, func(note string) {
		notes <- note
		close(server.may)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if _, err := conn.Put(ctx, client.Key{ID: 1}, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{conn.Server, "group 4 is loading", "more at most"} {
		if note := <-notes; !strings.Contains(note, word) {
			t.Errorf("%q does not say %q", note, word)
		} else {
			notes <- note
		}
	}
	if _, err := conn.Put(ctx, client.Key{ID: 1}, nil, nil); err != nil || len(notes) != 1 {
		t.Errorf("%d notes, %v", len(notes), err)
	}
}

func TestAnsweredCommandPrintsNoReason(t *testing.T) {
	server := &reluctantServer{may: make(chan struct{})}
	close(server.may)
	conn := served(t, server, 0)
	conn.noteWaits(time.Hour, func(note string) { t.Error(note) })
	if _, err := conn.Put(t.Context(), client.Key{ID: 1}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if !conn.waits.Load().answered.Load() {
		t.Error("the answer was not seen, so that a note is still to come")
	}
}

// A call with a single answer and without a deadline of its own has the timeout of its connection.
func TestACallHasTheTimeoutOfItsConnection(t *testing.T) {
	conn := served(t, &reluctantServer{may: make(chan struct{})}, 10*time.Millisecond)
	_, err := conn.Store(t.Context(), client.Key{ID: 1}, strings.NewReader("x"), nil)
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("put: %v", err)
	}
}

func TestMessagesComeOnce(t *testing.T) {
	loading := withReason(codes.Unavailable, "GROUP_LOADING", "group 4 is loading")
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("get 1: %w (stopped waiting: %w)", loading, context.DeadlineExceeded),
			"get 1: UNAVAILABLE GROUP_LOADING: group 4 is loading (stopped waiting: context deadline exceeded)"},
		{fmt.Errorf("put 1: %w", withReason(codes.AlreadyExists, "RECORD_EXISTS", "group 4, record 1 exists")),
			"put 1: ALREADY_EXISTS RECORD_EXISTS: group 4, record 1 exists"},
	} {
		if got := Describe(c.err, "s:1"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	failed := Describe(withReason(codes.FailedPrecondition, "GROUP_FAILED", "group 4 could not be loaded"), "s:1")
	if !strings.Contains(failed, "sheaf status") || strings.Count(failed, "group 4") != 1 {
		t.Error(failed)
	}
}

// The deadline interrupts the last attempt, whose error then explains nothing. The error of an earlier attempt explains
// why the call was repeated. If the machine stalls, there may be time for only one attempt. In this case the test tries
// again with more time.
func TestInterruptedCallReportsWhyItWaited(t *testing.T) {
	var got string
	within := func(what string, tells func(limit time.Duration) bool) {
		t.Helper()
		limit := 200 * time.Millisecond
		for !tells(limit) {
			if limit *= 2; limit > time.Minute {
				t.Fatalf("%s: %s", what, got)
			}
		}
	}
	within("a get does not tell", func(limit time.Duration) bool {
		_, err := served(t, &reluctantServer{}, limit).Get(t.Context(), client.Key{ID: 1}, nil)
		got = Describe(err, "s:1")
		return strings.Contains(got, "group 4 is loading")
	})
	if strings.Count(got, "group 4 is loading") != 1 {
		t.Error(got)
	}
	within("a put does not tell", func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := served(t, &reluctantServer{refusals: 1}, 0).Put(ctx, client.Key{ID: 1}, nil, nil)
		got = Describe(err, "s:1")
		return errors.Is(err, client.ErrOutcomeUnknown)
	})
	if !strings.Contains(got, "DEADLINE_EXCEEDED") || !strings.Contains(got, "may have been applied") {
		t.Error(got)
	}
}

func TestInvalidAddressIsUsageError(t *testing.T) {
	for _, server := range []string{"foo", "", "foo:", "http://foo:1"} {
		if _, err := Dial(server, TLS{}, 0); ExitCode(err) != exitUsage || !strings.Contains(err.Error(), "HOST:PORT") {
			t.Errorf("%q: %v", server, err)
		}
	}
	conn, err := Dial("no-such-host.invalid:1", TLS{}, 0)
	must.OK(t, err)
	_, err = conn.Get(t.Context(), client.Key{}, nil)
	if got := Describe(err, conn.Server); !strings.Contains(got, "nobody answers at no-such-host.invalid:1") ||
		strings.Contains(got, "produced zero") {
		t.Error(got)
	}
	must.OK(t, conn.Close())
}

func TestProgressCountsFromTheBegin(t *testing.T) {
	p := &progress{verb: "imported", unit: "files"}
	for _, c := range []struct {
		tally tally
		want  string
	}{
		{tally{files: 80_000, bytes: 80_000 * 1024}, "imported 80,000 files, 78.1 MiB, 7.8 MiB/s"},
		{tally{files: 94_171, bytes: 94_171 * 1024, totalFiles: 100_000, totalBytes: 100_000 * 1024, totalKnown: true},
			"94%, 1s to go: imported 94,171 of 100,000 files, 92.0 MiB, 9.2 MiB/s"},
		{tally{files: 25, bytes: 1 << 30, totalFiles: 100, totalKnown: true},
			"25%, 30s to go: imported 25 of 100 files, 1.0 GiB, 102.4 MiB/s"},
		{tally{files: 3, bytes: 50 << 20, totalBytes: 100 << 20, totalKnown: true},
			"50%, 10s to go: imported 3 files, 50.0 MiB, 5.0 MiB/s"},
		{tally{files: 9, totalKnown: true}, "imported 9 files, 0 B, 0 B/s"},
	} {
		if got := p.line(c.tally, p.begin.Add(10*time.Second)); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// If there is no progress for some time, no remaining time is shown.
	half := tally{files: 50, totalFiles: 100, totalKnown: true}
	p.line(half, p.begin.Add(10*time.Second))
	want := "50%, nothing for 12s: imported 50 of 100 files, 0 B, 0 B/s"
	if got := p.line(half, p.begin.Add(22*time.Second)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&progress{verb: "imported", unit: "files"}).line(tally{}, time.Time{}.Add(time.Minute)); got !=
		"nothing for 1m0s: imported 0 files, 0 B, 0 B/s" {
		t.Error(got)
	}
}

func TestWordsOfLongPathsAndIDs(t *testing.T) {
	long := strings.Repeat("d/", 3000) + "file"
	if got := shortName(long); len(got) > 300 || !strings.HasSuffix(got, "/file (6004 bytes)") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	err := &fs.PathError{Op: "lstat", Path: long, Err: errors.New("file name too long")}
	if got := whatOf(err); got != "lstat: file name too long" {
		t.Error(got)
	}
	for want, ids := range map[string][]int64{"": nil, "; id 64": {64}, "; ids 1 2": {1, 2}} {
		if got := IDsWords(ids, false); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// silentServer receives puts and never answers them. A read returns the reason.
type silentServer struct{ reluctantServer }

func (s *silentServer) BatchPut(stream recordv1.RecordService_BatchPutServer) error {
	<-stream.Context().Done()
	return status.FromContextError(stream.Context().Err()).Err()
}

// An import without answers reports why the server waits, and not merely that the time limit was exceeded.
func TestUnansweredImportSaysWhyTheServerWaits(t *testing.T) {
	im := &importer{conn: served(t, &silentServer{}, 0), out: &Output{}}
	im.lastSuccess.Store(time.Now().Add(-2 * importPatience).UnixNano())
	p := &put{job: job{key: client.Key{ID: 1}}}
	_, err := im.sendBatch(t.Context(), []*put{p})
	if got := Describe(err, ""); err == nil || !strings.Contains(got, "GROUP_LOADING: group 4 is loading") ||
		!strings.Contains(got, "run again with --resume") {
		t.Error(got)
	}
}
