// Package operator gives the controllers access to the placement in etcd, and to the shards over gRPC. The
// controllers themselves must not import the packages that do this.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/certs"
)

// Placements keeps one connection to etcd per store. It implements fleet.Placements, fleet.ShardRegister and
// recordgrant.Tables. It is safe for concurrent use.
type Placements struct {
	keys *Keys
	mu   sync.Mutex
	open map[string]*placed
}

// placed is the connection to the placement of one store in etcd.
type placed struct {
	access      workload.EtcdAccess
	credentials fleet.EtcdCredentials
	keys        *Keys         // the operator's keys for all stores
	own         *certs.Source // the operator's keys for this store when the connection was opened; nil if there were none
	client      *clientv3.Client
	store       *registry.Store
	folder      string // the folder that contains the etcd credentials as files
}

// NewPlacements returns a Placements without connections. If keys is nil, only connections to an external etcd use
// TLS.
func NewPlacements(keys *Keys) *Placements {
	return &Placements{keys: keys, open: map[string]*placed{}}
}

// Open connects to etcd, or returns the existing connection if its parameters have not changed.
func (p *Placements) Open(key string, access workload.EtcdAccess, credentials fleet.EtcdCredentials) (fleet.Placement,
	error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.open[key]; old != nil {
		if reflect.DeepEqual(old.access, access) && reflect.DeepEqual(old.credentials, credentials) &&
			old.own == p.keys.of(key) {
			return old, nil
		}
		old.close()
		delete(p.open, key)
	}
	made, err := dial(access, credentials, p.keys, key)
	if err != nil {
		return nil, err
	}
	p.open[key] = made
	return made, nil
}

// Close closes a store's connection.
func (p *Placements) Close(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.open[key]; old != nil {
		old.close()
		delete(p.open, key)
	}
}

// CloseAll closes all connections.
func (p *Placements) CloseAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, old := range p.open {
		old.close()
		delete(p.open, key)
	}
}

func dial(access workload.EtcdAccess, credentials fleet.EtcdCredentials, keys *Keys, key string) (*placed, error) {
	out := &placed{access: access, credentials: credentials, keys: keys, own: keys.of(key)}
	cfg := etcd.ClientConfig{Endpoints: access.Endpoints}
	if access.Own && out.own != nil {
		cfg.Credentials = etcd.Credentials(out.own) // these credentials follow changes of the store's transport
	}
	if access.Secret != "" {
		if err := out.writeCredentials(&cfg); err != nil {
			out.close()
			return nil, err
		}
	}
	var err error
	if out.client, err = etcd.Dial(cfg); err != nil {
		out.close()
		// The error names the keys of the Secret, which administrators know. It leaves out the folder, which has a new name
		// each time.
		if access.Secret != "" {
			return nil, fmt.Errorf("secret %s: %s", access.Secret, strings.ReplaceAll(err.Error(),
				out.folder+string(filepath.Separator), ""))
		}
		return nil, err
	}
	prefix := cmp.Or(access.Prefix, registry.PrefixDefault)
	if out.store, err = registry.NewStoreAt(out.client, prefix, access.Store, slog.Default()); err != nil {
		out.close()
		return nil, err
	}
	return out, nil
}

// writeCredentials writes the credentials to files in a folder that only this process can read, because the etcd
// client reads its credentials from files.
func (p *placed) writeCredentials(cfg *etcd.ClientConfig) error {
	var err error
	if p.folder, err = os.MkdirTemp("", "sheaf-etcd-"); err != nil {
		return fmt.Errorf("keep the credentials of etcd: %w", err)
	}
	for _, file := range []struct {
		name    string
		content []byte
		path    *string
	}{
		{"ca.crt", p.credentials.CA, &cfg.CAFile},
		{"tls.crt", p.credentials.Cert, &cfg.CertFile},
		{"tls.key", p.credentials.Key, &cfg.KeyFile},
	} {
		if len(file.content) == 0 {
			continue
		}
		*file.path = filepath.Join(p.folder, file.name)
		if err := os.WriteFile(*file.path, file.content, 0o600); err != nil {
			return fmt.Errorf("keep the credentials of etcd: %w", err)
		}
	}
	return nil
}

