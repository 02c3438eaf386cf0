package clienttest

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

// callCounter counts the calls that a client sends for each method.
type callCounter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *callCounter) add(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[method[strings.LastIndex(method, "/")+1:]]++
}

// take returns the counts and resets them.
func (c *callCounter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = map[string]int{}
	return n
}

func (c *callCounter) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			c.add(method)
			return invoke(ctx, method, in, out, cc, o...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			c.add(method)
			return open(ctx, d, cc, method, o...)
		}),
	}
}

// failGroup makes a group fail: it deletes the group's manifest on the only shard, and restarts that shard.
func failGroup(t *testing.T, s *storetest.Server, name string) {
	t.Helper()
	cc, err := grpc.NewClient(bubbletest.Target(s.Addr()), s.Network.Dialer(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	defer func() { _ = cc.Close() }() // the only possible error is that the connection is already closed
	listed, err := recordv1.NewAdminServiceClient(cc).ListGroups(testContext(t), &recordv1.ListGroupsRequest{Group: name})
	if err != nil || len(listed.GetGroups()) != 1 {
		t.Fatalf("%v, %v", listed, err)
	}
	s.KillShard(0)
	must.OK(t, s.Disk(0).Remove(filepath.Join(s.Folder(0), "groups", listed.GetGroups()[0].GetUuid(),
		"manifest")))
	must.OK(t, s.RestartShard(0))
}

// Calls wait for a group that is loading, but not for a group that has failed, because a failed group will never be
// served.
func TestCallsToFailedGroupFailAtOnce(t *testing.T) {
	const groups = 3
	const failed, name = 1, "1" // id of a record, and the name of its group
	well := int64(2)
	for r := (routing.Routing{Mode: routing.Hash, Groups: groups}); r.GroupOf(well) == r.GroupOf(failed); well++ {
	}
	for _, direct := range []bool{false, true} {
		t.Run(map[bool]string{false: "gateway", true: "direct"}[direct], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.StartWith(t, storetest.Config{Groups: groups})
				failGroup(t, s, name)
				ctx, count := testContext(t), &callCounter{n: map[string]int{}}
				c := s.Client(t, client.Config{Direct: direct, DialOptions: count.options()})
				key, data := client.Key{ID: failed}, []byte("data")
				// The other groups are served, and the client knows which shards lead them.
				if _, err := c.Put(ctx, client.Key{ID: well}, data, nil); err != nil {
					t.Fatal(err)
				}
				for op, do := range map[string]func() error{
					"Get":    func() error { _, err := c.Get(ctx, key, nil); return err },
					"Put":    func() error { _, err := c.Put(ctx, key, data, nil); return err },
					"Delete": func() error { _, err := c.Delete(ctx, key, nil); return err },
					"Upload": func() error { _, err := c.Upload(ctx, key, strings.NewReader("data"), nil); return err },
					"BatchPut": func() error {
						out := c.BatchPut(ctx, []client.PutItem{{Key: key, Data: data}, {Key: client.Key{ID: well}, Data: data}})
						if out[1].Err != nil {
							t.Errorf("the put beside it: %v", out[1].Err)
						}
						return out[0].Err
					},
					"BatchGet": func() error {
						out := c.BatchGet(ctx, []client.GetItem{{Key: key}, {Key: client.Key{ID: well}}})
						if out[1].Err != nil {
							t.Errorf("the get beside it: %v", out[1].Err)
						}
						return out[0].Err
					},
					"Download":     func() error { _, err := c.Open(ctx, key, nil); return err },
					"ListVersions": func() error { return lastError(c.Versions(ctx, key)) },
					"Find":         func() error { _, err := c.Find(ctx, failed); return err },
					"Scan":         func() error { return lastError(c.Scan(ctx, &client.ScanOptions{Group: name})) },
					"Watch":        func() error { return lastError(c.Watch(ctx, name, nil)) },
					"PlanScan":     func() error { return lastError(c.Scan(ctx, &client.ScanOptions{Group: name, Parallel: 2})) },
				} {
					count.take()
					err := do()
					var e *client.Error
					if !errors.Is(err, client.ErrGroupFailed) || !errors.As(err, &e) || e.Code != codes.FailedPrecondition ||
						e.Reason != "GROUP_FAILED" ||
						e.Metadata["group"] != name || errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrOutcomeUnknown) {
						t.Fatalf("%s: %v", op, err)
					}
					for _, word := range []string{"group " + name, "shard-0", "manifest", filepath.Join(s.Folder(0), "groups")} {
						if !strings.Contains(e.Message, word) {
							t.Errorf("%s: %q does not name %q", op, e.Message, word)
						}
					}
					most := 1
					if direct { // a direct client calls the shard, and then a gateway, because a gateway may reach other copies
						most = 2
					}
					if n := count.take()[op]; n < 1 || n > most+1 || n > most && op != "BatchPut" && op != "BatchGet" {
						t.Errorf("%s: %d calls", op, n)
					}
				}
			})
		})
	}
}

// lastError returns the last error of a sequence.
func lastError(of func(func(client.Record, error) bool)) (err error) {
	for _, err = range of {
		if err != nil {
			return err
		}
	}
	return nil
}
