package controllers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// play simulates the rest of a cluster in one namespace: the StatefulSet controller, the garbage collector, the binder,
// the kubelet, and the shards. Each of them acts only when step is called.
type play struct {
	Namespace string
	Node      string

	// Each of these switches disables a part of the simulation, for tests that play that part themselves.
	NoBinding bool     // claims stay Pending
	NoResize  bool     // claims keep their size
	NoKubelet bool     // pods do not start
	NoSets    bool     // the StatefulSet controller does not run
	kubelet   kubelet  // nil if pods run no real processes
	NoPods    []string // StatefulSets whose pods cannot be created, because a quota is exhausted

	mu   sync.Mutex
	ips  int
	byIP map[string]string // maps a pod's IP address to its shard
	// Maps a shard to a function that modifies its report, which is that of a healthy shard.
	reports map[string]func(r *recordv1.ShardStatus)
	silent  map[string]bool   // shards that do not answer
	hangs   map[string]bool   // shards whose disk does not answer
	keyless bool              // the operator has no certificate for the store
	started map[string]int    // maps a shard to the number of pods created for it
	volumes map[string]string // maps a claim to the UUID of its volume
	storeID string
	uuidOf  func(shard string) string // returns the UUID of the shard's volume
}

func newPlay(ctx context.Context) *play {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "play-"}}
	Expect(api.Create(ctx, namespace)).To(Succeed())
	p := &play{
		Namespace: namespace.Name, Node: "node-" + namespace.Name, byIP: map[string]string{},
		reports: map[string]func(*recordv1.ShardStatus){},
		silent:  map[string]bool{}, hangs: map[string]bool{}, started: map[string]int{}, volumes: map[string]string{},
		uuidOf: func(shard string) string { return "uuid-of-" + shard },
	}
	p.makeNode(ctx, p.Node)
	DeferCleanup(func(ctx context.Context) {
		Expect(client.IgnoreNotFound(api.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Node}}))).
			To(Succeed())
	})
	return p
}

func (p *play) makeNode(ctx context.Context, name string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	Expect(api.Create(ctx, node)).To(Succeed())
	p.nodeReady(ctx, name, corev1.ConditionTrue)
}

func (p *play) nodeReady(ctx context.Context, name string, ready corev1.ConditionStatus) {
	node := &corev1.Node{}
	Expect(api.Get(ctx, types.NamespacedName{Name: name}, node)).To(Succeed())
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "Played"}}
	Expect(api.Status().Update(ctx, node)).To(Succeed())
}

// kubelet runs the processes of pods. The argument of end is a pod's UID.
type kubelet interface {
	start(pod *corev1.Pod) (ip string)
	end(pod string)
}

// step lets each simulated component perform its next action.
func (p *play) step(ctx context.Context) {
	var sets appsv1.StatefulSetList
	var pods corev1.PodList
	Expect(api.List(ctx, &sets, client.InNamespace(p.Namespace))).To(Succeed())
	Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace))).To(Succeed())
	byName := map[string]*corev1.Pod{}
	for i := range pods.Items {
		byName[pods.Items[i].Name] = &pods.Items[i]
	}
	alive := map[types.UID]bool{}
	for i := range sets.Items {
		set := &sets.Items[i]
		pod := byName[workload.ShardPod(set.Name)]
		if set.DeletionTimestamp != nil {
			p.orphan(ctx, set, pod)
			continue
		}
		alive[set.UID] = true
		if !p.NoSets {
			p.playSet(ctx, set, pod)
			for n := int32(1); n < *set.Spec.Replicas; n++ { // only the StatefulSet of etcd may have more than one pod
				if byName[fmt.Sprintf("%s-%d", set.Name, n)] == nil {
					p.makePod(ctx, set, n)
				}
			}
		}
	}
	p.playClaims(ctx)
	p.playPods(ctx, alive)
}