func (p *placed) close() {
	if p.client != nil {
		_ = p.client.Close() // an error of Close does not matter, because nothing is lost
	}
	if p.folder != "" {
		_ = os.RemoveAll(p.folder)
	}
}

// Init implements fleet.Placement.
func (p *placed) Init(ctx context.Context, store *v1alpha1.RecordStore, shardsMin int32) error {
	meta, err := metaOf(store, shardsMin)
	if err != nil {
		return err
	}
	there, err := p.store.InitMeta(ctx, meta)
	if err != nil {
		return err
	}
	if there.StoreUUID != meta.StoreUUID {
		return fmt.Errorf("%w: it holds store %s, this one is %s", placement.ErrOtherStore, there.StoreUUID, meta.StoreUUID)
	}
	return nil
}

// uidOf returns the UUID of a store's placement and volumes.
func uidOf(store *v1alpha1.RecordStore) (uuid.UUID, error) {
	id, err := uuid.Parse(store.Status.StoreUID)
	if err != nil {
		return id, fmt.Errorf("the store's UID %q: %w", store.Status.StoreUID, err)
	}
	return id, nil
}

// metaOf returns the fixed properties with which a store's placement is created. The argument shardsMin is the number
// of shards that have to be registered before the first groups are placed.
func metaOf(store *v1alpha1.RecordStore, shardsMin int32) (placement.Meta, error) {
	id, err := uidOf(store)
	if err != nil {
		return placement.Meta{}, err
	}
	meta := placement.Meta{
		StoreUUID: id, Copies: copiesOf(store), CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		ShardsMin: int(shardsMin), Routing: routingOf(store),
	}
	if most := store.Spec.Groups.Max; most != nil {
		meta.GroupsMax = int(*most)
	}
	if r := store.Spec.Restore; r != nil {
		meta.Restore = &placement.Restore{Source: workload.RestoreAddress(store.Namespace, store.Name), Listing: true,
			Partly: r.Partly, First: r.First, Writes: placement.RestoredWrites(r.Writes)}
		if s := store.Status.Restore; s != nil {
			meta.Restore.At = s.Time
		}
	}
	return meta, meta.Validate()
}

func copiesOf(store *v1alpha1.RecordStore) int { return max(int(store.Spec.Replication.Copies), 1) }

func routingOf(store *v1alpha1.RecordStore) placement.Routing {
	if store.Spec.Groups.Routing == v1alpha1.RoutingNamed {
		return placement.Routing{Mode: placement.Named}
	}
	out := placement.Routing{Mode: placement.Hash}
	if count := store.Spec.Groups.Count; count != nil {
		out.Groups = int(*count)
	}
	return out
}

// Plan implements fleet.Placement. It takes one step of the planner.
func (p *placed) Plan(ctx context.Context, store *v1alpha1.RecordStore, shardsMin int32,
	states map[string]v1alpha1.PoolState) (placement.Planned, error) {
	meta, err := metaOf(store, shardsMin)
	if err != nil {
		return placement.Planned{}, err
	}
	view, err := p.store.ViewOf(ctx, meta.StoreUUID)
	if err != nil {
		return placement.Planned{}, err
	}
	if view.Meta.Copies != meta.Copies {
		return placement.Planned{}, fmt.Errorf("%w: store %s was made with %d copies of each group, asked for are %d",
			fleet.ErrCopiesDiffer, meta.StoreUUID, view.Meta.Copies, meta.Copies)
	}
	written := 0
	for shard, state := range states {
		want := stateOf(state)
		if have := view.States[shard]; have == want || have == "" && want == placement.Active {
			continue
		}
		if err := p.store.SetShardState(ctx, meta.StoreUUID, shard, want); err != nil {
			return placement.Planned{}, err
		}
		written++
	}
	planned, err := p.store.PlanOnce(ctx, meta.StoreUUID, meta.Policy())
	planned.StatesWritten = written
	return planned, err
}

// Look implements fleet.Placement.
func (p *placed) Look(ctx context.Context, store *v1alpha1.RecordStore) (placement.Planned, error) {
	id, err := uidOf(store)
	if err != nil {
		return placement.Planned{}, err
	}
	view, err := p.store.ViewOf(ctx, id)
	if err != nil {
		return placement.Planned{}, err
	}
	_, unplaced := placement.Plan(view, view.Meta.Policy())
	return placement.Planned{View: view, Unplaced: unplaced}, nil
}

