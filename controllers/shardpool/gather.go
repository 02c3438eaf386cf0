package shardpool

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"

	appsv1 "k8s.io/api/apps/v1"

	corev1 "k8s.io/api/core/v1"

	storagev1 "k8s.io/api/storage/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// Bounds of asking shards.
const (
	describeTime    = 4 * time.Second
	describeAtOnce  = 16
	eventListsMax   = 4   // lists of events of single objects in one look
	eventPage       = 500 // events
	shardMessageMax = 900
)

// gather reads what there is of the pool: one list per kind, whatever the number of shards.
func (w *poolWork) gather(ctx context.Context) step.Outcome {
	if err := w.lists(ctx); err != nil {
		return step.Retry(err)
	}
	if err := w.deviceRate(ctx); err != nil {
		return step.Retry(err)
	}
	w.planShards(ctx)
	nodes, err := w.nodes(ctx)
	if err != nil {
		return step.Retry(err)
	}
	class, err := w.class(ctx)
	if err != nil {
		return step.Retry(err)
	}
	for _, n := range w.plan.All() {
		o := w.observed(n)
		o.ClassMissing = class == nil
		if o.Set == nil && o.Claim == nil {
			o.Refused = otherFileSystem(w.pool, class)
		}
		if err := w.locate(ctx, o, nodes); err != nil {
			return step.Retry(err)
		}
		w.shards = append(w.shards, o)
	}
	if err := w.build(); err != nil {
		return step.Retry(err)
	}
	w.askAll(ctx)
	return w.readEvents(ctx)
}

// lists reads sets, pods, claims and Shards of the pool.
func (w *poolWork) lists(ctx context.Context) error {
	in := []client.ListOption{client.InNamespace(w.pool.Namespace), client.MatchingLabels{v1alpha1.LabelPool: w.pool.Name}}
	var sets appsv1.StatefulSetList
	var pods corev1.PodList
	var claims corev1.PersistentVolumeClaimList
	for _, list := range []client.ObjectList{&sets, &pods, &claims} {
		if err := w.Client.List(ctx, list, in...); err != nil {
			return fmt.Errorf("list %T of ShardPool %s: %w", list, w.pool.Name, err)
		}
	}
	w.sets, w.pods, w.claims = map[int32]*appsv1.StatefulSet{}, map[int32]*corev1.Pod{}, map[int32]*corev1.PersistentVolumeClaim{}
	for i := range sets.Items {
		if n, ok := workload.ShardNumber(w.pool.Name, sets.Items[i].Name); ok {
			w.sets[n] = &sets.Items[i]
		}
	}
	for i := range pods.Items {
		if n, ok := w.numbered(&pods.Items[i]); ok && pods.Items[i].Name == workload.ShardPod(workload.Shard(w.pool.Name, n)) {
			w.pods[n] = &pods.Items[i]
		}
	}
	for i := range claims.Items {
		if n, ok := w.numbered(&claims.Items[i]); ok && claims.Items[i].Name == workload.ShardClaim(workload.Shard(w.pool.Name, n)) {
			w.claims[n] = &claims.Items[i]
		}
	}
	return w.listShards(ctx)
}

func (w *poolWork) numbered(object client.Object) (int32, bool) {
	n, err := strconv.ParseInt(object.GetLabels()[v1alpha1.LabelShard], 10, 32)
	return int32(n), err == nil && n >= 0
}

// planShards decides which shards there are to be. A shard whose set is just being made anew is known as it was seen
// last.
func (w *poolWork) planShards(ctx context.Context) {
	in := fleet.NumbersInput{Remove: w.pool.Spec.Remove, Wanted: 1, Holds: map[int32]string{}}
	if w.pool.Spec.Shards != nil {
		in.Wanted = int(*w.pool.Spec.Shards)
	}
	last := map[int32]v1alpha1.ShardStatus{}
	for n := range w.sets {
		in.Exist = append(in.Exist, n)
		last[n] = v1alpha1.ShardStatus{Name: workload.Shard(w.pool.Name, n), Number: n}
	}
	for n, s := range w.last {
		in.Exist = append(in.Exist, n)
		last[n] = s
	}
	for _, n := range fleet.PlanNumbers(in).Remove { // of those alone it matters
		if words := w.holds(ctx, last[n]); words != "" {
			in.Holds[n] = words
		}
	}
	w.plan = fleet.PlanNumbers(in)
}

