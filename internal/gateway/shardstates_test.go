package gateway_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

// setState requests a new state for the shard from the gateway.
func (c *cluster) setState(shard string, state recordv1.PlacementState) error {
	_, err := c.admin.SetShardState(c.ctx, &recordv1.SetShardStateRequest{Shard: shard, State: state})
	return err
}

// awaitListed lists the shards repeatedly until is(row) returns true, where row is the row of the given shard.
func (c *cluster) awaitListed(shard string, is func(*recordv1.Shard) bool) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list, err := c.admin.ListShards(c.ctx, &recordv1.ListShardsRequest{})
		must.OK(c.t, err)
		var row *recordv1.Shard
		for _, s := range list.GetShards() {
			if s.GetName() == shard {
				row = s
			}
		}
		if is(row) {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("shard %s: %v", shard, row)
		}
	}
}

// A shard is drained, then holds no group, and is removed after it has stopped. Each step is listed, and is refused
// before the previous one is complete.
func TestAShardIsDrainedAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a", "b")
		must.OK(t, c.setState("b", recordv1.PlacementState_PLACEMENT_STATE_DRAINING))
		c.awaitListed("b", func(s *recordv1.Shard) bool {
			return s.GetPlacementState() == recordv1.PlacementState_PLACEMENT_STATE_DRAINING && s.GetPlacedGroups() == 2 &&
				s.GetPlacementWaits() == ""
		})
		moves, err := c.admin.PlanMoves(c.ctx, &recordv1.PlanMovesRequest{})
		if err != nil || len(moves.GetMoves()) != 2 || moves.GetMoves()[0].GetReason() != "Drain" {
			t.Errorf("%v, %v", moves, err)
		}
		remove := func(words string) {
			t.Helper()
			_, err := c.admin.RemoveShard(c.ctx, &recordv1.RemoveShardRequest{Shard: "b"})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(status.Convert(err).Message(), words) {
				t.Errorf("removing it, wanted %q: %v", words, err)
			}
		}
		remove("stop it first")
		c.stops["b"]()
		awaitStatus(t, c.gateway, "the shard is gone", func(st gateway.Status) bool {
			return len(st.Shards) == 2 && st.Shards[1].State == "Silent"
		})
		remove("drain it first")
		for _, group := range []string{"1", "3"} {
			if _, err := placementtest.UpdateGroup(c.ctx, c.store, group, func(g *placement.Group) error {
				g.Members[0].Shard, g.Members[0].VolumeUUID, g.Leader = "a", c.shards["a"].volume, "a"
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		c.awaitListed("b", func(s *recordv1.Shard) bool { return s.GetPlacedGroups() == 0 && !s.GetAlive() })
		if _, err := c.admin.RemoveShard(c.ctx, &recordv1.RemoveShardRequest{Shard: "b"}); err != nil {
			t.Fatal(err)
		}
		c.awaitListed("b", func(s *recordv1.Shard) bool { return s == nil })
		err = c.setState("b", recordv1.PlacementState_PLACEMENT_STATE_ACTIVE)
		if status.Code(err) != codes.NotFound {
			t.Errorf("a shard that is gone: %v", err)
		}
	})
}

// TestDrainWithoutMajorityIsExplained drains a shard that does not run. A group whose only copy is on that shard stays
// there, and the listing gives the reason.
func TestDrainWithoutMajorityIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a", "b")
		c.stops["b"]()
		awaitStatus(t, c.gateway, "the shard is gone", func(st gateway.Status) bool {
			return len(st.Shards) == 2 && st.Shards[1].State == "Silent"
		})
		must.OK(t, c.setState("b", recordv1.PlacementState_PLACEMENT_STATE_DRAINING))
		c.awaitListed("b", func(s *recordv1.Shard) bool {
			return s.GetPlacedGroups() == 1 && strings.Contains(s.GetPlacementWaits(), "of group 1 no majority")
		})
	})
}

