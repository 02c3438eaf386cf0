package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

// faults are injected between the client and a real store. fired counts how many times they have occurred.
type faults struct {
	fired atomic.Int64
	// unary is called after each unary call. message is called after each message that a stream receives, and its argument
	// n is the message's number, from 1.
	unary   func(method, address string, reply any, err error) error
	message func(method string, n int, reply any) error
}

// startFaulty starts a store and a client, and injects the faults into the client's calls.
func startFaulty(t *testing.T, cfg storetest.Config) (*faults, *client.Client) {
	t.Helper()
	f := &faults{}
	return f, storetest.StartWith(t, cfg).Client(t, f.config())
}

func (f *faults) config() client.Config {
	return client.Config{DialOptions: []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			err := invoke(ctx, method, in, out, cc, options...)
			if f.unary == nil {
				return err
			}
			return f.unary(method, strings.TrimPrefix(cc.Target(), "passthrough:///"), out, err)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, options...)
			return &faultyStream{ClientStream: stream, f: f, method: method}, err
		}),
	}}
}

type faultyStream struct {
	grpc.ClientStream
	f      *faults
	method string
	n      int
}

func (s *faultyStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	s.n++
	if s.f.message == nil {
		return nil
	}
	return s.f.message(s.method, s.n, m)
}

// This is the transport's error for a broken connection.
var errBroken = status.Error(codes.Unavailable, "error reading from server: EOF")

func TestChangedBytesAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := startFaulty(t, storetest.Config{})
		ctx := testContext(t)
		if _, err := c.Put(ctx, client.Key{ID: 1}, []byte("data"), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(ctx, client.Key{ID: 2}, pattern(2<<20), nil); err != nil {
			t.Fatal(err)
		}
		flip := func(m any) {
			switch m := m.(type) {
			case *recordv1.GetResponse:
				m.Record.Data[0] ^= 1
			case *recordv1.PutResponse:
				m.DataCrc32C ^= 1
			case *recordv1.UploadResponse:
				m.Put.DataCrc32C ^= 1
			case *recordv1.BatchGetResponse:
				m.Results[0].Record.Data[0] ^= 1
			case *recordv1.BatchPutResponse:
				m.Results[0].Put.DataCrc32C ^= 1
			case *recordv1.DownloadResponse:
				if m.GetChunk() == nil {
					return
				}
				m.GetChunk().Data[0] ^= 1
			case *recordv1.ScanResponse:
				if len(m.GetRecords()[0].GetData()) == 0 {
					return
				}
				m.Records[0].Data[0] ^= 1
			default:
				return
			}
			f.fired.Add(1)
		}
		f.unary = func(_, _ string, reply any, err error) error { flip(reply); return err }
		f.message = func(_ string, _ int, reply any) error { flip(reply); return nil }
		for name, do := range map[string]func() error{
			"get":     func() error { _, err := c.Get(ctx, client.Key{ID: 1}, nil); return err },
			"put":     func() error { _, err := c.Put(ctx, client.Key{ID: 1}, []byte("data"), nil); return err },
			"put big": func() error { _, err := c.Put(ctx, client.Key{ID: 2}, pattern(2<<20), nil); return err },
			"get big": func() error { _, err := c.Download(ctx, client.Key{ID: 2}, &bytes.Buffer{}, nil); return err },
			"batchput": func() error {
				return c.BatchPut(ctx, []client.PutItem{{Key: client.Key{ID: 1}, Data: []byte("data")}})[0].Err
			},
			"batchget": func() error { return c.BatchGet(ctx, []client.GetItem{{Key: client.Key{ID: 1}}})[0].Err },
			"scan": func() error {
				for _, err := range c.Scan(ctx, nil) {
					if err != nil {
						return err
					}
				}
				return nil
			},
		} {
			before := f.fired.Load()
			if err := do(); !errors.Is(err, client.ErrDataLoss) || status.Code(err) != codes.DataLoss ||
				f.fired.Load() == before {
				t.Errorf("%s: %v; the fault fired %d times", name, err, f.fired.Load()-before)
			}
		}
	})
}

func TestDownloadContinuesAtTheSameVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		f := &faults{}
		c, writer := s.Client(t, f.config()), s.Client(t, client.Config{})
		ctx := testContext(t)
		key, data := client.Key{ID: 1}, pattern(6<<20)
		if _, err := c.Put(ctx, key, data, nil); err != nil {
			t.Fatal(err)
		}
		f.message = func(_ string, n int, _ any) error {
			if n < 3 || f.fired.Add(1) > 3 {
				return nil
			}
			// A newer version is written in between.
			if _, err := writer.Put(ctx, key, pattern(100), nil); err != nil {
				t.Error(err)
			}
			return errBroken
		}
		var out bytes.Buffer
		if _, err := c.Download(ctx, key, &out, nil); err != nil || !bytes.Equal(out.Bytes(), data) {
			t.Fatalf("%d of %d bytes, %v", out.Len(), len(data), err)
		}
		if f.fired.Load() < 3 {
			t.Fatalf("the fault fired %d times", f.fired.Load())
		}
	})
}

func TestScanContinuesAfterBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := startFaulty(t, storetest.Config{})
		ctx := testContext(t)
		const n = 300
		items := make([]client.PutItem, n)
		for i := range items {
			items[i] = client.PutItem{Key: client.Key{ID: int64(i)}, Data: pattern(20_000)}
		}
		for _, out := range c.BatchPut(ctx, items) {
			if out.Err != nil {
				t.Fatal(out.Err)
			}
		}
		for _, options := range []client.ScanOptions{{}, {Parallel: 2, SplitBytes: 1 << 20}} {
			before := f.fired.Load()
			f.message = func(_ string, n int, _ any) error {
				if n == 2 && f.fired.Add(1) <= before+4 {
					return errBroken
				}
				return nil
			}
			seen := map[int64]bool{}
			for r, err := range c.Scan(ctx, &options) {
				must.OK(t, err)
				if seen[r.Key.ID] {
					t.Fatalf("%+v: record %d came twice", options, r.Key.ID)
				}
				seen[r.Key.ID] = true
			}
			if len(seen) != n || f.fired.Load() == before {
				t.Fatalf("%+v: %d of %d records; the fault fired %d times", options, len(seen), n, f.fired.Load()-before)
			}
			f.message = nil
		}
	})
}

func TestALostAnswerIsRepeatedByItsRequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := startFaulty(t, storetest.Config{})
		ctx := testContext(t)
		f.unary = func(string, string, any, error) error {
			if f.fired.Add(1) <= 3 {
				return errBroken
			}
			return nil
		}
		put, err := c.Put(ctx, client.Key{ID: 1}, []byte("x"), &client.PutOptions{IfAbsent: true})
		if err != nil || !put.Repeated {
			t.Fatalf("%+v, %v", put, err)
		}
		f.unary = func(string, string, any, error) error { return errBroken }
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err = c.Put(short, client.Key{ID: 2}, nil, nil)
		if !errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, client.ErrUnavailable) {
			t.Fatalf("a put whose answers are all lost: %v", err)
		}
		if _, err = c.Get(short, client.Key{ID: 1}, nil); !errors.Is(err, client.ErrUnavailable) {
			t.Fatalf("a get whose answers are all lost: %v", err)
		}
		f.unary = nil
		broken := 0
		f.message = func(method string, _ int, _ any) error {
			if method == recordv1.RecordService_BatchPut_FullMethodName && broken < 2 {
				broken++
				return errBroken
			}
			return nil
		}
		if out := c.BatchPut(ctx, []client.PutItem{{Key: client.Key{ID: 3}}}); out[0].Err != nil || !out[0].Repeated ||
			broken != 2 {
			t.Fatalf("%+v; the fault fired %d times", out[0], broken)
		}
	})
}

func TestAWrongShardSendsTheCallToTheGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.StartWith(t, storetest.Config{Shards: 2})
		f := &faults{}
		cfg := f.config()
		cfg.Direct = true
		c := s.Client(t, cfg)
		ctx := testContext(t)
		wrong, err := status.New(codes.FailedPrecondition, "wrong").
			WithDetails(&errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: "WRONG_SHARD"})
		must.OK(t, err)
		f.unary = func(_, address string, _ any, err error) error {
			if address == s.Addr() {
				return err
			}
			f.fired.Add(1)
			return wrong.Err()
		}
		// The client calls only the gateway until it has received the routing.
		for id := int64(0); f.fired.Load() < 10; id++ {
			time.Sleep(time.Millisecond)
			if _, err := c.Put(ctx, client.Key{ID: id}, []byte(fmt.Sprint(id)), nil); err != nil {
				t.Fatalf("%d calls went to a shard first: %v", f.fired.Load(), err)
			}
		}
	})
}

