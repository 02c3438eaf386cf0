package recordstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordstore"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/status/archiving"
	"sheaf.dev/sheaf/internal/test/fleettest"
	"sheaf.dev/sheaf/internal/test/must"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files of this package anew")

// goldenNow is the time of the operator in a scene.
var goldenNow = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// scene describes the surroundings of a store's reconciles. The zero value is a store with one copy of each group that
// has served before: a managed etcd of one member, one gateway, and pool ssd with two shards, all of them ready.
type scene struct {
	store   *v1alpha1.RecordStore
	pools   []v1alpha1.ShardPool
	objects []client.Object
	groups  fleet.GroupBook
	grants  fleet.GrantBook

	view     *fleet.Places // the places of the groups in etcd; a plan changes them
	open     error         // the errors that the methods of the placement return
	initial  error
	plan     error
	recover  error
	members  []fleet.EtcdMember
	refuse   string                                      // the API server refuses writes of objects of this kind
	member   func(n int32, pod *corev1.Pod) (there bool) // changes a pod of etcd that is ready
	gateway  func(*appsv1.Deployment)                    // changes a running Deployment
	gateways []corev1.Pod
	warnings []corev1.Event
	tls      func(pod string) (certs.Report, error) // nil if the operator creates no certificates
	between  func(ctx context.Context, c client.Client, round int) error
	rounds   int                                     // 0 means three rounds
	source   func() (*archiving.SourceReport, error) // the report of the source of a restore

	c      client.WithWatch
	keeper *trust.Keeper
	events []string
	writes []string
}

func (s *scene) Open(string, workload.EtcdAccess, fleet.EtcdCredentials) (fleet.Placement, error) {
	return s, s.open
}
func (s *scene) Close(string)                                             {}
func (s *scene) Init(context.Context, *v1alpha1.RecordStore, int32) error { return s.initial }
func (s *scene) Plan(context.Context, *v1alpha1.RecordStore, int32, map[string]v1alpha1.PoolState) (placement.Planned,
	error) {
	return s.view.Planned, s.plan
}
func (s *scene) Look(context.Context, *v1alpha1.RecordStore) (placement.Planned, error) {
	return placement.Planned{View: s.view.View, Unplaced: s.view.Unplaced}, s.plan
}
func (s *scene) Recover(context.Context, *v1alpha1.RecordStore, []fleet.ShardAt) error {
	return s.recover
}
func (s *scene) EtcdMembers(context.Context) ([]fleet.EtcdMember, error) { return s.members, nil }
func (s *scene) Transport(_ context.Context, address string) (certs.Report, error) {
	return s.tls(address)
}

func (s *scene) SourceReport(context.Context, string) (*archiving.SourceReport, error) {
	return s.source()
}

// Eventf implements events.EventRecorder.
func (s *scene) Eventf(_, related runtime.Object, kind, reason, action, note string, args ...any) {
	on := ""
	if o, ok := related.(client.Object); ok {
		on = " " + o.GetName()
	}
	s.events = append(s.events, fmt.Sprintf("%s %s %s%s: "+note, append([]any{kind, reason, action, on}, args...)...))
}

func newScene() *scene {
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes", Generation: 3,
		UID: "11111111-2222-3333-4444-555555555555", Finalizers: []string{v1alpha1.Finalizer}}}
	store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(8))}
	store.Spec.Gateway.Replicas = new(int32(1))
	store.Spec.Etcd.Managed = &v1alpha1.ManagedEtcd{Members: 1,
		Storage: v1alpha1.EtcdStorage{StorageClassName: new("fast"), Size: resource.MustParse("1Gi")}}
	store.Status.StoreUID, store.Status.PlacementInitialized = string(store.UID), true
	long := metav1.NewTime(goldenNow.Add(-time.Hour))
	for _, kind := range []string{v1alpha1.ConditionAvailable, v1alpha1.ConditionPlacementReady, v1alpha1.ConditionReady} {
		store.Status.Conditions = append(store.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue,
			Reason: "Ready", LastTransitionTime: long})
	}
	s := &scene{store: store}
	s.pool("ssd", v1alpha1.ShardServing, v1alpha1.ShardServing)
	groups := map[string]string{}
	for n := range 8 {
		groups[fmt.Sprint(n)] = fmt.Sprintf("ssd-%d", n/4)
	}
	s.view = fleettest.View(1, "ssd-0 ssd-1", groups)
	return s
}