// A group that no other shard can take stays, and the listing gives the planner's reason.
func TestImpossibleDrainIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a")
		must.OK(t, c.setState("a", recordv1.PlacementState_PLACEMENT_STATE_DRAINING))
		c.awaitListed("a", func(s *recordv1.Shard) bool {
			return s.GetPlacedGroups() == 2 && strings.Contains(s.GetPlacementWaits(), "1 draining")
		})
		must.OK(t, c.setState("a", recordv1.PlacementState_PLACEMENT_STATE_ACTIVE))
		c.awaitListed("a", func(s *recordv1.Shard) bool {
			return s.GetPlacementState() == recordv1.PlacementState_PLACEMENT_STATE_ACTIVE && s.GetPlacementWaits() == ""
		})
	})
}

// Invalid orders, and orders that an operator would revert, change nothing.
func TestInvalidOrdersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const draining = recordv1.PlacementState_PLACEMENT_STATE_DRAINING
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		wantFieldViolation(t, c.setState("a", recordv1.PlacementState_PLACEMENT_STATE_UNSPECIFIED), "state")
		wantFieldViolation(t, c.setState("a", 99), "state")
		wantFieldViolation(t, c.setState("", draining), "shard")
		wantFieldViolation(t, c.setState("A/../b", draining), "shard")
		if err := c.setState("b", draining); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown shard: %v", err)
		}
		_, err := c.admin.RemoveShard(c.ctx, &recordv1.RemoveShardRequest{Shard: "b"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("removing an unknown shard: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{PlannedElsewhere: true}, "a")
		err := c.setState("a", recordv1.PlacementState_PLACEMENT_STATE_DRAINING)
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(status.Convert(err).Message(), "kubectl sheaf") {
			t.Errorf("%v", err)
		}
		view, err := c.store.View(c.ctx)
		if err != nil || len(view.States) != 0 {
			t.Errorf("%v, %v", view.States, err)
		}
	})
}

// TestFailedEtcdWriteIsReported checks that a caller can distinguish an etcd failure from a shard failure. The
// error says whether the change may have been made, and when to try again.
func TestFailedEtcdWriteIsReported(t *testing.T) {
	const draining = recordv1.PlacementState_PLACEMENT_STATE_DRAINING
	calls := map[string]func(c *cluster) error{
		"SetShardState": func(c *cluster) error { return c.setState("a", draining) },
		"RemoveShard": func(c *cluster) error {
			_, err := c.admin.RemoveShard(c.ctx, &recordv1.RemoveShardRequest{Shard: "a"})
			return err
		},
		"CreateGroup": func(c *cluster) error {
			_, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "new"})
			return err
		},
		"Put": func(c *cluster) error {
			_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: "other", Id: 1}})
			return err
		},
	}
	for state, s := range map[string]struct {
		of      func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error)
		says    string
		unknown bool
	}{
		"away": {nil, "may have been done", true},
		"full": {func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if strings.HasSuffix(info.FullMethod, "/Range") {
				return handler(ctx, request)
			}
			return nil, rpctypes.ErrGRPCNoSpace
		}, "When etcd's database is full", false},
	} {
		for name, call := range calls {
			if state == "full" && name == "RemoveShard" {
				continue // the call is refused earlier, because the shard is still registered
			}
			t.Run(state+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, named(), gateway.Config{}, "a")
					c.awaitListed("a", func(s *recordv1.Shard) bool { return s != nil })
					if s.of == nil {
						c.etcd.Away()
					} else {
						c.etcd.Intercept(s.of)
					}
					err := call(c)
					wantError(t, err, codes.Unavailable, "ETCD_UNAVAILABLE")
					outcome, retry := "", time.Duration(0)
					for _, d := range status.Convert(err).Details() {
						switch d := d.(type) {
						case *errdetails.ErrorInfo:
							outcome = d.GetMetadata()["outcome"]
						case *errdetails.RetryInfo:
							retry = d.GetRetryDelay().AsDuration()
						}
					}
					if said := status.Convert(err).Message(); !strings.Contains(said, s.says) || retry == 0 ||
						(outcome == "unknown") != (s.unknown && name != "Put") {
						t.Errorf("%s: outcome %q, retry after %v", said, outcome, retry)
					}
				})
			})
		}
	}
}
