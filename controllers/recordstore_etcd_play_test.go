package controllers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordgrant"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/operator"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/etcdtest"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

// The adapter of the operator imports package controllers, so only this external test package can import both.
func init() {
	controllers.IssuerKeys = operator.IssuerKeys
	controllers.KeysOf = func() (func(context.Context) (access.Issuer, error), error) {
		return operator.ServiceAccountKeys(controllers.Cluster())
	}
	controllers.NewEtcdPlay = func(dir string) (controllers.EtcdPlay, error) {
		server, err := etcdserver.Start(dir)
		if err != nil {
			return nil, err
		}
		client, err := server.Client()
		if err != nil {
			server.Close()
			return nil, err
		}
		keys := operator.NewKeys()
		return &etcdPlay{
			server: server, placements: operator.NewPlacements(keys), shards: operator.NewShards(keys), keys: keys,
			close: client.Close, members: map[string][]fleet.EtcdMember{},
			wipe:  func(ctx context.Context) error { return etcdtest.Wipe(ctx, client) },
			store: func(name string) (*registry.Store, error) { return registry.NewStore(client, name, nil) },
			put: func(ctx context.Context, key, value string) error {
				return placementtest.Again(ctx, func() error {
					_, err := client.Put(ctx, key, value)
					return err
				})
			},
			drop: func(ctx context.Context, key string) error {
				return placementtest.Again(ctx, func() error {
					_, err := client.Delete(ctx, key)
					return err
				})
			},
		}, nil
	}
}

// etcdPlay runs a real etcd. It also has the operator's connections to this etcd, and writes the entries of simulated
// shards.
type etcdPlay struct {
	server     *etcdserver.Server
	placements *operator.Placements
	shards     *operator.Shards
	keys       *operator.Keys
	// These functions share one connection, which stays open until the server stops.
	wipe  func(context.Context) error
	store func(name string) (*registry.Store, error)
	put   func(ctx context.Context, key, value string) error
	drop  func(ctx context.Context, key string) error
	close func() error
	stuck bool
	// restoring holds the groups that wait for their restore, whatever their target.
	restoring map[string]bool
	// members holds, for each store, the members that the simulated etcd reports.
	members map[string][]fleet.EtcdMember
}

// Open is the operator's Open with a different address, because the names of Services do not resolve here.
func (e *etcdPlay) Open(key string, access workload.EtcdAccess, credentials fleet.EtcdCredentials) (fleet.Placement,
	error) {
	access.Endpoints, access.Own = e.server.Endpoints(), false // this etcd does not use certificates
	opened, err := e.placements.Open(key, access, credentials)
	return fakePlacement{opened, e.members[key]}, err
}

// fakePlacement is the operator's placement, but reports simulated members, because this etcd has only one member.
type fakePlacement struct {
	fleet.Placement
	members []fleet.EtcdMember
}

func (p fakePlacement) EtcdMembers(context.Context) ([]fleet.EtcdMember, error) {
	return p.members, nil
}

// SayMembers sets the members that the etcd of the store with the given key reports from now on.
func (e *etcdPlay) SayMembers(key string, members []fleet.EtcdMember) { e.members[key] = members }

func (e *etcdPlay) Close(key string) { e.placements.Close(key) }

func (e *etcdPlay) Stop() {
	e.placements.CloseAll()
	e.shards.Close()
	_ = e.close() // an error is harmless, because nothing is written any more
	e.server.Close()
}

func (e *etcdPlay) Wipe(ctx context.Context) error { return e.wipe(ctx) }

// Rebuild writes the first entries that `recover placement` writes. These describe the store, and have a higher epoch
// than any that the shards of the store have observed.
func (e *etcdPlay) Rebuild(ctx context.Context, namespace, name string, of *v1alpha1.RecordStore) error {
	store, err := e.store(workload.Placement(namespace, name))
	if err != nil {
		return err
	}
	return placementtest.Again(ctx, func() error {
		_, err := store.InitMeta(ctx, placement.Meta{
			StoreUUID:  uuid.MustParse(of.Status.StoreUID),
			Routing:    placement.Routing{Mode: placement.Hash, Groups: int(*of.Spec.Groups.Count)},
			Copies:     int(max(of.Spec.Replication.Copies, 1)),
			CreatedUTC: "2026-01-02T03:04:05Z", EpochBase: 1 << 40,
		})
		return err
	})
}

// Restoring writes groups that wait for their restore, as the gateways of a restored store do, and ends the list of
// them. From then on, simulated shards restore all groups except those in wait.
func (e *etcdPlay) Restoring(ctx context.Context, namespace, name string, wait []string, groups ...string) error {
	store, err := e.store(workload.Placement(namespace, name))
	if err != nil {
		return err
	}
	e.restoring = map[string]bool{}
	for _, group := range wait {
		e.restoring[group] = true
	}
	meta, err := store.Meta(ctx)
	if err != nil {
		return err
	}
	for _, group := range groups {
		g := placement.NewGroup(meta.Routing, group, 0)
		if there, err := store.Group(ctx, group); err == nil {
			g.UUID, g.Revision = there.UUID, there.Revision
		}
		g.Restoring = true
		value, err := json.Marshal(g)
		if err == nil {
			err = e.put(ctx, fmt.Sprintf("%s/%s/groups/%s", registry.PrefixDefault, workload.Placement(namespace, name),
				group), string(value))
		}
		if err != nil {
			return err
		}
	}
	meta.Restore.Listing = false
	value, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s/%s/meta", registry.PrefixDefault, workload.Placement(namespace, name))
	return e.put(ctx, key, string(value))
}