// pool adds a pool whose controller has observed its shards in these states.
func (s *scene) pool(name string, states ...v1alpha1.ShardState) *v1alpha1.ShardPool {
	pool := fleettest.PoolOf(name, int32(len(states)), states...)
	pool.Spec.StoreRef.Name, pool.UID = "quotes", types.UID("pool-"+name)
	pool.CreationTimestamp = metav1.NewTime(goldenNow.Add(-time.Hour))
	pool.Status.Shards, pool.Status.Updated = int32(len(states)), int32(len(states))
	pool.Status.Records, pool.Status.StoredBytes = 1000, 1<<20
	for n := range pool.Status.ShardStatuses {
		pool.Status.ShardStatuses[n].Node = fmt.Sprintf("n%d", n)
		pool.Status.ShardStatuses[n].Version = "v1"
	}
	step.SetTrue(&pool.Status.Conditions, 1, v1alpha1.ConditionReady, "Ready", "all shards serve")
	step.SetTrue(&pool.Status.Conditions, 1, v1alpha1.ConditionLoaded, "Loaded", "all groups are loaded")
	s.pools = append(s.pools, pool)
	return &s.pools[len(s.pools)-1]
}

// copies returns a scene of a store with three copies of each of two groups.
func copies(shards string, groups map[string]string, states ...v1alpha1.ShardState) *scene {
	s := newScene()
	s.pools = nil
	s.pool("ssd", states...)
	s.store.Spec.Replication.Copies = 3
	s.view = fleettest.View(3, shards, groups)
	return s
}

// three creates the pods of an etcd of three members from texts such as "ready", "none" or "ended: last words".
func (s *scene) three(words ...string) *scene {
	s.store.Spec.Etcd.Managed.Members = 3
	s.member = func(n int32, pod *corev1.Pod) bool {
		word, message, ended := strings.Cut(words[n], ": ")
		if word != "ready" {
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
			pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Image: "sheaf:1"}
		}
		if ended {
			pod.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1,
				Message: message}
		}
		return word != "none"
	}
	return s
}

// play performs the actions of the controllers of Kubernetes and of the kubelets between two reconciles.
func (s *scene) play(ctx context.Context) error {
	var deployment appsv1.Deployment
	key := types.NamespacedName{Namespace: "prod", Name: workload.Gateway("quotes")}
	if err := s.c.Get(ctx, key, &deployment); err == nil {
		wanted := *deployment.Spec.Replicas
		deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: wanted,
			UpdatedReplicas: wanted, ReadyReplicas: wanted, AvailableReplicas: wanted}
		if s.gateway != nil {
			s.gateway(&deployment)
		}
		if err := s.c.Status().Update(ctx, &deployment); err != nil {
			return err
		}
	}
	var set appsv1.StatefulSet
	if err := s.c.Get(ctx, types.NamespacedName{Namespace: "prod", Name: workload.Etcd("quotes")}, &set); err != nil {
		return client.IgnoreNotFound(err)
	}
	for n := range *set.Spec.Replicas {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: workload.EtcdMember("quotes", n),
			Labels: set.Spec.Template.Labels, Annotations: set.Spec.Template.Annotations,
			CreationTimestamp: metav1.NewTime(goldenNow.Add(-time.Hour))}, Spec: set.Spec.Template.Spec}
		pod.Spec.NodeName, pod.Status.Phase, pod.Status.PodIP = "n1", corev1.PodRunning, fmt.Sprintf("10.0.0.%d", n)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(goldenNow.Add(-time.Minute))}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Image: "sheaf:1",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		if s.member != nil && !s.member(n, pod) {
			continue
		}
		if err := s.c.Create(ctx, pod); client.IgnoreAlreadyExists(err) != nil {
			return err
		}
	}
	return nil
}

// goldenKinds returns the kinds that the fake client supports, and the type converter that it needs to merge their
// fields.
var goldenKinds = sync.OnceValues(func() (*runtime.Scheme, managedfields.TypeConverter) {
	scheme := runtime.NewScheme()
	err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), policyv1.AddToScheme(scheme),
		networkingv1.AddToScheme(scheme), storagev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	if err != nil {
		panic(err)
	}
	return scheme, applyconfigurations.NewTypeConverter(clientgoscheme.Scheme)
})

