package shardpool

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Limits for asking shards and reading events.
const (
	describeTime   = 4 * time.Second
	describeAtOnce = 16
	// For up to this many objects, the events of each object are listed separately. For more objects, all events of the
	// namespace are listed.
	eventListsMax   = 4
	eventPage       = 500 // maximum number of events in one page of a list
	shardMessageMax = 900
)

// sources holds the readers from which the state of a pool is gathered.
type sources struct {
	cached client.Reader
	live   client.Reader // bypasses the cache
	shards shardClient
	places *places
	now    time.Time
}

// fill adds everything else that is known about a pool to seen, which already contains the pool's objects. It makes
// one list request for each kind, regardless of the number of shards. The argument etcd describes how shards reach
// etcd.
func (s sources) fill(ctx context.Context, seen *observed.Pool, etcd workload.EtcdAccess) (err error) {
	if seen.Device, err = deviceRate(ctx, s.cached, seen.Pool); err != nil {
		return err
	}
	seen.Plan = planShards(ctx, seen, s.places)
	nodes, err := readNodes(ctx, s.cached)
	if err != nil {
		return err
	}
	class, err := readClass(ctx, s.cached, seen.Pool.Spec.Storage.StorageClassName)
	if err != nil {
		return err
	}
	for _, n := range seen.Plan.All() {
		o := observe(seen, n, s.now)
		o.ClassMissing = class == nil
		if o.Set == nil && o.Claim == nil {
			o.Refused = otherFileSystem(seen.Pool, class)
		}
		if err := s.locate(ctx, o, nodes); err != nil {
			return err
		}
		if err := build(seen, o, etcd); err != nil {
			return err
		}
		seen.Shards = append(seen.Shards, o)
	}
	s.askAll(ctx, seen.Shards)
	return s.readEvents(ctx, seen.Pool.Namespace, seen.Shards)
}

// readObjects reads the StatefulSets, pods, claims and Shards of a pool, and the last observed status of its shards.
func readObjects(ctx context.Context, cached client.Reader, pool *v1alpha1.ShardPool) (*observed.Pool, error) {
	in := []client.ListOption{client.InNamespace(pool.Namespace), client.MatchingLabels{v1alpha1.LabelPool: pool.Name}}
	var sets appsv1.StatefulSetList
	var pods corev1.PodList
	var claims corev1.PersistentVolumeClaimList
	for _, list := range []client.ObjectList{&sets, &pods, &claims} {
		if err := cached.List(ctx, list, in...); err != nil {
			return nil, fmt.Errorf("list %T of ShardPool %s: %w", list, pool.Name, err)
		}
	}
	var shards v1alpha1.ShardList
	if err := cached.List(ctx, &shards, client.InNamespace(pool.Namespace)); err != nil {
		return nil, fmt.Errorf("list Shards of ShardPool %s: %w", pool.Name, err)
	}
	seen := &observed.Pool{
		Pool: pool, Sets: map[int32]*appsv1.StatefulSet{}, Pods: map[int32]*corev1.Pod{},
		Claims:  map[int32]*corev1.PersistentVolumeClaim{},
		Objects: map[int32]*v1alpha1.Shard{}, Last: map[int32]v1alpha1.ShardStatus{}, Silent: map[string]bool{},
	}
	for i := range sets.Items {
		if n, ok := workload.ShardNumber(pool.Name, sets.Items[i].Name); ok {
			seen.Sets[n] = &sets.Items[i]
		}
	}
	for i := range pods.Items {
		if n, ok := numbered(&pods.Items[i]); ok && pods.Items[i].Name == workload.ShardPod(workload.Shard(pool.Name, n)) {
			seen.Pods[n] = &pods.Items[i]
		}
	}
	for i := range claims.Items {
		if n, ok := numbered(&claims.Items[i]); ok && claims.Items[i].Name == workload.ShardClaim(workload.Shard(pool.Name,
			n)) {
			seen.Claims[n] = &claims.Items[i]
		}
	}
	for i := range shards.Items {
		if fleet.IsSilent(&shards.Items[i].Status) { // silent shards of other pools count as well
			seen.Silent[shards.Items[i].Name] = true
		}
		switch s := &shards.Items[i]; {
		case s.Spec.Pool != pool.Name:
		case s.Name == workload.Shard(pool.Name, s.Spec.Number):
			seen.Objects[s.Spec.Number] = s
		default: // the name does not match, so somebody else created this Shard
			seen.Misnamed = append(seen.Misnamed, s)
		}
	}
	for _, s := range v1alpha1.ShardsOf(pool, shards.Items) {
		seen.Last[s.Number] = s
	}
	return seen, nil
}

// holdBytes returns how much history each shard of a store has to keep for the store's archive. It returns 0 if there
// is no archive, or if the archive lets the shards decide.
func holdBytes(ctx context.Context, cached client.Reader, store *v1alpha1.RecordStore) (int64, error) {
	var all v1alpha1.RecordArchiveList
	if err := cached.List(ctx, &all, client.InNamespace(store.Namespace)); err != nil {
		return 0, fmt.Errorf("list RecordArchives: %w", err)
	}
	archive := fleet.ArchiveOf(all.Items, store.Name)
	if archive == nil || archive.Spec.Hold == nil || archive.Spec.Hold.MaxBytes == nil {
		return 0, nil
	}
	return archive.Spec.Hold.MaxBytes.Value(), nil
}

