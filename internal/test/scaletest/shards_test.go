package scaletest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/must"
)

// fleet simulates all shards of a store. A shard runs as long as its pod exists: it listens at the pod's address, is
// registered in etcd with its own lease, and serves AdminService. The simulated groups hold no data, so the fleet
// creates and moves them as soon as their targets demand it.
type fleet struct {
	recordv1.UnimplementedAdminServiceServer

	c         *cluster
	t         *testing.T
	storeUID  string
	namespace string
	etcd      *clientv3.Client
	store     *registry.Store
	server    *grpc.Server

	provisioners errgroup.Group

	mu          sync.Mutex
	played      map[string]*simulatedShard // shards by the address of the pod
	generations map[string]uint64          // generation of each volume, by the UID of its claim
	leads       map[string]map[string]bool // for each shard and group, whether the shard leads the group
}

// simulatedShard is a simulated shard.
type simulatedShard struct {
	name, volume, node, zone string
	stop                     context.CancelFunc
}

// startFleet starts to simulate a store's shards.
func startFleet(ctx context.Context, t *testing.T, c *cluster, store *v1alpha1.RecordStore) *fleet {
	t.Helper()
	access := workload.EtcdAccessOf(store, nil)
	connection, err := etcd.Dial(etcd.ClientConfig{Endpoints: access.Endpoints})
	must.OK(t, err)
	f := &fleet{c: c, t: t, storeUID: store.Status.StoreUID, namespace: store.Namespace, etcd: connection,
		server: grpc.NewServer(),
		played: map[string]*simulatedShard{}, generations: map[string]uint64{}, leads: map[string]map[string]bool{}}
	if f.store, err = registry.NewStoreAt(connection, access.Prefix, access.Store, nil); err != nil {
		t.Fatal(err)
	}
	f.provisioners.SetLimit(16)
	recordv1.RegisterAdminServiceServer(f.server, f)
	set, err := kubernetes.NewForConfig(c.Config) // the test needs watches, which c.client does not support
	must.OK(t, err)
	factory := informers.NewSharedInformerFactoryWithOptions(set, 0, informers.WithNamespace(store.Namespace))
	pods, claims := factory.Core().V1().Pods().Informer(), factory.Core().V1().PersistentVolumeClaims()
	claimed := claims.Informer()
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandlerFuncs{
		pods: {
			AddFunc:    func(o any) { f.handlePod(ctx, o.(*corev1.Pod)) },
			UpdateFunc: func(_, o any) { f.handlePod(ctx, o.(*corev1.Pod)) },
			DeleteFunc: func(o any) {
				if pod, ok := o.(*corev1.Pod); ok {
					f.end(pod.Status.PodIP)
				}
			},
		},
		claimed: {AddFunc: func(o any) {
			f.provisioners.Go(func() error {
				claim := o.(*corev1.PersistentVolumeClaim)
				if err := f.provision(ctx, claim); err != nil && ctx.Err() == nil {
					f.t.Errorf("make and bind the volume of claim %s: %v", claim.Name, err)
				}
				return nil
			})
		}},
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(func() {
		cancel()
		f.server.Stop()
		_ = connection.Close()
	})
	factory.Start(ctx.Done())
	go f.moveGroups(ctx)
	return f
}

// provision creates the volume for a claim, as a provisioner of local disks would. It creates it on the node that has
// the same number as the shard. It also binds the volume to the claim, because the controller in Kubernetes binds one
// volume at a time and would take minutes for a thousand volumes.
func (f *fleet) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	number, err := strconv.Atoi(claim.Labels[v1alpha1.LabelShard])
	if err != nil || claim.Spec.VolumeName != "" {
		return nil //nolint:nilerr // without a number it is no claim of a shard
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + string(claim.UID)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			StorageClassName:              *claim.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disk"}},
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName(number)},
					}},
				}}}},
		},
	}
	if err := f.c.client.Create(ctx, volume); err != nil {
		return err
	}
	volume.Status.Phase = corev1.VolumeBound
	if err := f.c.client.Status().Update(ctx, volume); err != nil {
		return err
	}
	before := claim.DeepCopy()
	bound := claim.DeepCopy()
	bound.Spec.VolumeName = volume.Name
	if bound.Annotations == nil {
		bound.Annotations = map[string]string{}
	}
	bound.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	if err := f.c.client.Patch(ctx, bound, client.MergeFrom(before)); err != nil {
		return err
	}
	before = bound.DeepCopy()
	bound.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: volume.Spec.Capacity,
	}
	return f.c.client.Status().Patch(ctx, bound, client.MergeFrom(before))
}

