package controllers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/controllers"
	"sheaf.dev/sheaf/internal/etcd"
	"sheaf.dev/sheaf/internal/etcd/etcdtest"
	"sheaf.dev/sheaf/internal/operator"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/workload"
)

// The operator's own adapter imports controllers, so that only this package can bring both together.
func init() {
	controllers.NewEtcdPlay = func(dir string) (controllers.EtcdPlay, error) {
		server, err := etcd.StartEmbedded(dir)
		if err != nil {
			return nil, err
		}
		client, err := server.Client()
		if err != nil {
			server.Close()
			return nil, err
		}
		return &etcdPlay{
			server: server, placements: operator.NewPlacements(), close: client.Close,
			wipe:  func(ctx context.Context) error { return etcdtest.Wipe(ctx, client) },
			store: func(name string) (*placement.Store, error) { return placement.NewStore(client, name) },
			put: func(ctx context.Context, key, value string) error {
				_, err := client.Put(ctx, key, value)
				return err
			},
		}, nil
	}
}

// etcdPlay is a real etcd, the operator's connections to it, and what shards write there.
type etcdPlay struct {
	server     *etcd.Server
	placements *operator.Placements
	// What one connection does, which lives as long as the server.
	wipe  func(context.Context) error
	store func(name string) (*placement.Store, error)
	put   func(ctx context.Context, key, value string) error
	close func() error
}

// Open is the operator's, but for the address: names of Services are not known here.
func (e *etcdPlay) Open(key string, access workload.EtcdAccess, credentials controllers.EtcdCredentials) (controllers.Placement, error) {
	access.Endpoints = e.server.Endpoints()
	return e.placements.Open(key, access, credentials)
}

func (e *etcdPlay) Close(key string) { e.placements.Close(key) }

func (e *etcdPlay) Stop() {
	e.placements.CloseAll()
	_ = e.close() // nothing is lost with a connection
	e.server.Close()
}

func (e *etcdPlay) Wipe(ctx context.Context) error { return e.wipe(ctx) }

// Serve registers shards, makes the groups that are wanted on them, and tells which shard has which.
func (e *etcdPlay) Serve(ctx context.Context, namespace, name string, shards []string) (map[string][]string, error) {
	store, err := e.store(workload.Placement(namespace, name))
	if err != nil {
		return nil, err
	}
	view, err := store.View(ctx)
	if errors.Is(err, placement.ErrNoMeta) {
		return nil, nil // shards wait for the store
	}
	if err != nil {
		return nil, err
	}
	for _, shard := range shards {
		if _, there := view.Shards[shard]; there {
			continue
		}
		value, err := json.Marshal(placement.Shard{Name: shard, Address: "127.0.0.1:1", VolumeUUID: uuid.New(), Domain: shard})
		if err != nil {
			return nil, err
		}
		// Without a lease: a slow machine must not end it.
		if err := e.put(ctx, fmt.Sprintf("%s/%s/shards/%s", placement.PrefixDefault, workload.Placement(namespace, name), shard), string(value)); err != nil {
			return nil, err
		}
	}
	has := map[string][]string{}
	for group, target := range view.Targets {
		there, err := store.UpdateGroup(ctx, group, func(g *placement.Group) error {
			if len(g.Members) == 0 {
				g.Members = []placement.Member{{Shard: target.Shards[0], VolumeUUID: uuid.New(), RaftID: 1}}
				g.Leader = target.Shards[0]
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		has[there.Members[0].Shard] = append(has[there.Members[0].Shard], group)
	}
	return has, nil
}

// Holds is the UID of the store that etcd holds under a name, and its number of groups.
func (e *etcdPlay) Holds(ctx context.Context, namespace, name string) (string, int, error) {
	store, err := e.store(workload.Placement(namespace, name))
	if err != nil {
		return "", 0, err
	}
	view, err := store.View(ctx)
	if errors.Is(err, placement.ErrNoMeta) {
		return "", 0, nil
	}
	return view.Meta.StoreUUID.String(), len(view.Groups), err
}