func (s *scene) client() {
	scheme, types := goldenKinds()
	objects := append(slices.Clone(s.objects), s.store)
	for n := range s.pools {
		objects = append(objects, &s.pools[n])
	}
	for n := range s.gateways {
		objects = append(objects, &s.gateways[n])
	}
	note := func(verb string, o client.Object) {
		s.writes = append(s.writes, fmt.Sprintf("%s %T %s", verb, o, client.ObjectKeyFromObject(o)))
	}
	s.c = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithTypeConverters(types, managedfields.NewDeducedTypeConverter()).
		WithReturnManagedFields().
		WithStatusSubresource(&v1alpha1.RecordStore{}, &v1alpha1.ShardPool{}, &appsv1.Deployment{}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if events, ok := list.(*corev1.EventList); ok { // the fake client cannot select by field
					events.Items = s.warnings
					return nil
				}
				return c.List(ctx, list, opts...)
			},
			Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration,
				opts ...client.ApplyOption) error {
				u := o.(interface {
					GetKind() string
					GetName() string
					GetNamespace() string
				})
				if u.GetKind() == s.refuse {
					return apierrors.NewInvalid(schema.GroupKind{Kind: u.GetKind()}, u.GetName(), nil)
				}
				s.writes = append(s.writes, fmt.Sprintf("apply %s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName()))
				return c.Apply(ctx, o, opts...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				note("delete", o)
				return c.Delete(ctx, o, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
				opts ...client.PatchOption) error {
				if _, ok := o.(*v1alpha1.RecordStore); ok {
					note("patch", o)
				}
				return c.Patch(ctx, o, patch, opts...)
			},
		}).Build()
}

// run reconciles the store, and returns its status and all other actions, as text.
func (s *scene) run(t *testing.T) string {
	t.Helper()
	ctx := t.Context()
	s.client()
	r := &recordstore.Reconciler{Client: s.c, Live: s.c, Events: s, Placements: s, Groups: &s.groups, Grants: &s.grants,
		Sources: s, Image: "sheaf:1", ArchiveImage: "sheaf-archive:1", Now: func() time.Time { return goldenNow }}
	if s.refuse == "NetworkPolicy" {
		// In the other scenes, the operator does not know its namespace and creates no NetworkPolicies, because the fake
		// client cannot merge them.
		r.Namespace = "sheaf-system"
	}
	if s.tls != nil {
		s.keeper = &trust.Keeper{Client: s.c, Live: s.c, Now: r.Now}
		r.Trust, r.Transports = s.keeper, s
	}
	key := client.ObjectKeyFromObject(s.store)
	var out strings.Builder
	if s.rounds == 0 {
		s.rounds = 3
	}
	for n := range s.rounds {
		result, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: key})
		if n == s.rounds-1 {
			fmt.Fprintf(&out, "again: %v\nerror: %v\n", result.RequeueAfter, err)
		}
		must.OK(t, s.play(ctx))
		if s.between != nil {
			must.OK(t, s.between(ctx, s.c, n))
		}
	}
	var live v1alpha1.RecordStore
	must.OK(t, s.c.Get(ctx, key, &live))
	slices.SortFunc(live.Status.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	for n := range live.Status.Conditions {
		live.Status.Conditions[n].LastTransitionTime = metav1.Time{}
	}
	if tls := live.Status.TLS; tls != nil {
		for _, hash := range []*string{&tls.Bundle, &tls.ClientBundle} {
			*hash = fmt.Sprintf("%d digits", len(*hash))
		}
	}
	status, err := yaml.Marshal(live.Status)
	must.OK(t, err)
	out.WriteString("status:\n" + indented(string(status)))
	out.WriteString("events:\n" + indented(strings.Join(s.events, "\n")))
	out.WriteString("writes, but for statuses:\n" + indented(strings.Join(s.writes, "\n")))
	return out.String()
}

func indented(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
	}
	return strings.ReplaceAll(out.String(), "lastTransitionTime: null\n", "")
}

// TestStatusGolden compares the status, the events, the writes and the pause of each scene with a golden file. Run the
// test with -rewrite after an intended change, and review the difference.
func TestStatusGolden(t *testing.T) {
	t.Setenv("TZ", "UTC")
	for name, s := range scenes() {
		t.Run(name, func(t *testing.T) {
			got := s().run(t)
			file := filepath.Join("testdata", "status", strings.ReplaceAll(name, " ", "-")+".golden")
			if *rewrite {
				must.OK(t, os.WriteFile(file, []byte(got), 0o600))
			}
			want, err := os.ReadFile(file)
			must.OK(t, err)
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