// Serve registers shards and creates the groups that are wanted on them. It returns, for each shard, the groups that
// it has.
func (e *etcdPlay) Serve(ctx context.Context, namespace, name string, shards []string) (map[string][]string, error) {
	store, err := e.store(workload.Placement(namespace, name))
	if err != nil {
		return nil, err
	}
	var view placement.View
	err = placementtest.Again(ctx, func() (err error) {
		view, err = store.View(ctx)
		return err
	})
	if errors.Is(err, placement.ErrNoMeta) {
		return nil, nil // shards wait until the store exists
	}
	if err != nil {
		return nil, err
	}
	for _, shard := range shards {
		if _, there := view.Shards[shard]; there {
			continue
		}
		value, err := json.Marshal(placement.Shard{Name: shard, Address: "127.0.0.1:1", VolumeUUID: volumeOf(shard),
			Domain: domainOf(shard), Node: nodeOf(namespace, shard)})
		if err != nil {
			return nil, err
		}
		// The key has no lease, which could expire on a slow machine.
		if err := e.put(ctx, fmt.Sprintf("%s/%s/shards/%s", registry.PrefixDefault, workload.Placement(namespace, name),
			shard), string(value)); err != nil {
			return nil, err
		}
	}
	has := map[string][]string{}
	for group, target := range view.Targets {
		var there placement.Group
		change := func(g *placement.Group) error {
			if g.Restoring = e.restoring[g.Name]; g.Restoring {
				return nil
			}
			if len(g.Members) > 0 && (e.stuck || !canMove(*g, target, shards)) {
				return nil
			}
			g.Members, g.Leader = nil, target.Shards[0]
			for n, shard := range target.Shards {
				g.Members = append(g.Members, placement.Member{Shard: shard, VolumeUUID: volumeOf(shard), RaftID: uint64(2*n + 1)})
			}
			return nil
		}
		err := placementtest.Again(ctx, func() (err error) {
			there, err = placementtest.UpdateGroup(ctx, store, group, change)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, m := range there.Members {
			has[m.Shard] = append(has[m.Shard], group)
		}
	}
	return has, nil
}

// canMove reports whether a group can move to its target now. For this, a majority of the group's copies and all shards
// of the target have to be alive.
func canMove(g placement.Group, target placement.Target, alive []string) bool {
	up := 0
	for _, m := range g.Members {
		if slices.Contains(alive, m.Shard) {
			up++
		}
	}
	return up > len(g.Members)/2 && !slices.ContainsFunc(target.Shards, func(s string) bool {
		return !slices.Contains(alive, s)
	})
}

// volumeOf returns the volume UUID of a simulated shard.
func volumeOf(shard string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(shard)) }

// Volume returns the UUID of a simulated shard's volume.
func (e *etcdPlay) Volume(shard string) string { return volumeOf(shard).String() }

// nodeOf returns the node of a simulated shard. The shards of the pool near are on the node on which their pods run.
func nodeOf(namespace, shard string) string {
	if strings.HasPrefix(shard, "near-") {
		return "node-" + namespace
	}
	return "node-" + shard
}

// domainOf returns the failure domain of a simulated shard. The shards of pool near share one domain, and those of pool
// node-bare do not know their domain.
func domainOf(shard string) string {
	switch {
	case strings.HasPrefix(shard, "near-"):
		return "near"
	case strings.HasPrefix(shard, "node-bare-"):
		return "node-" + shard // a shard that does not know its domain uses its node
	}
	return shard
}

// Stick prevents groups from moving, whatever their target, or lets them move again.
func (e *etcdPlay) Stick(stuck bool) { e.stuck = stuck }

// Leave removes the registration of a shard. In a real store, this happens when the lease of a shard that has ended
// expires.
func (e *etcdPlay) Leave(ctx context.Context, namespace, name, shard string) error {
	return e.drop(ctx, fmt.Sprintf("%s/%s/shards/%s", registry.PrefixDefault, workload.Placement(namespace, name), shard))
}

// Freeze freezes the placement, as a shard does if it has already observed a later state of etcd. Thaw lifts the
// freeze, as the last step of the recovery does.
func (e *etcdPlay) Freeze(ctx context.Context, namespace, name, reason string) error {
	store, err := e.store(workload.Placement(namespace, name))
	if err != nil {
		return err
	}
	return placementtest.Again(ctx, func() error { return store.Freeze(ctx, "shard ssd-0", reason) })
}

// Thaw reverts Freeze.
func (e *etcdPlay) Thaw(ctx context.Context, namespace, name string) error {
	return e.drop(ctx, fmt.Sprintf("%s/%s/frozen", registry.PrefixDefault, workload.Placement(namespace, name)))
}

// Credentials returns the credentials that Shards uses.
func (e *etcdPlay) Credentials() trust.Credentials { return e.keys }

// Shards returns a client that asks shards in the same way as the operator.
func (e *etcdPlay) Shards() fleet.ShardClient { return e.shards }

// Endpoints returns the endpoints of the etcd.
func (e *etcdPlay) Endpoints() []string { return e.server.Endpoints() }

// Register returns the operator's adapter for registrations, which uses the connections that Open has opened.
func (e *etcdPlay) Register() fleet.ShardRegister { return e.placements }

// Tables returns the operator's adapter for grant tables, which uses the same connections as Register.
func (e *etcdPlay) Tables() recordgrant.Tables { return e.placements }

// Holds returns the UID and the number of groups of the store that etcd holds under the given name.
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
