package shard

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/placement"
)

// asked is a registry that counts how often a group is looked up. While held is locked, it delays its responses.
type asked struct {
	*memRegistry
	count atomic.Int64
	held  longlock.Mutex
}

func (a *asked) Look(ctx context.Context, group string) (placement.View, error) {
	a.count.Add(1)
	a.held.Lock()
	defer a.held.Unlock()
	return a.memRegistry.Look(ctx, group)
}

// As long as no more callers than allowed look up groups at the same time, no lookup is refused, even if each caller
// looks up another group as soon as it has its result.
func TestAnAnswerFreesItsPlaceFirst(t *testing.T) {
	var wait sync.WaitGroup
	q := &lookups{ask: func(string) (placement.View, error) { return placement.View{}, nil }, begin: wait.Go}
	for caller := range lookupsMax {
		wait.Go(func() {
			for n := range 5000 {
				if _, err := q.find(t.Context(), fmt.Sprint(caller, "-", n), 0); err != nil {
					t.Errorf("question %d of caller %d: %v", n, caller, err)
					return
				}
			}
		})
	}
	wait.Wait()
}

// A caller gets its result only after its lookup no longer counts as running. To check this, the test holds the lock
// that guards the count, so that the count cannot change.
func TestNobodyIsInformedBeforeAPlaceIsFree(t *testing.T) {
	begun, told := make(chan func(), 1), make(chan error, 1)
	q := &lookups{
		ask:   func(string) (placement.View, error) { return placement.View{}, nil },
		begin: func(answer func()) { begun <- answer },
	}
	go func() {
		_, err := q.find(t.Context(), "elsewhere", 0)
		told <- err
	}()
	answer := <-begun
	q.mu.Lock()
	go answer()
	for range 100_000 { // gives the other goroutines enough time to run
		runtime.Gosched()
	}
	early := len(told) > 0
	q.mu.Unlock()
	if err := <-told; err != nil || early {
		t.Errorf("told %v, before its place was free: %v", err, early)
	}
}

// If a call names a group that this shard does not follow, the shard responds with the current state in etcd.
// Concurrent calls share one request to etcd. If etcd does not respond, the shard cannot tell where the group is.
func TestGroupsThatAreNotFollowedAreAskedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(named, "s1", "here")
		etcd := &asked{memRegistry: registry}
		f := start(t, registry, func(c *Config) { c.Placement = etcd })
		f.ready()
		get := func(group string, epoch uint64) error {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 1, Group: group},
				RoutingEpoch: epoch})
			return err
		}
		is := func(err error, code codes.Code, reason, address string) {
			t.Helper()
			want(t, err, code, reason)
			if a := metadataOf(err, "address"); a != address {
				t.Errorf("address %q, wanted %q", a, address)
			}
		}
		is(get("there", 0), codes.NotFound, reason.GroupNotFound, "")
		var epoch uint64
		registry.change(func(v *placement.View) {
			g := placement.NewGroup(named, "there", 0)
			g.Members, g.Leader = []placement.Member{{Shard: "s2", VolumeUUID: uuid.New(), RaftID: 1}}, "s2"
			v.Groups["there"], v.Shards["s2"] = g, placement.Shard{Name: "s2", Address: "elsewhere:1"}
			epoch = v.Epoch
		})
		// The caller has seen a newer view, which contains the group. An earlier response from etcd is older than that
		// view, so the shard must ask etcd again.
		is(get("there", epoch), codes.FailedPrecondition, reason.WrongShard, "elsewhere:1")
		if r := f.shard.replicas.Routes(); r.View.Groups["there"].Name != "" || !r.View.Own {
			t.Errorf("the shard follows %v", r.View.Groups)
		}
		before := etcd.count.Load()
		for range 50 {
			if err := get("there", epoch); reasonOf(err) != reason.WrongShard {
				t.Fatal(err)
			}
		}
		if n := etcd.count.Load() - before; n >= 50 {
			t.Errorf("50 calls at once asked etcd %d times", n)
		}

		registry.setDown(true)
		is(get("other", 0), codes.FailedPrecondition, reason.WrongShard, "")
		registry.setDown(false)
		is(get("other", 0), codes.NotFound, reason.GroupNotFound, "")

		etcd.held.Lock()
		var wait sync.WaitGroup
		var refused atomic.Int64
		for n := range 3 * lookupsMax {
			wait.Go(func() {
				if reasonOf(get(string(rune('a'+n%26))+time.Duration(n).String(), 0)) == reason.WrongShard {
					refused.Add(1)
				}
			})
		}
		f.eventually("as many are asked for as may be, others refused", func() bool { return refused.Load() >= 2*lookupsMax })
		etcd.held.Unlock()
		wait.Wait()
		if refused.Load() != 2*lookupsMax {
			t.Errorf("%d were refused, wanted are %d", refused.Load(), 2*lookupsMax)
		}
	})
}
