package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Shard reports what the operator observed about one shard of a ShardPool. It is only a report: only the operator
// creates, changes and deletes Shards. If you delete a Shard, the operator creates it again, and nothing happens to the
// shard itself. The spec of the ShardPool says how a shard should be.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=shd,categories=sheaf
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="Groups",type=integer,JSONPath=`.status.groups`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.servingGroups`
// +kubebuilder:printcolumn:name="Load",type=string,JSONPath=`.status.load`
// +kubebuilder:printcolumn:name="Records",type=integer,JSONPath=`.status.records`,priority=1
// +kubebuilder:printcolumn:name="Stored",type=integer,JSONPath=`.status.storedBytes`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Shard struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says which shard this is. Only the operator writes it, and it cannot be changed.
	// +required
	Spec ShardSpec `json:"spec"`
	// Status is what the operator observed about the shard. The operator writes it immediately when the state of the
	// shard changes, and otherwise at most every 30 s.
	// +optional
	Status ShardStatus `json:"status,omitzero"`
}

// ShardList is a list of Shards.
// +kubebuilder:object:root=true
type ShardList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Shard `json:"items"`
}

// ShardSpec identifies the shard that a Shard object describes. Only the operator writes it, and it cannot be changed.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec of a Shard cannot be changed, it only says which shard this is: change the spec of its ShardPool instead"
type ShardSpec struct {
	// Pool is the name of the ShardPool, in this namespace, that the shard belongs to.
	// +required
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Pool string `json:"pool"`
	// Number of the shard in its pool. Its StatefulSet has the name of this object: <pool>-<number>.
	// +required
	// +kubebuilder:validation:Minimum=0
	Number int32 `json:"number"`
}

// ShardStatusesMax is the maximum number of shards that a pool's status lists.
const ShardStatusesMax = 20

// ShardsOf returns the last observed state of every shard of a pool, ordered by shard number. It uses the given
// Shards, which may belong to any pools. It also uses the list in the pool's status if that list is complete, because
// an operator that does not know the kind Shard writes only that list.
func ShardsOf(pool *ShardPool, shards []Shard) []ShardStatus {
	var seen []ShardStatus
	known := map[int32]bool{}
	for i := range shards {
		if s := &shards[i]; s.Of(pool) && s.Status.State != "" {
			status := s.Status
			status.Name, status.Number = s.Name, s.Spec.Number
			seen, known[s.Spec.Number] = append(seen, status), true
		}
	}
	if list := pool.Status.ShardStatuses; len(list) < ShardStatusesMax || len(list) == int(pool.Status.Shards) {
		for _, s := range list {
			if !known[s.Number] {
				seen = append(seen, s)
			}
		}
	}
	slices.SortFunc(seen, func(a, b ShardStatus) int { return cmp.Compare(a.Number, b.Number) })
	return seen
}

// Of reports whether a Shard describes a shard of this pool. A Shard of an earlier pool of the same name does not, and
// neither does a Shard that somebody created by hand with another name.
func (s *Shard) Of(pool *ShardPool) bool {
	owner := metav1.GetControllerOf(s)
	return s.Namespace == pool.Namespace && s.Spec.Pool == pool.Name &&
		s.Name == fmt.Sprintf("%s-%d", pool.Name, s.Spec.Number) && (owner == nil || owner.UID == pool.UID)
}