// While the leadership changes, the last error before the deadline may say that another server leads. The caller must
// receive ErrUnavailable.
func TestCallDuringLeaderChangeIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := startFaulty(t, storetest.Config{})
		ctx := testContext(t)
		for _, reason := range []string{"NOT_LEADER", "WRONG_SHARD"} {
			st, err := status.New(codes.FailedPrecondition, "not here").
				WithDetails(&errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: reason})
			must.OK(t, err)
			lost := int64(0) // number of calls, counted from the first, whose responses are lost
			f.unary = func(_, _ string, _ any, err error) error {
				if f.fired.Add(1) <= lost {
					return errBroken
				}
				return st.Err()
			}
			f.message = func(_ string, _ int, reply any) error {
				f.fired.Add(1)
				if puts, ok := reply.(*recordv1.BatchPutResponse); ok {
					puts.Results[0] = &recordv1.BatchPutResult{Status: st.Proto()}
				}
				return nil
			}
			for name, do := range map[string]func(ctx context.Context) error{
				"get":      func(ctx context.Context) error { _, err := c.Get(ctx, client.Key{ID: 1}, nil); return err },
				"put":      func(ctx context.Context) error { _, err := c.Put(ctx, client.Key{ID: 1}, nil, nil); return err },
				"batchput": func(ctx context.Context) error { return c.BatchPut(ctx, []client.PutItem{{}})[0].Err },
			} {
				short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				err := do(short)
				cancel()
				if !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrOutcomeUnknown) {
					t.Errorf("%s, %s: %v", reason, name, err)
				}
			}
			// If an earlier attempt may have been applied, the outcome remains unknown, whatever the last attempt's error is.
			f.fired.Store(0)
			lost = 1
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			if _, err := c.Put(short, client.Key{ID: 1}, nil, nil); !errors.Is(err, client.ErrOutcomeUnknown) ||
				errors.Is(err, client.ErrUnavailable) {
				t.Errorf("%s after a lost answer: %v", reason, err)
			}
			cancel()
		}
	})
}

func TestClientSwitchesToAnotherGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		c, err := client.New(client.Config{Addresses: []string{"nobody:1", s.Addr()}, Dial: s.Network.Dial})
		must.OK(t, err)
		defer func() { _ = c.Close() }()
		if _, err := c.Put(testContext(t), client.Key{ID: 1}, nil, nil); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRetriedDeletionSparesNewGroup deletes a group and loses the response. Before the client retries the
// deletion, another client creates a new, empty group of the same name. The retry must not delete the new group.
func TestRetriedDeletionSparesNewGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		s := storetest.StartWith(t, storetest.Config{Named: true, Shards: 2})
		other := s.Client(t, client.Config{})
		var next placement.Group
		f := &faults{}
		f.unary = func(method, _ string, _ any, err error) error {
			if method != recordv1.AdminService_DeleteGroup_FullMethodName || err != nil || f.fired.Load() > 0 {
				return err
			}
			if err := other.CreateGroup(ctx, "oslo"); errors.Is(err, client.ErrExists) {
				return nil // this call has deleted nothing
			} else if err != nil {
				t.Errorf("create the next group: %v", err)
			}
			f.fired.Add(1)
			next, _ = s.Store.Group(ctx, "oslo")
			return status.Error(codes.Unavailable, "the answer is lost")
		}
		c := s.Client(t, f.config())
		if err := errors.Join(c.CreateGroup(ctx, "oslo"), c.DeleteGroup(ctx, "oslo")); err != nil || f.fired.Load() != 1 {
			t.Errorf("%v; %d answers were lost", err, f.fired.Load())
		}
		if g, err := s.Store.Group(ctx, "oslo"); err != nil || g.UUID != next.UUID {
			t.Errorf("the next group %s is now %s, %v", next.UUID, g.UUID, err)
		}
	})
}