// handlePod starts the shard in a running pod, and stops the shard in a pod that is being deleted.
func (f *fleet) handlePod(ctx context.Context, pod *corev1.Pod) {
	address := pod.Status.PodIP
	if address == "" || pod.Labels[v1alpha1.LabelShard] == "" {
		return
	}
	if pod.DeletionTimestamp != nil {
		f.end(address)
		return
	}
	if pod.Status.Phase != corev1.PodRunning {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.played[address] != nil {
		return
	}
	number, err := strconv.Atoi(strings.TrimPrefix(pod.Spec.NodeName, "node-"))
	if err != nil {
		return // the node is not one of the simulated ones
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &simulatedShard{name: strings.TrimSuffix(pod.Name, "-0"), node: pod.Spec.NodeName, zone: f.c.zone(number),
		stop: cancel}
	f.played[address] = p
	go func() {
		if err := f.runShard(ctx, p, address); err != nil && ctx.Err() == nil {
			f.t.Errorf("shard %s: %v", p.name, err)
		}
	}()
}

func (f *fleet) end(address string) {
	f.mu.Lock()
	p := f.played[address]
	delete(f.played, address)
	f.mu.Unlock()
	if p != nil {
		p.stop()
	}
}

// stopNode stops the shards on a node, as if the node had failed.
func (f *fleet) stopNode(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// The shards stay in the map. Otherwise they would be started again, because the objects of their pods still exist.
	for _, p := range f.played {
		if p.node == node {
			p.stop()
		}
	}
}

// view returns the content of etcd.
func (f *fleet) view(ctx context.Context, t *testing.T) placement.View {
	t.Helper()
	view, err := f.store.View(ctx)
	must.OK(t, err)
	return view
}

// runShard listens, and keeps the shard registered until ctx is done.
func (f *fleet) runShard(ctx context.Context, p *simulatedShard, host string) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
		Name: workload.ShardClaim(p.name)}}
	if err := f.c.client.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
		return err
	}
	f.mu.Lock()
	p.volume = string(claim.UID)
	f.generations[p.volume]++
	generation := f.generations[p.volume]
	f.mu.Unlock()
	address := net.JoinHostPort(host, strconv.Itoa(workload.PortShard))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	stop, err := f.store.RegisterShard(ctx, placement.Shard{
		Name: p.name, Address: address, VolumeUUID: uuid.MustParse(p.volume), Generation: generation,
		Domain: p.zone, Node: p.node, Zone: p.zone, CapacityBytes: 1 << 40,
	})
	if err != nil {
		return err
	}
	defer stop()
	if err := f.server.Serve(listener); ctx.Err() == nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	<-ctx.Done()
	return nil
}