// nodes by name and by host name.
func (w *poolWork) nodes(ctx context.Context) (map[string]*corev1.Node, error) {
	var list corev1.NodeList
	if err := w.Client.List(ctx, &list); err != nil {
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

// class of the volumes; nil: there is none.
func (w *poolWork) class(ctx context.Context) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	err := w.Client.Get(ctx, types.NamespacedName{Name: w.pool.Spec.Storage.StorageClassName}, class)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read StorageClass %s: %w", w.pool.Spec.Storage.StorageClassName, err)
	}
	return class, nil
}

// otherFileSystem says that a pool asks for another file system than its class makes; empty: it does not, or nobody
// knows.
func otherFileSystem(pool *v1alpha1.ShardPool, class *storagev1.StorageClass) string {
	if class == nil || pool.Spec.FileSystem == nil {
		return ""
	}
	made, asked := workload.ClassFileSystem(class), string(pool.Spec.FileSystem.Type)
	if made == "" || made == asked {
		return ""
	}
	return fmt.Sprintf("volumes of StorageClass %s are made as %s, and spec.fileSystem.type asks for %s: no claim is made. Make this ShardPool anew with "+
		"fileSystem.type: %s, or with a class that makes %s", class.Name, made, asked, made, asked)
}

// observed is shard n as the lists show it.
func (w *poolWork) observed(n int32) *observedShard {
	name := workload.Shard(w.pool.Name, n)
	o := &observedShard{
		Name: name, Number: n, Parked: slices.Contains(w.pool.Spec.Parked, n), Leaves: slices.Contains(w.plan.Leave, n),
		Set: w.sets[n], Pod: w.pods[n], Claim: w.claims[n], ClassName: w.pool.Spec.Storage.StorageClassName,
		StoreUID: w.store.Status.StoreUID, Copies: w.store.Spec.Replication.Copies, Now: w.now(), EtcdTrouble: etcdTroubleOf(w.store),
		MessageMax: shardMessageMax,
	}
	if w.pool.Status.Device != nil {
		o.DeviceRate = w.pool.Status.Device.ReadBytesPerSecond
	}
	if last, ok := w.last[n]; ok {
		o.Last = *last.DeepCopy()
	}
	w.recall(o)
	return o
}

// recall finds the UUID of the shard's volume: as it was seen last, or where that was lost, in the set's template.
// Where set and pod agree on another one, that counts: somebody has changed the status of the Shard. The UUID is gone
// where a person said that the volume is.
func (w *poolWork) recall(o *observedShard) {
	if o.Last.Volume == nil {
		o.Last.Volume = &v1alpha1.VolumeStatus{}
	}
	for uuid := range strings.SplitSeq(w.pool.Annotations[v1alpha1.AnnotationForgetVolumes], ",") {
		o.Forget = append(o.Forget, strings.TrimSpace(uuid))
	}
	if o.Set != nil {
		inSet := o.Set.Spec.Template.Annotations[workload.AnnotationVolume]
		inPod := o.Pod != nil && inSet != "" && o.Pod.Annotations[workload.AnnotationVolume] == inSet
		if o.Last.Volume.UUID == "" || inPod && !o.forgotten(inSet) {
			o.Last.Volume.UUID = inSet
		}
	}
	if o.forgotten(o.Last.Volume.UUID) {
		o.Last.Volume.UUID = ""
	}
}

// locate finds the volume and the node.
func (w *poolWork) locate(ctx context.Context, o *observedShard, nodes map[string]*corev1.Node) error {
	if o.Claim != nil && o.Claim.Spec.VolumeName != "" {
		volume := &corev1.PersistentVolume{}
		err := w.Client.Get(ctx, types.NamespacedName{Name: o.Claim.Spec.VolumeName}, volume)
		if err == nil {
			o.Volume = volume
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read PersistentVolume %s: %w", o.Claim.Spec.VolumeName, err)
		}
	}
	if o.Pod != nil && o.Pod.Spec.NodeName != "" {
		o.NodeName = o.Pod.Spec.NodeName
	} else if o.Volume != nil {
		o.NodeName = localNode(o.Volume)
	}
	o.Node = nodes[o.NodeName]
	return nil
}

