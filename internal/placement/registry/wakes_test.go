package registry_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// countedWatcher counts the events that etcd sends to a client's watches. It leaves out the watch of the keeper.
type countedWatcher struct {
	clientv3.Watcher
	responses atomic.Int64
}

func (c *countedWatcher) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	if strings.HasSuffix(key, "/groups/") {
		return c.Watcher.Watch(ctx, key, options...)
	}
	in, out := c.Watcher.Watch(ctx, key, options...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			if len(r.Events) > 0 {
				c.responses.Add(1)
			}
			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// follower follows etcd as a shard does, with a client of its own.
type follower struct {
	name    string
	store   *registry.Store
	watcher *countedWatcher
	views   <-chan placement.View
}

// newFollower follows etcd like a shard whose volume contains no groups. It returns after the first view.
func newFollower(t testing.TB, ctx context.Context, connect func(testing.TB) *clientv3.Client, storeName,
	name string) *follower {
	t.Helper()
	client := connect(t)
	f := &follower{watcher: &countedWatcher{Watcher: client.Watcher}}
	client.Watcher = f.watcher
	var err error
	if f.store, err = registry.NewStore(client, storeName, nil); err != nil {
		t.Fatal(err)
	}
	return f.beside(t, ctx, name)
}

// beside starts another follower that shares this one's connection.
func (f *follower) beside(t testing.TB, ctx context.Context, name string) *follower {
	t.Helper()
	next := &follower{name: name, store: f.store, watcher: f.watcher,
		views: f.store.Follow(ctx, placement.Progress{}, placement.Own{Shard: name})}
	select {
	case <-next.views:
	case <-ctx.Done():
		t.Fatalf("shard %s gets no view", name)
	}
	return next
}

// TestAShardIsNotWokenByWhatIsNotItsOwn writes a group on one shard, and counts the events that etcd sends to the
// other shards.
func TestAShardIsNotWokenByWhatIsNotItsOwn(t *testing.T) {
	synctest.Test(t, aShardIsNotWokenByWhatIsNotItsOwn)
}

func aShardIsNotWokenByWhatIsNotItsOwn(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	server, store := madeStore(t, ctx, namedMeta())
	const shards, writes = 8, 25
	var followers []*follower
	var groups []placement.Group
	for n := range shards {
		name := fmt.Sprint("s", n)
		g := placement.NewGroup(placement.Routing{Mode: placement.Named}, "of-"+name, 0)
		g.Members = []placement.Member{{Shard: name, VolumeUUID: uuid.New(), RaftID: uint64(n + 1)}}
		g = mustPut(t, ctx, store, g)
		groups = append(groups, g)
	}
	for _, g := range groups {
		followers = append(followers, newFollower(t, ctx, server.Client, store.Name(), g.Members[0].Shard))
	}
	write := func(g *placement.Group) {
		t.Helper()
		g.Term++
		next := mustPut(t, ctx, store, *g)
		*g = next
	}
	for range writes {
		write(&groups[0])
	}
	for n, f := range followers {
		if n > 0 {
			write(&groups[n])
		}
		// etcd sends events to a client in order. When this write has arrived, all earlier ones have therefore arrived,
		// too.
		await(t, ctx, f.views, "its own group as it was written last", func(v placement.View) bool {
			return v.Groups[groups[n].Name].Revision == groups[n].Revision
		})
		got, most := f.watcher.responses.Load(), int64(1)
		if n == 0 {
			most = writes
		}
		t.Logf("shard %s: %d responses for %d writes of its group", f.name, got, most)
		if got == 0 || got > most {
			t.Errorf("shard %s was woken %d times by %d writes of its own group, and %d of another's", f.name, got, most, writes)
		}
	}
}

// A shard creates the folder of a group that is on a different shard. From then on, the views of the shard with the
// folder must contain the group, although nothing notifies that shard.
func TestAShardIsInformedOfAGroupWhoseFolderItHas(t *testing.T) {
	synctest.Test(t, aShardIsInformedOfAGroupWhoseFolderItHas)
}

func aShardIsInformedOfAGroupWhoseFolderItHas(t *testing.T) {
	ctx := testContext(t)
	_, store := madeStore(t, ctx, namedMeta())
	g := placement.NewGroup(placement.Routing{Mode: placement.Named}, "of-a", 0)
	g.Members = []placement.Member{{Shard: "a", VolumeUUID: uuid.New(), RaftID: 1}}
	mustPut(t, ctx, store, g)
	var there atomic.Bool
	views := store.Follow(ctx, placement.Progress{}, placement.Own{
		Shard: "b", Holds: func(id uuid.UUID) bool { return there.Load() && id == g.UUID },
		Held: func() []string {
			if there.Load() {
				return []string{g.Name}
			}
			return nil
		},
	})
	first := <-views
	if first = first.Of(placement.Own{Shard: "b"}); len(first.Groups) > 0 {
		t.Fatalf("it is another's: %+v", first.Groups)
	}
	there.Store(true)
	await(t, ctx, views, "the group", func(v placement.View) bool { return v.Groups[g.Name].UUID == g.UUID })
}

// The folder is created when the shard has just received its first view, and while the follower still determines
// which groups belong to the shard.
func TestAShardIsInformedOfAGroupWhoseFolderCameWithItsFirstView(t *testing.T) {
	synctest.Test(t, aShardIsInformedOfAGroupWhoseFolderCameWithItsFirstView)
}

func aShardIsInformedOfAGroupWhoseFolderCameWithItsFirstView(t *testing.T) {
	ctx := testContext(t)
	_, store := madeStore(t, ctx, namedMeta())
	g := placement.NewGroup(placement.Routing{Mode: placement.Named}, "of-a", 0)
	g.Members = []placement.Member{{Shard: "a", VolumeUUID: uuid.New(), RaftID: 1}}
	mustPut(t, ctx, store, g)
	var there atomic.Bool
	following, hasAsked := make(chan (<-chan placement.View), 1), make(chan struct{})
	asked := sync.OnceFunc(func() { // this function is called when the follower first asks which groups have a folder
		views := <-following
		select {
		// The reader already has the view. It lacks the group, because the folder did not exist yet.
		case <-views:
			there.Store(true)
		// The reader has not received the view yet.
		default:
		}
		following <- views
		close(hasAsked)
	})
	following <- store.Follow(ctx, placement.Progress{}, placement.Own{
		Shard: "b", Holds: func(id uuid.UUID) bool { asked(); return there.Load() && id == g.UUID },
		Held: func() []string {
			if there.Load() {
				return []string{g.Name}
			}
			return nil
		},
	})
	<-hasAsked
	views := <-following
	if !there.Load() {
		<-views
		there.Store(true)
	}
	await(t, ctx, views, "the group", func(v placement.View) bool { return v.Groups[g.Name].UUID == g.UUID })
}