// orphan simulates what the garbage collector does when the owner of a pod is deleted and the pod is kept: it removes
// the owner from the pod.
func (p *play) orphan(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) {
	if pod != nil && metav1.IsControlledBy(pod, set) {
		pod.OwnerReferences = nil
		Expect(api.Update(ctx, pod)).To(Succeed())
	}
	set.Finalizers = nil
	Expect(client.IgnoreNotFound(api.Update(ctx, set))).To(Succeed())
}

func (p *play) playSet(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) {
	switch {
	case pod != nil && pod.DeletionTimestamp != nil:
	case *set.Spec.Replicas == 0 && pod != nil:
		Expect(api.Delete(ctx, pod)).To(Succeed())
	case *set.Spec.Replicas == 0:
	case pod == nil && slices.Contains(p.NoPods, set.Name):
	case pod == nil:
		p.makePod(ctx, set, 0)
	case len(pod.OwnerReferences) == 0: // the StatefulSet adopts a pod without an owner
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		Expect(api.Update(ctx, pod)).To(Succeed())
	}
	if set.Status.ObservedGeneration != set.Generation {
		set.Status.ObservedGeneration, set.Status.Replicas = set.Generation, *set.Spec.Replicas
		Expect(api.Status().Update(ctx, set)).To(Succeed())
	}
}

func (p *play) makePod(ctx context.Context, set *appsv1.StatefulSet, n int32) {
	name := fmt.Sprintf("%s-%d", set.Name, n)
	claim := set.Spec.VolumeClaimTemplates[0].DeepCopy()
	claim.Name, claim.Namespace, claim.Status = workload.ClaimTemplate+"-"+name, p.Namespace,
		corev1.PersistentVolumeClaimStatus{}
	Expect(client.IgnoreAlreadyExists(api.Create(ctx, claim))).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: p.Namespace, Labels: set.Spec.Template.Labels, Annotations: set.Spec.Template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set,
				appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
		},
		Spec: *set.Spec.Template.Spec.DeepCopy(),
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: workload.ClaimTemplate,
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	if !p.NoKubelet {
		pod.Spec.NodeName = p.Node
	}
	Expect(api.Create(ctx, pod)).To(Succeed())
	p.mu.Lock()
	defer p.mu.Unlock()
	if n == 0 {
		p.started[set.Name]++
	}
}

// playClaims binds and grows claims.
func (p *play) playClaims(ctx context.Context) {
	var claims corev1.PersistentVolumeClaimList
	Expect(api.List(ctx, &claims, client.InNamespace(p.Namespace))).To(Succeed())
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.DeletionTimestamp != nil {
			claim.Finalizers = nil
			Expect(client.IgnoreNotFound(api.Update(ctx, claim))).To(Succeed())
			continue
		}
		if claim.Status.Phase != corev1.ClaimBound && !p.NoBinding {
			p.bind(ctx, claim)
		}
		wanted, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
		if claim.Status.Phase == corev1.ClaimBound && !p.NoResize && has.Cmp(wanted) < 0 {
			claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: wanted}
			Expect(api.Status().Update(ctx, claim)).To(Succeed())
		}
	}
}

func (p *play) bind(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace + "-" + claim.Name}}
	volume.Spec = corev1.PersistentVolumeSpec{
		Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes,
		StorageClassName:              *claim.Spec.StorageClassName,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{
			Path: "/dev/disk/by-id/played"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
				Values: []string{p.Node}}},
		}}}},
		ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
			UID: claim.UID},
	}
	Expect(client.IgnoreAlreadyExists(api.Create(ctx, volume))).To(Succeed())
	claim.Spec.VolumeName = volume.Name
	Expect(api.Update(ctx, claim)).To(Succeed())
	claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound,
		corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]}
	Expect(api.Status().Update(ctx, claim)).To(Succeed())
}