// localNode is the host name of the node that a local volume is on; empty where it is not bound to one.
func localNode(volume *corev1.PersistentVolume) string {
	affinity := volume.Spec.NodeAffinity
	if volume.Spec.Local == nil || affinity == nil || affinity.Required == nil {
		return ""
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// build makes the wanted set of each shard.
func (w *poolWork) build() error {
	w.wanted = map[int32]*appsv1.StatefulSet{}
	for _, o := range w.shards {
		set, err := workload.ShardSet(workload.ShardInput{
			Store: w.store, Pool: w.pool, Etcd: w.etcd, Image: w.Image, Number: o.Number, Parked: o.Parked || w.givenUp(o.Number),
			ClaimSize: w.pool.Spec.Storage.Size, Volume: o.Last.Volume.UUID,
		})
		if err != nil {
			return err
		}
		w.wanted[o.Number] = set
		o.Template = set.Spec.Template.Annotations[workload.AnnotationTemplate]
	}
	return nil
}

// askAll asks every shard that runs about itself.
func (w *poolWork) askAll(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(describeAtOnce)
	for _, o := range w.shards {
		if o.Parked || !o.running() || o.Pod.DeletionTimestamp != nil || o.Pod.Status.PodIP == "" {
			continue
		}
		group.Go(func() error {
			o.Report, o.ReportErr = w.ask(ctx, o.Pod)
			return nil
		})
	}
	_ = group.Wait() // errors are in the shards
}

func (w *poolWork) ask(ctx context.Context, pod *corev1.Pod) (*fleet.ShardReport, error) {
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	return w.Shards.Describe(ctx, fleet.ShardAt{
		Store: storeKey(w.pool).String(), Name: strings.TrimSuffix(pod.Name, "-0"), Address: net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(workload.PortShard)),
	})
}

// readEvents reads the complaints about shards that do not come up, from the API server: events are not worth a cache.
// Each list makes the API server read all events of the namespace, so that those of many shards are read by one.
func (w *poolWork) readEvents(ctx context.Context) step.Outcome {
	about := map[types.UID]*observedShard{}
	for _, o := range w.shards {
		if object := o.complainedOf(); object != nil {
			about[object.GetUID()] = o
		}
	}
	if len(about) > eventListsMax {
		if err := w.readAllEvents(ctx, about); err != nil {
			return step.Retry(err)
		}
		return step.Complete()
	}
	for _, o := range about {
		var err error
		if o.Events, err = step.Warnings(ctx, w.Live, o.complainedOf()); err != nil {
			return step.Retry(err)
		}
	}
	return step.Complete()
}

// readAllEvents reads the complaints of the namespace in pages, and keeps those about the objects that are asked for.
func (w *poolWork) readAllEvents(ctx context.Context, about map[types.UID]*observedShard) error {
	found := map[types.UID][]corev1.Event{}
	for next := ""; ; {
		var list corev1.EventList
		err := w.Live.List(ctx, &list, client.InNamespace(w.pool.Namespace), client.MatchingFields{"type": corev1.EventTypeWarning},
			client.Limit(eventPage), client.Continue(next))
		if apierrors.IsResourceExpired(err) {
			return nil // it took longer than the API server keeps old lists: the next look tries again
		}
		if err != nil {
			return fmt.Errorf("list events of namespace %s: %w", w.pool.Namespace, err)
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

// complainedOf is the object whose events say why the shard is not up; nil: it is up, or that is known without events.
func (o *observedShard) complainedOf() client.Object {
	switch {
	case o.Parked || o.NodeName != "" && o.Node == nil:
	case o.Pod == nil && o.Set != nil && o.Set.DeletionTimestamp == nil:
		return o.Set
	case o.Pod != nil && o.Pod.Spec.NodeName != "" && o.Pod.Status.Phase == corev1.PodPending:
		return o.Pod
	}
	return nil
}

// decide names the state of every shard.
func (w *poolWork) decide(context.Context) step.Outcome {
	said := map[string]*fleet.ShardReport{}
	for _, o := range w.shards {
		s := decideShard(o)
		w.statuses = append(w.statuses, s)
		if said[o.Name] = nil; fleet.Serving(s.State) {
			said[o.Name] = o.Report
		}
	}
	w.Groups.Note(storeKey(w.pool), w.pool.Name, said, w.now())
	w.decided = true
	return step.Complete()
}
