package registry_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// watchersPerConnection is the number of simulated shards that share one connection, so that a thousand of them fit
// into one process.
const watchersPerConnection = 25

// TestWritesToManyWatchers writes many groups, each of them once, while an equal number of watchers listen. In the
// first run, each watcher watches all groups and only counts the responses. In the second run, the watchers are
// shards that follow only their own groups. The test uses a real etcd and real time, and logs how long it takes until
// each watcher has received its changes. SHEAF_WATCHERS=1000 corresponds to a large store.
func TestWritesToManyWatchers(t *testing.T) {
	n := 40
	if words := os.Getenv("SHEAF_WATCHERS"); words != "" {
		var err error
		if n, err = strconv.Atoi(words); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)

	store, groups := storeOf(t, ctx, n)
	everything := watchEverything(t, ctx, store, n)
	began := time.Now()
	putAll(t, ctx, store, groups)
	heard := everything()
	whole := time.Since(began)

	store, groups = storeOf(t, ctx, n)
	followers := make([]*follower, n)
	for i := range followers {
		if i%watchersPerConnection == 0 {
			followers[i] = newFollower(t, ctx, onEtcd, store.Name(), fmt.Sprint("s", i))
		} else {
			followers[i] = followers[i-1].beside(t, ctx, fmt.Sprint("s", i))
		}
	}
	began = time.Now()
	before := append([]placement.Group(nil), groups...)
	putAll(t, ctx, store, groups)
	var counted []*countedWatcher
	for i, f := range followers {
		for v := range f.views {
			if v.Groups[groups[i].Name].Revision > before[i].Revision {
				break
			}
		}
		if i%watchersPerConnection == 0 {
			counted = append(counted, f.watcher)
		}
	}
	responses := int64(0)
	for _, w := range counted {
		responses += w.responses.Load()
	}
	own := time.Since(began)

	t.Logf("%d writes to %d watchers: of everything %v (%d events), to shards that follow their own %v (%d responses): "+
		"%.1f times as fast", n, n,
		whole.Round(time.Millisecond), heard, own.Round(time.Millisecond), responses, whole.Seconds()/own.Seconds())
	if heard != int64(n)*int64(n) || responses != int64(n) {
		t.Errorf("%d writes came as %d events to watchers of everything, as %d responses to shards: wanted are %d, and one "+
			"each", n, heard, responses, n*n)
	}
}

// storeOf creates a store with n groups, each of which is on a shard of its own.
func storeOf(t *testing.T, ctx context.Context, n int) (*registry.Store, []placement.Group) {
	t.Helper()
	store := newStore(t, onEtcd(t))
	mustInit(t, ctx, store, namedMeta())
	groups := make([]placement.Group, n)
	for i := range groups {
		groups[i] = placement.NewGroup(placement.Routing{Mode: placement.Named}, fmt.Sprint("g", i), 0)
		groups[i].Members = []placement.Member{{Shard: fmt.Sprint("s", i), VolumeUUID: uuid.New(), RaftID: 1}}
	}
	putAll(t, ctx, store, groups)
	return store, groups
}

// putAll writes all groups, four at a time.
func putAll(t *testing.T, ctx context.Context, store *registry.Store, groups []placement.Group) {
	t.Helper()
	var wait sync.WaitGroup
	const atOnce = 4
	for w := range atOnce {
		wait.Go(func() {
			for i := w; i < len(groups); i += atOnce {
				groups[i].Term++
				g, err := store.PutGroup(ctx, groups[i])
				if err != nil {
					t.Error(err)
					return
				}
				groups[i] = g
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// watchEverything starts n watches on all groups of a store. The function heard, which it returns, waits until each
// watch has received n writes.
func watchEverything(t *testing.T, ctx context.Context, store *registry.Store, n int) (heard func() int64) {
	t.Helper()
	var wait sync.WaitGroup
	var events atomic.Int64
	var client *clientv3.Client
	for i := range n {
		if i%watchersPerConnection == 0 {
			client = onEtcd(t)
		}
		changes := client.Watch(ctx, "/sheaf/"+store.Name()+"/groups/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if created := <-changes; !created.Created {
			t.Fatalf("the watch does not begin: %v", created.Err())
		}
		wait.Go(func() {
			for left := n; left > 0; {
				change, ok := <-changes
				if !ok || change.Err() != nil {
					t.Errorf("a watch ended: %v", change.Err())
					return
				}
				events.Add(int64(len(change.Events)))
				left -= len(change.Events)
			}
		})
	}
	return func() int64 {
		wait.Wait()
		return events.Load()
	}
}