// playPods ends the pods that are being deleted or whose StatefulSet no longer exists. It starts all other pods.
func (p *play) playPods(ctx context.Context, sets map[types.UID]bool) {
	var pods corev1.PodList
	Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace))).To(Succeed())
	for i := range pods.Items {
		pod := &pods.Items[i]
		owner := metav1.GetControllerOf(pod)
		switch {
		case pod.DeletionTimestamp != nil:
			if p.kubelet != nil {
				p.kubelet.end(string(pod.UID))
			}
			Expect(client.IgnoreNotFound(api.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
		case owner != nil && !sets[owner.UID]:
			Expect(client.IgnoreNotFound(api.Delete(ctx, pod))).To(Succeed())
		case pod.Status.Phase != corev1.PodRunning && owner != nil && !p.NoKubelet:
			p.run(ctx, pod)
		}
	}
}

// run simulates the kubelet after a container has started.
func (p *play) run(ctx context.Context, pod *corev1.Pod) {
	p.mu.Lock()
	p.ips++
	ip := fmt.Sprintf("10.1.%d.%d", p.ips/250, p.ips%250+1)
	p.byIP[ip] = pod.Labels[v1alpha1.LabelPool] + "-" + pod.Labels[v1alpha1.LabelShard]
	p.mu.Unlock()
	if p.kubelet != nil {
		ip = p.kubelet.start(pod)
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: workload.ContainerShard, Image: pod.Spec.Containers[0].Image, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().
			Add(-time.Minute))}},
	}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	Expect(api.Status().Update(ctx, pod)).To(Succeed())
}

// pod returns the pod of a shard, or nil.
func (p *play) pod(ctx context.Context, shard string) *corev1.Pod {
	pod := &corev1.Pod{}
	err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: workload.ShardPod(shard)}, pod)
	Expect(client.IgnoreNotFound(err)).To(Succeed())
	if err != nil {
		return nil
	}
	return pod
}

// Describe implements fleet.ShardClient. A simulated shard reports that it serves, unless a test has changed its
// report.
func (p *play) Describe(_ context.Context, at fleet.ShardAt) (*recordv1.ShardStatus, error) {
	ip, _, err := net.SplitHostPort(at.Address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keyless && at.TLS {
		return nil, fleet.ErrNoCredentials
	}
	shard := p.byIP[ip]
	if shard == "" || p.silent[shard] {
		return nil, errors.New("connection refused")
	}
	if p.hangs[shard] {
		return nil, fmt.Errorf("%w: a read takes more than 15s", fleet.ErrVolumeSilent)
	}
	report := &recordv1.ShardStatus{Shard: &recordv1.Shard{
		Name: shard, Version: "played", State: recordv1.ShardState_SHARD_STATE_SERVING,
		VolumeUuid: p.uuidOf(shard), StoreUuid: p.storeID, FileSystem: "xfs", MountOptions: []string{"noatime"},
		Source:        "/dev/played",
		CapacityBytes: 1000 << 20, FreeBytes: 900 << 20, ReserveBytes: 50 << 20,
	}}
	if change := p.reports[shard]; change != nil {
		change(report)
	}
	return report, nil
}

// setReport changes all later reports of the shard. If change is nil, the shard reports that it serves.
func (p *play) setReport(shard string, change func(*recordv1.ShardStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports[shard] = change
}

// versions returns the versions of all objects of the namespace, and of the volumes that belong to it.
func (p *play) versions(ctx context.Context) map[string]string {
	versions := map[string]string{}
	for _, o := range p.objects(ctx) {
		versions[fmt.Sprintf("%T %s", o, o.GetName())] = o.GetResourceVersion()
	}
	return versions
}

// objects returns those objects of the namespace that a component of the test could write, whether the component is
// real or simulated.
func (p *play) objects(ctx context.Context) []client.Object {
	lists := []client.ObjectList{
		&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{},
		&corev1.ServiceList{},
		&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}, &v1alpha1.ShardPoolList{},
		&v1alpha1.ShardList{}, &v1alpha1.RecordStoreList{},
	}
	var objects []client.Object
	for _, list := range lists {
		Expect(api.List(ctx, list, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, o.(client.Object))
			return nil
		})).To(Succeed())
	}
	return objects
}