// calledShard returns the shard that a client has called. It recognizes the shard by the address to which the client
// has connected.
func (f *fleet) calledShard(ctx context.Context) (*simulatedShard, error) {
	from, ok := peer.FromContext(ctx)
	if !ok || from.LocalAddr == nil {
		return nil, status.Error(codes.Internal, "no address")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.played[hostOf(from.LocalAddr)]; p != nil {
		return p, nil
	}
	return nil, status.Errorf(codes.Unavailable, "no shard lives at %s", from.LocalAddr)
}

// ListShards returns a shard that serves.
func (f *fleet) ListShards(ctx context.Context, _ *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	p, err := f.calledShard(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	groups := int32(len(f.leads[p.name])) //nolint:gosec // at most 100000
	f.mu.Unlock()
	return &recordv1.ListShardsResponse{Shards: []*recordv1.Shard{{
		Name: p.name, Alive: true, VolumeUuid: p.volume, StoreUuid: f.storeUID, VolumeShard: p.name, FileSystem: "xfs",
		Version:       "scaletest",
		CapacityBytes: 1 << 40, FreeBytes: 1 << 39, ReserveBytes: 1 << 30,
		MemoryNeedBytes: 1 << 28, MemoryUsedBytes: 1 << 28, MemoryLimitBytes: 1 << 32,
		Groups: groups, State: recordv1.ShardState_SHARD_STATE_SERVING, Node: p.node, Zone: p.zone, Domain: p.zone,
		Load: &recordv1.Load{GroupsTotal: groups, GroupsLoaded: groups, Done: true},
	}}}, nil
}

// ListGroups returns the groups that are on the shard according to etcd.
func (f *fleet) ListGroups(ctx context.Context, _ *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse, error) {
	p, err := f.calledShard(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &recordv1.ListGroupsResponse{}
	for group, leads := range f.leads[p.name] {
		out.Groups = append(out.Groups, &recordv1.Group{
			Group: group, Shard: p.name, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: leads,
			Records: 1000, StoredBytes: 1 << 20, AppliedIndex: 1000,
		})
	}
	return out, nil
}

// moveGroups moves groups until they match their targets. It runs until ctx is done.
func (f *fleet) moveGroups(ctx context.Context) {
	for view := range f.store.Watch(ctx) {
		leads := map[string]map[string]bool{}
		var late []placement.Group
		for name, g := range view.Groups {
			for _, m := range g.Members {
				if leads[m.Shard] == nil {
					leads[m.Shard] = map[string]bool{}
				}
				leads[m.Shard][name] = g.Leader == m.Shard
			}
			if next, changed := nextChange(view, g); changed {
				late = append(late, next)
			}
		}
		f.mu.Lock()
		f.leads = leads
		f.mu.Unlock()
		var group errgroup.Group
		group.SetLimit(32)
		for _, g := range late {
			group.Go(func() error {
				if _, err := f.store.PutGroup(ctx, g); err != nil && !errors.Is(err, placement.ErrChanged) && ctx.Err() == nil {
					return fmt.Errorf("write group %s: %w", g.Name, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			f.t.Error(err)
		}
	}
}

// nextChange makes the next change that a group needs, and reports whether there was one. If all shards of the target
// are alive, they become the members. If a majority of the members is alive, one of them becomes the leader.
func nextChange(view placement.View, g placement.Group) (placement.Group, bool) {
	lives := func(shard string) bool { return view.Shards[shard].Name != "" }
	living := 0
	for _, m := range g.Members {
		if lives(m.Shard) {
			living++
		}
	}
	if len(g.Members) > 0 && living <= len(g.Members)/2 {
		return g, false
	}
	changed := false
	target := view.Targets[g.Name].Shards
	strange := func(m placement.Member) bool { return !slices.Contains(target, m.Shard) }
	same := len(target) == len(g.Members) && !slices.ContainsFunc(g.Members, strange)
	if !same && len(target) > 0 && !slices.ContainsFunc(target, func(s string) bool { return !lives(s) }) {
		members := make([]placement.Member, 0, len(target))
		for i, shard := range target {
			members = append(members, placement.Member{
				Shard: shard, VolumeUUID: view.Shards[shard].VolumeUUID,
				RaftID: g.ConfIndex + uint64(i) + 1, //nolint:gosec // at most 5 copies
			})
		}
		g.Members, g.ConfIndex, changed = members, g.ConfIndex+uint64(len(target)), true
	}
	leader := g.Leader
	if len(target) > 0 && lives(target[0]) {
		leader = target[0]
	}
	is := func(m placement.Member) bool { return m.Shard == leader }
	if !lives(leader) || !slices.ContainsFunc(g.Members, is) {
		leader = ""
		for _, m := range g.Members {
			if lives(m.Shard) {
				leader = m.Shard
				break
			}
		}
	}
	if leader != g.Leader {
		g.Leader, changed = leader, true
	}
	if changed {
		g.Term++
	}
	return g, changed
}
