// Package observed is what a reconcile saw of a pool and of each of its shards, and the state of a shard that follows
// from it. It is pure: who gathers fills these types in, and afterwards nobody changes them.
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
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Pool is everything that was seen of one pool. The maps are by the number of a shard.
type Pool struct {
	// Pool as it was read. What a reconcile writes to its annotations is in it at once.
	Pool  *v1alpha1.ShardPool
	Store *v1alpha1.RecordStore
	Image string // that the shards are to run

	Sets    map[int32]*appsv1.StatefulSet
	Pods    map[int32]*corev1.Pod
	Claims  map[int32]*corev1.PersistentVolumeClaim
	Objects map[int32]*v1alpha1.Shard      // Shards that are called after the pool and their number
	Last    map[int32]v1alpha1.ShardStatus // all shards, as they were seen last
	// Misnamed are Shards that name the pool and are not called after it and a number: somebody has made them.
	Misnamed []*v1alpha1.Shard
	Silent   map[string]bool // shards of the namespace whose disk did not answer, by name

	Device *v1alpha1.DeviceRate // what a Job has measured of the pool's class; nil: none did
	Plan   fleet.NumbersPlan
	Shards []*Shard // those of the plan that are to be there, in the order of plan.All
}

// Numbers of the shards that exist, or existed when their status was written last; ascending.
func (p *Pool) Numbers() []int32 {
	numbers := slices.Collect(maps.Keys(p.Sets))
	numbers = slices.AppendSeq(numbers, maps.Keys(p.Last))
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// Shard is everything that was seen of one shard. Each part may be missing.
type Shard struct {
	Name   string
	Number int32
	Parked bool // spec.parked names it
	Leaves bool // it is to be removed

	Set          *appsv1.StatefulSet
	Wanted       *appsv1.StatefulSet // as the set is to be
	Pod          *corev1.Pod
	Claim        *corev1.PersistentVolumeClaim
	Volume       *corev1.PersistentVolume
	Node         *corev1.Node // of the pod, else of the local volume
	NodeName     string       // empty: not known yet
	ClassMissing bool         // the StorageClass does not exist
	Refused      string       // why it is not made: its class makes another file system than asked for; empty: it is
	ClassName    string
	Events       []string // what the kubelet or the StatefulSet controller complained about, newest first

	Report    *fleet.ShardReport
	ReportErr error
	// EtcdTrouble is what the store says of its etcd; nil: nothing.
	EtcdTrouble *metav1.Condition

	Last       v1alpha1.ShardStatus // what status said before
	Forget     []string             // volumes that a person gave up
	StoreUID   string
	Copies     int32  // of each group
	Template   string // hash of the wanted pod template
	Now        time.Time
	DeviceRate int64 // bytes per second of a disk of the class, as a Job has measured it; 0: none did
	MessageMax int
}

// Forgotten says whether a person gave this volume up.
func (o *Shard) Forgotten(uuid string) bool {
	return uuid != "" && slices.ContainsFunc(o.Forget, func(f string) bool { return strings.EqualFold(f, uuid) })
}

// Outdated says whether the shard's pod has to be made anew: its template is another one, or it was started for a
// volume that a person has given up since.
func (o *Shard) Outdated() bool {
	if o.Pod == nil || o.Pod.DeletionTimestamp != nil || o.Parked {
		return false
	}
	return o.Pod.Annotations[workload.AnnotationTemplate] != o.Template ||
		o.Forgotten(o.Pod.Annotations[workload.AnnotationVolume])
}