func numbered(object client.Object) (int32, bool) {
	n, err := strconv.ParseInt(object.GetLabels()[v1alpha1.LabelShard], 10, 32)
	return int32(n), err == nil && n >= 0
}

// planShards decides which shards the pool should have. If the StatefulSet of a shard does not exist because it is
// being recreated, planShards uses the last observed status of the shard.
func planShards(ctx context.Context, seen *observed.Pool, places *places) fleet.NumbersPlan {
	pool := seen.Pool
	in := fleet.NumbersInput{Remove: pool.Spec.Remove, Wanted: fleet.WantedShards(pool), Holds: map[int32]string{}}
	last := map[int32]v1alpha1.ShardStatus{}
	for n := range seen.Sets {
		in.Exist = append(in.Exist, n)
		last[n] = v1alpha1.ShardStatus{Name: workload.Shard(pool.Name, n), Number: n}
	}
	for n, s := range seen.Last {
		in.Exist = append(in.Exist, n)
		last[n] = s
	}
	// Whether a shard still holds groups matters only for shards to be removed.
	for _, n := range fleet.PlanNumbers(in).Remove {
		if words := holds(ctx, places, last[n], seen.Pods[n]); words != "" {
			in.Holds[n] = words
		}
	}
	return fleet.PlanNumbers(in)
}

// readNodes returns all nodes, by name and by host name.
func readNodes(ctx context.Context, cached client.Reader) (map[string]*corev1.Node, error) {
	var list corev1.NodeList
	if err := cached.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := map[string]*corev1.Node{}
	for i := range list.Items {
		if host := list.Items[i].Labels[corev1.LabelHostname]; host != "" {
			nodes[host] = &list.Items[i]
		}
	}
	for i := range list.Items {
		nodes[list.Items[i].Name] = &list.Items[i]
	}
	return nodes, nil
}

// readClass returns the StorageClass with the given name, or nil if there is none.
func readClass(ctx context.Context, cached client.Reader, name string) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	there, err := step.Read(ctx, cached, "StorageClass", types.NamespacedName{Name: name}, class)
	if !there {
		return nil, err
	}
	return class, nil
}

// otherFileSystem reports that a pool asks for a file system other than the one of its class. The result is empty if
// they match, or if the class names no file system.
func otherFileSystem(pool *v1alpha1.ShardPool, class *storagev1.StorageClass) string {
	if class == nil || pool.Spec.FileSystem == nil {
		return ""
	}
	made, asked := workload.ClassFileSystem(class), string(pool.Spec.FileSystem.Type)
	if made == "" || made == asked {
		return ""
	}
	return fmt.Sprintf(
		"volumes of StorageClass %s are made as %s, and spec.fileSystem.type asks for %s: no claim is made. Make this "+
			"ShardPool anew with fileSystem.type: %s, or with a class that makes %s", class.Name, made, asked, made, asked)
}

// observe returns shard n as it appears in the lists of objects.
func observe(seen *observed.Pool, n int32, now time.Time) *observed.Shard {
	pool, store := seen.Pool, seen.Store
	name := workload.Shard(pool.Name, n)
	o := &observed.Shard{
		Name: name, Number: n, Parked: slices.Contains(pool.Spec.Parked, n), Leaves: slices.Contains(seen.Plan.Leave, n),
		Set: seen.Sets[n], Pod: seen.Pods[n], Claim: seen.Claims[n], ClassName: pool.Spec.Storage.StorageClassName,
		StoreUID: store.Status.StoreUID, Copies: store.Spec.Replication.Copies, Now: now, EtcdTrouble: etcdTroubleOf(store),
		MessageMax: shardMessageMax,
	}
	if seen.Device != nil {
		o.DeviceRate = seen.Device.ReadBytesPerSecond
	}
	if last, ok := seen.Last[n]; ok {
		o.Last = *last.DeepCopy()
	}
	recall(pool, o)
	return o
}

// recall determines the UUID of the shard's volume. The UUID comes from the last status or, if that was lost, from the
// template of the StatefulSet. If the StatefulSet and the pod agree on another UUID, that UUID is used, because
// somebody has changed the status of the Shard. The UUID is dropped if an administrator has declared the volume lost.
func recall(pool *v1alpha1.ShardPool, o *observed.Shard) {
	if o.Last.Volume == nil {
		o.Last.Volume = &v1alpha1.VolumeStatus{}
	}
	for uuid := range strings.SplitSeq(pool.Annotations[v1alpha1.AnnotationForgetVolumes], ",") {
		o.Forget = append(o.Forget, strings.TrimSpace(uuid))
	}
	if o.Set != nil {
		inSet := o.Set.Spec.Template.Annotations[workload.AnnotationVolume]
		inPod := o.Pod != nil && inSet != "" && o.Pod.Annotations[workload.AnnotationVolume] == inSet
		if o.Last.Volume.UUID == "" || inPod && !o.Forgotten(inSet) {
			o.Last.Volume.UUID = inSet
		}
	}
	if o.Forgotten(o.Last.Volume.UUID) {
		o.Last.Volume.UUID = ""
	}
}

