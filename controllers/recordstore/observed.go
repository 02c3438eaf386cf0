package recordstore

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// observed holds what one reconcile has observed about a store. The comment above a group of fields is the name of
// the step that sets them. Before that step, the fields have their zero values, and no later step changes them. The
// methods of observed do no I/O: they make decisions, and write the conditions and numbers of the new status.
type observed struct {
	store *v1alpha1.RecordStore // the store as it was read, but with the new status
	image string                // the image that the store should run

	// pools
	pools    []v1alpha1.ShardPool
	shards   fleet.Observed // the shards of all these pools
	hasPools bool
	first    firstPlacement
	reported fleet.GroupSum // the reports of the shards about the groups of the store
	keeps    bool           // the status was written too recently to write changes of numbers alone

	// secret
	access workload.EtcdAccess

	// certificates
	transport *reportedTransport
	source    *trust.Found // the source of the certificates; nil if it is the operator

	// restore source
	restore observedRestore

	// gateway objects
	gateway *appsv1.Deployment
	trouble string // ": " and the reason why a gateway does not run; empty if no reason is known

	// etcd objects
	etcdPods  []corev1.Pod
	etcdImage string
	// etcdHasTLS is true if the current StatefulSet gives the members certificates.
	etcdHasTLS bool

	// etcd members (the step "etcd ready" later adds what healthy members report about the others)
	members []*observedMember // the members of a managed etcd

	// plan
	places    fleet.Places // the content of etcd when the plan was made
	hasPlaces bool
}
