package clienttest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

// countWatches returns dial options that count the Watch streams which a client opens.
func countWatches(n *atomic.Int64) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
			options ...grpc.CallOption) (grpc.ClientStream, error) {
			if strings.HasSuffix(method, "/Watch") {
				n.Add(1)
			}
			return open(ctx, desc, cc, method, options...)
		})}
}

// If the shard crashes, a watch continues after the crash and misses no change. Callers that watch through a gateway
// do not even notice that the stream broke.
func TestWatchContinuesAfterShardCrash(t *testing.T) {
	for name, direct := range map[string]bool{"gateway": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.StartWith(t, storetest.Config{Shards: 1, Groups: 1})
				var streams atomic.Int64
				c := s.Client(t, client.Config{Direct: direct, DialOptions: countWatches(&streams)})
				ctx := testContext(t)
				const last = 1 << 40
				began := make(chan struct{})
				done := make(chan error, 1)
				state := map[int64][]byte{}
				go func() {
					first := true
					options := &client.WatchOptions{OnCursor: func([]byte) {
						if first {
							first = false
							close(began)
						}
					}}
					for r, err := range c.Watch(ctx, "0", options) {
						if err != nil {
							done <- err
							return
						}
						if delete(state, r.Key.ID); !r.Deleted {
							state[r.Key.ID] = r.Data
						}
						if r.Key.ID == last {
							break
						}
					}
					done <- nil
				}()
				select {
				case <-began:
				case err := <-done:
					t.Fatalf("the watch ended before its first cursor: %v", err)
				}
				want := map[int64][]byte{}
				for round := range 4 {
					for id := range int64(30) {
						want[id] = pattern(1000 + round + int(id))
						if _, err := c.Put(ctx, client.Key{ID: id}, want[id], nil); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := c.Delete(ctx, client.Key{ID: int64(round)}, nil); err != nil {
						t.Fatal(err)
					}
					s.KillShard(0)
					must.OK(t, s.RestartShard(0))
				}
				delete(want, 3) // deleted in the last round
				want[last] = []byte("end")
				if _, err := c.Put(ctx, client.Key{ID: last}, want[last], nil); err != nil {
					t.Fatal(err)
				}
				must.OK(t, <-done)
				for id, data := range want {
					if !bytes.Equal(state[id], data) {
						t.Errorf("record %d: %d bytes, want %d", id, len(state[id]), len(data))
					}
				}
				if len(state) != len(want) {
					t.Errorf("%d records, want %d", len(state), len(want))
				}
				if _, err := c.Delete(ctx, client.Key{ID: last}, nil); err != nil {
					t.Fatal(err)
				}
				if n := streams.Load(); !direct && n != 1 {
					t.Errorf("the client had to open %d streams", n)
				}
			})
		})
	}
}

func TestWatchContinuesAfterBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := startFaulty(t, storetest.Config{Shards: 1, Groups: 1})
		ctx := testContext(t)
		f.message = func(method string, n int, _ any) error {
			if strings.HasSuffix(method, "/Watch") && n == 2 && f.fired.Add(1) <= 5 {
				return errBroken
			}
			return nil
		}
		var cursor []byte
		next := int64(0)
		for r, err := range c.Watch(ctx, "0", &client.WatchOptions{OnCursor: func(at []byte) {
			if cursor = at; next == 0 {
				if _, err := c.Put(ctx, client.Key{ID: next}, nil, nil); err != nil {
					t.Error(err)
				}
				next++
			}
		}}) {
			must.OK(t, err)
			if r.Key.ID != next-1 {
				continue // the same change again: a watch may deliver a change more than once
			}
			if next == 10 {
				break
			}
			if _, err := c.Put(ctx, client.Key{ID: next}, nil, nil); err != nil {
				t.Fatal(err)
			}
			next++
		}
		if f.fired.Load() < 5 || len(cursor) == 0 {
			t.Fatalf("the fault fired %d times", f.fired.Load())
		}
		// If a request is invalid, the watch reports an error and does not retry.
		for r, err := range c.Watch(ctx, "0", &client.WatchOptions{Cursor: []byte("x")}) {
			if !errors.Is(err, client.ErrInvalid) {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		for _, err := range c.Watch(ctx, "", nil) {
			if !errors.Is(err, client.ErrInvalid) {
				t.Fatal(err)
			}
		}
		short, cancel := context.WithCancel(ctx)
		ended := false
		for _, err := range c.Watch(short, "0", &client.WatchOptions{OnCursor: func([]byte) { cancel() }}) {
			if ended = errors.Is(err, context.Canceled); !ended {
				t.Fatal(err)
			}
		}
		if !ended {
			t.Fatal("the end of the context was not told")
		}
	})
}