// locate finds the shard's volume and node.
func (s sources) locate(ctx context.Context, o *observed.Shard, nodes map[string]*corev1.Node) error {
	if o.Claim != nil && o.Claim.Spec.VolumeName != "" {
		volume := &corev1.PersistentVolume{}
		key := types.NamespacedName{Name: o.Claim.Spec.VolumeName}
		if there, err := step.Read(ctx, s.cached, "PersistentVolume", key, volume); err != nil {
			return err
		} else if there {
			o.Volume = volume
		}
	}
	if o.Pod != nil && o.Pod.Spec.NodeName != "" {
		o.NodeName = o.Pod.Spec.NodeName
	} else if o.Volume != nil && o.Volume.Spec.Local != nil {
		o.NodeName = workload.DiskNode(o.Volume)
	}
	o.Node = nodes[o.NodeName]
	return nil
}

// build creates the wanted StatefulSet of a shard. It keeps the claim template of an existing StatefulSet, which cannot
// be changed.
func build(seen *observed.Pool, o *observed.Shard, etcd workload.EtcdAccess) error {
	size := seen.Pool.Spec.Storage.Size
	if o.Set != nil {
		size = templateSize(o.Set)
	}
	set, err := workload.ShardSet(workload.ShardInput{
		Store: seen.Store, Pool: seen.Pool, Etcd: etcd, Image: seen.Image, Number: o.Number, Parked: o.Parked ||
			givenUp(seen.Pool, o.Number, o.Claim),
		ClaimSize: size, Volume: o.Last.Volume.UUID, HoldBytes: seen.HoldBytes,
	})
	if err != nil {
		return err
	}
	o.Wanted, o.Template = set, set.Spec.Template.Annotations[workload.AnnotationTemplate]
	return nil
}

// askAll asks every running shard for its status.
func (s sources) askAll(ctx context.Context, shards []*observed.Shard) {
	parallel.Each(slices.Values(shards), describeAtOnce, func(o *observed.Shard) {
		if !o.Parked && o.Running() && o.Pod.DeletionTimestamp == nil && o.Pod.Status.PodIP != "" {
			o.Report, o.ReportErr = s.shards.ask(ctx, o.Pod)
		}
	})
}

// readEvents reads the events about shards that do not start. It reads them from the API server, because a cache of
// events would be large and rarely used. Each list request makes the API server read all events of the namespace, so
// the events of many shards are read with one request.
func (s sources) readEvents(ctx context.Context, namespace string, shards []*observed.Shard) (err error) {
	about := map[types.UID]*observed.Shard{}
	for _, o := range shards {
		if object := eventObject(o); object != nil {
			about[object.GetUID()] = o
		}
	}
	if len(about) > eventListsMax {
		return s.readAllEvents(ctx, namespace, about)
	}
	for _, o := range about {
		if o.Events, err = step.Warnings(ctx, s.live, eventObject(o)); err != nil {
			return err
		}
	}
	return nil
}

// readAllEvents reads the events of the namespace in pages, and keeps those about the given objects.
func (s sources) readAllEvents(ctx context.Context, namespace string, about map[types.UID]*observed.Shard) error {
	found := map[types.UID][]corev1.Event{}
	for next := ""; ; {
		var list corev1.EventList
		err := s.live.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"type": corev1.EventTypeWarning},
			client.Limit(eventPage), client.Continue(next))
		if apierrors.IsResourceExpired(err) {
			return nil // the API server no longer has this version of the list; the next reconcile tries again
		}
		if err != nil {
			return fmt.Errorf("list events of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			if uid := list.Items[i].InvolvedObject.UID; about[uid] != nil {
				found[uid] = append(found[uid], list.Items[i])
			}
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	for uid, events := range found {
		about[uid].Events = step.EventWords(events)
	}
	return nil
}

// eventObject returns the object whose events may explain why the shard does not run. It returns nil if the shard
// runs, or if the reason is known without events.
func eventObject(o *observed.Shard) client.Object {
	switch {
	case o.Parked || o.NodeName != "" && o.Node == nil:
	case o.Pod == nil && o.Set != nil && o.Set.DeletionTimestamp == nil:
		return o.Set
	case o.Pod != nil && o.Pod.Spec.NodeName != "" && o.Pod.Status.Phase == corev1.PodPending:
		return o.Pod
	}
	return nil
}

// etcdTroubleOf returns the condition in which the store reports a problem with its etcd, or with the placement in
// etcd, that delays starting shards. It returns nil if there is no such problem.
func etcdTroubleOf(store *v1alpha1.RecordStore) *metav1.Condition {
	for _, kind := range []string{v1alpha1.ConditionEtcdReady, v1alpha1.ConditionPlacementReady} {
		if c := meta.FindStatusCondition(store.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			return c
		}
	}
	return nil
}
