package clienttest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

// lossyConfig returns the configuration of a client that never learns the outcome of its first write: the server
// applies the write, and the response is lost. All later responses are replaced with an error (the argument answer).
// The argument limit is the timeout of a call.
func lossyConfig(answer error, lost *atomic.Int64, limit time.Duration) client.Config {
	fail := func(method string) (bool, error) {
		if !strings.Contains(method, "RecordService") {
			return false, nil
		}
		if lost.Add(1) == 1 {
			return true, errBroken
		}
		return true, answer
	}
	return client.Config{CallTimeout: limit, DialOptions: []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			err := invoke(ctx, method, in, out, cc, options...)
			if fails, with := fail(method); fails {
				return with
			}
			return err
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, options...)
			return &lossyStream{ClientStream: stream, fail: func() (bool, error) { return fail(method) }}, err
		}),
	}}
}

type lossyStream struct {
	grpc.ClientStream
	fail func() (bool, error)
}

func (s *lossyStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if fails, with := s.fail(); fails {
		return with
	}
	return err
}

func TestOnlyAnAnswerBehindTheRequestIDEndsTheDoubtOfAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		for i, answer := range []struct {
			code   codes.Code
			reason string
			known  bool
		}{
			{codes.ResourceExhausted, "OVERLOADED", false},
			{codes.ResourceExhausted, "DISK_FULL", false},
			{codes.ResourceExhausted, "MEMORY_FULL", false},
			{codes.InvalidArgument, "", false},
			{codes.Aborted, "VERSION_MISMATCH", true},
			{codes.AlreadyExists, "RECORD_EXISTS", true},
			{codes.InvalidArgument, "REQUEST_ID_REUSED", true},
		} {
			st := status.New(answer.code, "no")
			if answer.reason != "" {
				st, _ = st.WithDetails(&errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: answer.reason})
			}
			key := client.Key{ID: int64(i)}
			for name, write := range map[string]func(ctx context.Context, c *client.Client) error{
				"put": func(ctx context.Context, c *client.Client) error { _, err := c.Put(ctx, key, nil, nil); return err },
				"delete": func(ctx context.Context, c *client.Client) error {
					_, err := c.Delete(ctx, key, nil)
					return err
				},
				"upload": func(ctx context.Context, c *client.Client) error {
					_, err := c.Upload(ctx, key, bytes.NewReader(make([]byte, 2<<20)), nil)
					return err
				},
				"batch": func(ctx context.Context, c *client.Client) error {
					return c.BatchPut(ctx, []client.PutItem{{Key: key}})[0].Err
				},
			} {
				var lost atomic.Int64
				err := write(t.Context(), s.Client(t, lossyConfig(st.Err(), &lost, time.Second)))
				if err == nil || errors.Is(err, client.ErrOutcomeUnknown) == answer.known || status.Code(err) != answer.code {
					t.Errorf("%v %s %s: got %v, outcome unknown: %v", answer.code, answer.reason, name, err,
						errors.Is(err, client.ErrOutcomeUnknown))
				}
				if err != nil && strings.Contains(err.Error(), "the write may have been done") == answer.known {
					t.Errorf("%v %s %s says %v", answer.code, answer.reason, name, err)
				}
				if lost.Load() < 2 {
					t.Errorf("%v %s %s: %d answers", answer.code, answer.reason, name, lost.Load())
				}
			}
		}
	})
}

// A server that stops or is overloaded may abort a stream of puts with a reason. Every put that was sent and not
// answered may nevertheless have been applied.
func TestAbortedPutStreamLeavesOutcomesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		st, err := status.New(codes.Unavailable, "stopping").WithDetails(&errdetails.ErrorInfo{Domain: "sheaf.dev",
			Reason: "STOPPING"})
		must.OK(t, err)
		f := &faults{message: nil}
		f.message = func(method string, _ int, _ any) error {
			if method != recordv1.RecordService_BatchPut_FullMethodName {
				return nil
			}
			f.fired.Add(1)
			return st.Err()
		}
		config := f.config()
		config.CallTimeout = time.Second
		out := s.Client(t, config).BatchPut(t.Context(), []client.PutItem{{Key: client.Key{ID: 1}}})
		if !errors.Is(out[0].Err, client.ErrOutcomeUnknown) || f.fired.Load() == 0 {
			t.Fatalf("%v; the fault fired %d times", out[0].Err, f.fired.Load())
		}
	})
}

// seekOnce is a reader that can be read to its end only once. It fails if it is read again after a seek.
type seekOnce struct {
	*bytes.Reader
	whole bool
}

var errMedium = errors.New("medium error")

func (s *seekOnce) Read(p []byte) (int, error) {
	if s.whole {
		return 0, errMedium
	}
	n, err := s.Reader.Read(p)
	s.whole = err != nil
	return n, err
}

func TestUnrepeatableUploadHasUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		var lost atomic.Int64
		c := s.Client(t, lossyConfig(errBroken, &lost, time.Minute))
		_, err := c.Upload(t.Context(), client.Key{ID: 1}, &seekOnce{Reader: bytes.NewReader(make([]byte, 2<<20))}, nil)
		if !errors.Is(err, client.ErrOutcomeUnknown) || !errors.Is(err, errMedium) || lost.Load() != 1 {
			t.Fatalf("got %v after %d answers", err, lost.Load())
		}
	})
}
