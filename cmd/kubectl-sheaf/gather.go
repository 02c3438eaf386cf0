package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/local/cli"
)

// snapshot is the state of a store at one moment, as the API server and a gateway report it.
type snapshot struct {
	finding.Objects
	Volumes map[string]corev1.PersistentVolume // keyed by name
	Live    live
	// Missing lists the objects that could not be read, with the reason. For example, the user may not be permitted to
	// read nodes or disks.
	Missing []string
}

// findings returns the problems of the store, the worst first.
func (s *snapshot) findings() []finding.Finding {
	o := s.Objects
	if s.Live.Err == nil && s.Live.Whole {
		o.Answer = &s.Live.Facts
	}
	return finding.Find(o)
}

// bounded wraps a reader and limits the time of each read; 0 means no limit. Without a limit, an API server whose
// storage hangs could block the command forever at one read, even if the other reads would succeed.
type bounded struct {
	client.Reader
	limit time.Duration
}

// Get implements client.Reader.
func (b bounded) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	ctx, cancel := cli.Within(ctx, b.limit)
	defer cancel()
	return b.words(b.Reader.Get(ctx, key, o, options...))
}

// List implements client.Reader.
func (b bounded) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	ctx, cancel := cli.Within(ctx, b.limit)
	defer cancel()
	return b.words(b.Reader.List(ctx, list, options...))
}

// words adds the time limit to the message of a read that timed out.
func (b bounded) words(err error) error {
	if b.limit > 0 && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the API server has not answered within %v: %w", b.limit, err)
	}
	return err
}

// gather reads the objects of a store. The argument limit is the time limit for each read; 0 means no limit. gather
// fails only if pools or pods cannot be read.
func (a *app) gather(ctx context.Context, store *v1alpha1.RecordStore, limit time.Duration) (*snapshot, error) {
	from := bounded{a.objects, limit}
	s := &snapshot{Objects: finding.Objects{Now: a.now(), Store: store}, Volumes: map[string]corev1.PersistentVolume{}}
	if err := a.gatherPools(ctx, from, s); err != nil {
		return nil, err
	}
	ofStore := []client.ListOption{client.InNamespace(store.Namespace),
		client.MatchingLabels{v1alpha1.LabelStore: store.Name}}
	var pods corev1.PodList
	if err := from.List(ctx, &pods, ofStore...); err != nil {
		return nil, failf("list the pods of store %s: %w", store.Name, err)
	}
	s.Pods = pods.Items
	var claims corev1.PersistentVolumeClaimList
	a.optional(s, "claims", from.List(ctx, &claims, ofStore...))
	s.Claims = claims.Items
	var nodes corev1.NodeList
	a.optional(s, "nodes", from.List(ctx, &nodes))
	s.Nodes = nodes.Items
	a.gatherVolumes(ctx, from, s)
	a.gatherDiskSets(ctx, from, s)
	a.gatherEvents(ctx, from, s)
	archives, err := listArchives(ctx, from, store)
	a.optional(s, "RecordArchives", err)
	s.Archives = archives
	return s, nil
}

// optional records that an object is missing from the snapshot because it could not be read. It does nothing if err is
// nil.
func (a *app) optional(s *snapshot, what string, err error) {
	if err != nil {
		s.Missing = append(s.Missing, what+": "+err.Error())
	}
}

func (a *app) gatherPools(ctx context.Context, from client.Reader, s *snapshot) error {
	var pools v1alpha1.ShardPoolList
	if err := from.List(ctx, &pools, client.InNamespace(s.Store.Namespace)); err != nil {
		return failf("list ShardPools of namespace %s: %w", s.Store.Namespace, err)
	}
	for _, pool := range pools.Items {
		if pool.Spec.StoreRef.Name == s.Store.Name {
			s.Pools = append(s.Pools, pool)
		}
	}
	shards, err := listShards(ctx, from, s.Store.Namespace)
	a.optional(s, "Shards", err)
	s.Shards = shards
	return nil
}

// listShards reads the Shards of a namespace. It returns none if the cluster does not have this kind yet. In this
// case the operator is older, and lists all shards in the status of their pool.
func listShards(ctx context.Context, from client.Reader, namespace string) ([]v1alpha1.Shard, error) {
	var list v1alpha1.ShardList
	err := from.List(ctx, &list, client.InNamespace(namespace))
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return list.Items, nil
}

// listArchives reads the RecordArchives of a store. It returns none if the cluster does not have this kind.
func listArchives(ctx context.Context, from client.Reader, store *v1alpha1.RecordStore) (
	of []v1alpha1.RecordArchive, err error) {
	var list v1alpha1.RecordArchiveList
	err = from.List(ctx, &list, client.InNamespace(store.Namespace))
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Spec.StoreRef.Name == store.Name {
			of = append(of, list.Items[i])
		}
	}
	return of, nil
}

// gatherVolumes reads the PersistentVolumes of the claims one by one, because a user may be permitted to get them but
// not to list them.
func (a *app) gatherVolumes(ctx context.Context, from client.Reader, s *snapshot) {
	for i := range s.Claims {
		name := s.Claims[i].Spec.VolumeName
		if name == "" {
			continue
		}
		var volume corev1.PersistentVolume
		if err := from.Get(ctx, client.ObjectKey{Name: name}, &volume); client.IgnoreNotFound(err) != nil {
			a.optional(s, "PersistentVolumes", err)
			return
		} else if err == nil {
			s.Volumes[name] = volume
		}
	}
}

// gatherDiskSets reads the DiskSets whose StorageClasses are used by the store's pools or claims.
func (a *app) gatherDiskSets(ctx context.Context, from client.Reader, s *snapshot) {
	classes := sets.New[string]()
	for i := range s.Pools {
		classes.Insert(s.Pools[i].Spec.Storage.StorageClassName)
	}
	for i := range s.Claims {
		if class := s.Claims[i].Spec.StorageClassName; class != nil {
			classes.Insert(*class)
		}
	}
	var list v1alpha1.DiskSetList
	a.optional(s, "DiskSets", from.List(ctx, &list))
	s.DiskSets = slices.DeleteFunc(list.Items, func(d v1alpha1.DiskSet) bool { return !classes.Has(d.Name) })
}

// objectsOf returns the items of a list as objects.
func objectsOf[T any, P interface {
	*T
	client.Object
}](items []T) []client.Object {
	out := make([]client.Object, len(items))
	for i := range items {
		out[i] = P(&items[i])
	}
	return out
}

// gatherEvents reads the events that concern the objects of the store.
func (a *app) gatherEvents(ctx context.Context, from client.Reader, s *snapshot) {
	var list corev1.EventList
	a.optional(s, "events", from.List(ctx, &list, client.InNamespace(s.Store.Namespace)))
	names := sets.New(s.Store.Name)
	for _, o := range slices.Concat(objectsOf(s.Pools), objectsOf(s.Pods), objectsOf(s.Claims)) {
		names.Insert(o.GetName())
	}
	for _, e := range list.Items {
		name := e.InvolvedObject.Name
		set := strings.TrimSuffix(name, "-0")
		if names.Has(name) || names.Has(name+"-0") || names.Has(set) || strings.HasPrefix(name, s.Store.Name+"-gateway") ||
			name == s.Store.Name+"-etcd" {
			s.Events = append(s.Events, e)
		}
	}
}
