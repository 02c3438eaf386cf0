package shard

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/messagetest"
)

// Interceptors decide what a caller may do, so a call that bypasses them would be a security hole.
//
// This test runs in real time, because each call is a subtest, which a bubble cannot have.
func TestEveryCallPassesTheInterceptors(t *testing.T) {
	t.Parallel()
	seen := messagetest.NewInterceptors()
	f := start(t, newRegistry(named, "s1", "a"), func(c *Config) { c.ServerOptions = seen.ServerOptions() }).ready()
	called := seen.CheckEveryCall(t, f.conn)
	for _, method := range []string{
		recordv1.RecordService_Put_FullMethodName, recordv1.RecordService_Watch_FullMethodName,
		recordv1.AdminService_AcceptLoss_FullMethodName,
		"/sheaf.peer.v1.PeerService/Exchange", "/grpc.health.v1.Health/Check",
	} {
		if !slices.Contains(called, method) {
			t.Errorf("%s was not called: reflection does not tell of it", method)
		}
	}
}

// A message that is too large is not decoded completely, but its key is.
func TestInterceptorsSeeTheKeyOfATooLargePut(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		seen := messagetest.NewInterceptors()
		f := start(t, newRegistry(named, "s1", "a"), func(c *Config) { c.ServerOptions = seen.ServerOptions() }).ready()
		in := &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: "a", Id: 7}, Data: make([]byte, 8<<20+1)}
		if _, err := f.records.Put(f.ctx(), in); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("got %v", err)
		}
		got, _ := seen.Request(recordv1.RecordService_Put_FullMethodName).(*recordv1.PutRequest)
		if got.GetKey().GetGroup() != "a" || got.GetKey().GetId() != 7 || len(got.GetData()) != 0 {
			t.Fatalf("the interceptor saw key %v and %d bytes of data", got.GetKey(), len(got.GetData()))
		}
	})
}

// Every call passes through the interceptors even while no volume is served, including calls that are then refused.
//
// This test runs in real time, because each call is a subtest, which a bubble cannot have.
func TestEveryCallOfAShardWithoutAVolumePassesTheInterceptors(t *testing.T) {
	t.Parallel()
	seen := messagetest.NewInterceptors()
	registry := newRegistry(named, "s1", "a")
	registry.setDown(true)
	f := startHost(t, registry, func(c *Config) { c.ServerOptions = seen.ServerOptions() })
	f.holdsBack(pending, "etcd does not answer")
	seen.CheckRefusals(t, f.conn, recordv1.RecordService_ServiceDesc.ServiceName, func(string) codes.Code {
		return codes.Unavailable
	})
	seen.CheckRefusals(t, f.conn, recordv1.AdminService_ServiceDesc.ServiceName, func(method string) codes.Code {
		switch method {
		case recordv1.AdminService_ListShards_FullMethodName, recordv1.AdminService_ListGroups_FullMethodName,
			recordv1.AdminService_DescribeVolume_FullMethodName:
			return codes.OK
		case recordv1.AdminService_WatchLoad_FullMethodName:
			return codes.Unavailable
		}
		return codes.Unimplemented
	})
	seen.CheckRefusals(t, f.conn, peerv1.PeerService_ServiceDesc.ServiceName, func(string) codes.Code {
		return codes.Unimplemented
	})
	seen.CheckRefusals(t, f.conn, archivev1.ArchiveService_ServiceDesc.ServiceName, func(string) codes.Code {
		return codes.Unavailable
	})
}

// An interceptor may do anything with a response. Whatever it does, the memory that was reserved for the response is
// released, and no other call reuses the response's memory.
func TestInterceptorsMayChangeWhatGetAnswers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const refuse, replace, exchange, fail = 1, 2, 3, 4
		change := func(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			get, ok := in.(*recordv1.GetRequest)
			if !ok {
				return handler(ctx, in)
			}
			switch get.GetKey().GetId() {
			case refuse:
				_, _ = handler(ctx, in)
				return nil, status.Error(codes.PermissionDenied, "not for you")
			case replace:
				_, _ = handler(ctx, in)
				return &recordv1.GetResponse{Record: &recordv1.Record{Version: "another"}}, nil
			case exchange:
				return handler(ctx, &recordv1.GetRequest{Key: key(10)})
			case fail:
				_, _ = handler(ctx, in)
				panic("a bug")
			}
			return handler(ctx, in)
		}
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.ServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(change)}
		}).ready()
		f.putEach(16, 1000)
		get := func(id int64) error {
			out, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
			switch rec := out.GetRecord(); id {
			case refuse:
				if status.Code(err) != codes.PermissionDenied {
					return fmt.Errorf("refused: %v, %w", rec, err)
				}
			case replace:
				if err != nil || rec.GetVersion() != "another" || len(rec.GetData()) != 0 {
					return fmt.Errorf("replaced: %v, %w", rec, err)
				}
			case fail:
				if status.Code(err) != codes.Internal {
					return fmt.Errorf("failed: %v, %w", rec, err)
				}
			default:
				if id == exchange {
					id = 10
				}
				if err != nil || !bytes.Equal(rec.GetData(), data(id, 1000)) || rec.GetKey().GetId() != id {
					return fmt.Errorf("record %d: %v, %w", id, rec.GetKey(), err)
				}
			}
			return nil
		}
		var wait sync.WaitGroup
		for caller := range int64(8) {
			wait.Go(func() {
				for n := range int64(200) {
					if err := get((caller + n) % 16); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		f.eventually("nothing is taken", func() bool {
			return f.shard.calls.AnswerBytes() == 0 && f.shard.calls.Calls() == 0
		})
	})
}
