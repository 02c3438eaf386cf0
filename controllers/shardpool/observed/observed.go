// Package observed holds the observations of a reconcile about a pool and its shards, and derives the state of each
// shard. It does no I/O: the caller fills in these types, and nothing changes them afterwards.
package observed

import (
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Pool holds everything that was observed about one pool. The maps are keyed by shard number.
type Pool struct {
	// Pool is the pool as it was read. Annotations that the reconcile writes appear in it immediately.
	Pool  *v1alpha1.ShardPool
	Store *v1alpha1.RecordStore
	Image string // the image that the shards should run
	// HoldBytes is how much history each shard keeps for the store's archive. If it is 0, the shard decides.
	HoldBytes int64

	Sets    map[int32]*appsv1.StatefulSet
	Pods    map[int32]*corev1.Pod
	Claims  map[int32]*corev1.PersistentVolumeClaim
	Objects map[int32]*v1alpha1.Shard      // the Shards whose names match the pool and their numbers
	Last    map[int32]v1alpha1.ShardStatus // the last observed status of each shard
	// Misnamed are Shards that refer to the pool, but are not named after the pool and their number. The operator did
	// not create them.
	Misnamed []*v1alpha1.Shard
	// Silent holds the names of the shards in the namespace whose disk did not answer.
	Silent map[string]bool

	Device *v1alpha1.DeviceRate // rate that a Job has measured for the pool's StorageClass; nil if there was no such Job
	Plan   fleet.NumbersPlan
	Shards []*Shard // the planned shards, in the order of plan.All
}

// Numbers returns, in ascending order, the numbers of the shards that exist, or existed when their status was last
// written.
func (p *Pool) Numbers() []int32 {
	numbers := slices.Collect(maps.Keys(p.Sets))
	numbers = slices.AppendSeq(numbers, maps.Keys(p.Last))
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// Shard holds everything that was observed about one shard. Each part may be missing.
type Shard struct {
	Name   string
	Number int32
	Parked bool // spec.parked lists the shard
	Leaves bool // the shard has to be removed

	Set          *appsv1.StatefulSet
	Wanted       *appsv1.StatefulSet // the wanted StatefulSet
	Pod          *corev1.Pod
	Claim        *corev1.PersistentVolumeClaim
	Volume       *corev1.PersistentVolume
	Node         *corev1.Node // the node of the pod or, without a pod, of the local volume
	NodeName     string       // empty if the node is not known yet
	ClassMissing bool         // the StorageClass does not exist
	// Refused says why the shard is not created: its class creates a file system other than the one in the spec. If it
	// is empty, the shard is created.
	Refused   string
	ClassName string
	// Events are the warnings of the kubelet or the StatefulSet controller, the newest first.
	Events []string

	Report    *recordv1.ShardStatus
	ReportErr error
	// EtcdTrouble is the problem that the store reports about its etcd, or nil if there is none.
	EtcdTrouble *metav1.Condition

	Last     v1alpha1.ShardStatus // the previous status
	Forget   []string             // volumes that an administrator has given up
	StoreUID string
	Copies   int32  // number of copies of each group
	Template string // hash of the wanted pod template
	Now      time.Time
	// DeviceRate is the rate, in bytes per second, that a Job has measured for a disk of the class. It is 0 if no Job
	// has measured one.
	DeviceRate int64
	MessageMax int
}

// Forgotten reports whether an administrator has given up this volume.
func (o *Shard) Forgotten(uuid string) bool {
	return uuid != "" && slices.ContainsFunc(o.Forget, func(f string) bool { return strings.EqualFold(f, uuid) })
}

// Outdated reports whether the shard's pod has to be recreated, because its template differs from the wanted one, or
// because it was started for a volume that an administrator has given up since then.
func (o *Shard) Outdated() bool {
	if o.Pod == nil || o.Pod.DeletionTimestamp != nil || o.Parked {
		return false
	}
	return o.Pod.Annotations[workload.AnnotationTemplate] != o.Template ||
		o.Forgotten(o.Pod.Annotations[workload.AnnotationVolume])
}
