package peer

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
)

// restoreSource is a PeerService that serves the files of a store, as the source of a restore does.
type restoreSource struct {
	peerv1.UnimplementedPeerServiceServer
	sender *Sender
	starts []*peerv1.FetchGroupStart
	err    error         // if not nil, the answer to each call
	ended  chan error    // receives the results of calls
	late   time.Duration // time between the end of each call and its answer
	hold   chan struct{} // if not nil, each call waits for this channel before the description
}

func (s *restoreSource) FetchGroup(stream peerv1.PeerService_FetchGroupServer) (err error) {
	defer func() {
		time.Sleep(s.late)
		s.ended <- err
	}()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s.starts = append(s.starts, first.GetStart())
	if s.hold != nil {
		<-s.hold
	}
	if s.err != nil {
		return s.err
	}
	return s.sender.Group(stream.Context(), uuid.UUID(first.GetStart().GetGroup()), GroupStream{
		ServerStream: stream,
		Describe: func(part *peerv1.FetchGroupDescription) error {
			return stream.Send(&peerv1.FetchGroupResponse{Part: &peerv1.FetchGroupResponse_Description{Description: part}})
		},
		Wanted: func() (*peerv1.FetchGroupWanted, error) {
			in, err := stream.Recv()
			return in.GetWanted(), err
		},
	})
}

// withSource runs a test in a bubble with a hub and the source at the address source:1.
func withSource(t *testing.T, files map[string][]byte, test func(t *testing.T, h *Hub, s *restoreSource, from *store)) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		from := &store{files: files}
		s := &restoreSource{sender: &Sender{Source: from, ExportsMax: 1}, ended: make(chan error, 8)}
		server := grpc.NewServer(grpc.ForceServerCodecV2(message.Codec{}), grpc.MaxRecvMsgSize(messageMax),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
		peerv1.RegisterPeerServiceServer(server, s)
		listener, err := network.Listen(t.Context(), "source:1")
		must.OK(t, err)
		go func() { _ = server.Serve(listener) }() // Serve ends when the server is stopped
		defer server.Stop()
		h := New(Options{Shard: "a", Store: testGroup, Dial: network.Dial,
			Address: func(string) (string, bool) { return "", false }})
		defer h.Close()
		test(t, h, s, from)
	})
}

// A source is asked without a name, and with the Raft id of the replica that installs. It learns that the group was
// received completely.
func TestAGroupIsFetchedFromASource(t *testing.T) {
	files := map[string][]byte{"one": random(3_000_000), "two": random(17), "empty": {}}
	withSource(t, files, func(t *testing.T, h *Hub, s *restoreSource, from *store) {
		f, to := h.Source("source:1", 77), newSink(from)
		s.late = time.Second
		must.OK(t, f.Group(t.Context(), testGroup, to))
		select {
		case err := <-s.ended:
			if err != nil {
				t.Errorf("the source takes the group for unfinished: %v", err)
			}
		default:
			t.Error("the call goes on, and the source can send no other group")
		}
		for name, want := range files {
			if got := to.files[name]; got == nil || got.String() != string(want) {
				t.Errorf("file %s differs", name)
			}
		}
		want := &peerv1.FetchGroupStart{Group: testGroup[:], Founder: 77,
			Header: &peerv1.PeerHeader{Store: testGroup[:], FromShard: "a", Instance: h.number}}
		if !proto.Equal(s.starts[0], want) {
			t.Errorf("the source was asked %v, want %v", s.starts[0], want)
		}
		if f.From() != "source:1" || h.Fetcher("b").From() != "b" {
			t.Errorf("it fetches from %q", f.From())
		}
	})
}

// The error of a call names the source, and keeps the code of the answer.
func TestErrorsOfASourceNameIt(t *testing.T) {
	withSource(t, nil, func(t *testing.T, h *Hub, s *restoreSource, from *store) {
		for code, kind := range map[codes.Code]error{
			codes.DataLoss: nil, codes.Unavailable: nil, codes.FailedPrecondition: nil, codes.NotFound: ErrNotHere,
			codes.ResourceExhausted: ErrBusy,
		} {
			s.err = status.Error(code, "object X is missing")
			err := h.Source("source:1", 77).Group(t.Context(), testGroup, newSink(from))
			if err == nil || !strings.Contains(err.Error(), "object X is missing") ||
				!strings.Contains(err.Error(), "the source of the restore at source:1") {
				t.Errorf("%v: %v", code, err)
			}
			if kind != nil && !errors.Is(err, kind) || kind == nil && status.Code(err) != code {
				t.Errorf("%v: the error %v is of another kind", code, err)
			}
			<-s.ended
		}
		err := h.Source("nowhere:1", 77).Group(t.Context(), testGroup, newSink(from))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "nowhere:1") {
			t.Errorf("a source that does not exist: %v", err)
		}
	})
}

// A source may plan a large group for hours before it describes the group, and its connection answers pings meanwhile.
// If the process is stopped, nothing answers, and the call fails.
func TestACallEndsWhenItsSourceNoLongerResponds(t *testing.T) {
	withSource(t, map[string][]byte{"one": random(17)}, func(t *testing.T, h *Hub, s *restoreSource, from *store) {
		s.hold = make(chan struct{})
		time.AfterFunc(5*time.Hour, func() { close(s.hold) })
		began := time.Now()
		must.OK(t, h.Source("source:1", 77).Group(t.Context(), testGroup, newSink(from)))
		if time.Since(began) < 5*time.Hour {
			t.Errorf("it took only %v", time.Since(began))
		}
	})
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		listener, err := network.Listen(t.Context(), "source:1")
		must.OK(t, err)
		var ends []io.Closer
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				ends = append(ends, conn)
				// The preface of a server is an empty SETTINGS frame. After it, this server is stopped.
				_, _ = conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
				go func() { _, _ = io.Copy(io.Discard, conn) }()
			}
		}()
		h := New(Options{Shard: "a", Store: testGroup, Dial: network.Dial})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err = h.Source("source:1", 77).Group(ctx, testGroup, newSink(&store{}))
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			t.Errorf("a source that is stopped: %v", err)
		}
		h.Close()
		must.OK(t, listener.Close())
		synctest.Wait()
		for _, end := range ends {
			_ = end.Close()
		}
	})
}