func stateOf(state v1alpha1.PoolState) placement.ShardState {
	switch state {
	case v1alpha1.PoolCordoned:
		return placement.Cordoned
	case v1alpha1.PoolDrained:
		return placement.Draining
	default:
		return placement.Active
	}
}

// EtcdMembers requests the list of members from a quorum, and then each member's state from the member.
func (p *placed) EtcdMembers(ctx context.Context) ([]fleet.EtcdMember, error) {
	view, err := etcd.Look(ctx, p.client)
	if err != nil {
		return nil, err
	}
	var out []fleet.EtcdMember
	for n := range view.Peers {
		peer := &view.Peers[n]
		for _, address := range peer.PeerURLs {
			if parsed, err := url.Parse(address); err == nil {
				out = append(out, fleet.EtcdMember{PeerAddress: parsed.Host, Trouble: peer.Trouble})
			}
		}
	}
	return out, nil
}

// Empty implements fleet.ShardRegister.
func (p *Placements) Empty(ctx context.Context, store *v1alpha1.RecordStore, shard string) error {
	opened, id, err := p.of(store)
	if err != nil {
		return err
	}
	return opened.store.SetShardState(ctx, id, shard, placement.Draining)
}

// Look implements fleet.ShardRegister.
func (p *Placements) Look(ctx context.Context, store *v1alpha1.RecordStore) (placement.Planned, error) {
	opened, _, err := p.of(store)
	if err != nil {
		return placement.Planned{}, err
	}
	return opened.Look(ctx, store)
}

// Forget implements fleet.ShardRegister. It fails while the shard holds a group or is to receive one. If the shard
// still runs and is about to be stopped, Forget keeps the entry in etcd that forbids placing groups on the shard.
func (p *Placements) Forget(ctx context.Context, store *v1alpha1.RecordStore, shard string) error {
	opened, id, err := p.of(store)
	if err != nil {
		return err
	}
	view, err := opened.store.ViewOf(ctx, id)
	if err != nil {
		return err
	}
	if _, alive := view.Shards[shard]; !alive {
		return opened.store.ForgetShard(ctx, id, shard)
	}
	if err := view.AllKnown(); err != nil {
		return err
	}
	if names := view.Holds(shard); len(names) > 0 {
		return fmt.Errorf("%w: group %s is on shard %s, or is wanted there", placement.ErrShardHoldsGroups, names[0], shard)
	}
	return nil
}

// of returns the connection to a store's etcd, and the store's UUID. If the store's controller has not opened the
// connection yet, this method opens it, unless the connection needs a Secret.
func (p *Placements) of(store *v1alpha1.RecordStore) (*placed, uuid.UUID, error) {
	id, err := uidOf(store)
	if err != nil {
		return nil, id, err
	}
	key := client.ObjectKeyFromObject(store).String()
	p.mu.Lock()
	there := p.open[key]
	p.mu.Unlock()
	if there != nil {
		return there, id, nil
	}
	if access := workload.EtcdAccessOf(store, nil); access.Secret == "" && len(access.Endpoints) > 0 {
		made, err := p.Open(key, access, fleet.EtcdCredentials{})
		if err != nil {
			return nil, id, err
		}
		if opened, ok := made.(*placed); ok {
			return opened, id, nil
		}
	}
	return nil, id, errors.New("the store's etcd is not connected yet: it is tried again")
}

// Table implements recordgrant.Tables.
func (p *Placements) Table(ctx context.Context, store *v1alpha1.RecordStore) ([]byte, int64, error) {
	opened, id, err := p.of(store)
	if err != nil {
		return nil, 0, err
	}
	if _, err := opened.store.MetaOf(ctx, id); err != nil {
		return nil, 0, err
	}
	found, err := opened.store.Access(ctx)
	return found.Table, found.Revision, err
}

// PutTable implements recordgrant.Tables.
func (p *Placements) PutTable(ctx context.Context, store *v1alpha1.RecordStore, text []byte, revision int64) error {
	opened, _, err := p.of(store)
	if err != nil {
		return err
	}
	return opened.store.PutAccess(ctx, text, revision)
}
