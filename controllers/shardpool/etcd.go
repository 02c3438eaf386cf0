package shardpool

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"sheaf.dev/sheaf/controllers/step"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// etcdTroubleOf is what the store says of its etcd or of the placement there, where shards that start have to wait for
// it; nil: nothing.
func etcdTroubleOf(store *v1alpha1.RecordStore) *metav1.Condition {
	for _, kind := range []string{v1alpha1.ConditionEtcdReady, v1alpha1.ConditionPlacementReady} {
		if c := meta.FindStatusCondition(store.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			return c
		}
	}
	return nil
}

// etcdReady takes over what the store says of its etcd: shards that start wait for it.
func (w *poolWork) etcdReady() {
	if w.store == nil {
		return
	}
	c := meta.FindStatusCondition(w.store.Status.Conditions, v1alpha1.ConditionEtcdReady)
	if c == nil {
		meta.RemoveStatusCondition(&w.pool.Status.Conditions, v1alpha1.ConditionEtcdReady)
		return
	}
	step.SetCondition(&w.pool.Status.Conditions, w.pool.Generation, v1alpha1.ConditionEtcdReady, c.Status, c.Reason,
		fmt.Sprintf("RecordStore %s: %s", w.store.Name, c.Message))
}

// awaitsEtcd says whether the shard runs and waits for etcd, of which its store says that it is not well.
func (o *observedShard) awaitsEtcd() bool {
	return o.EtcdTrouble != nil && o.Report != nil && o.Report.State == v1alpha1.ShardPending
}

// etcdWords are what the shard says, and what the store says to do about it.
func (o *observedShard) etcdWords() string {
	return fmt.Sprintf("%s. RecordStore, condition %s: %s", o.Report.Message, o.EtcdTrouble.Type, o.EtcdTrouble.Message)
}

// waitReason is the state of a shard, or what the store calls the trouble of its etcd where the shard waits for that.
func (w *poolWork) waitReason(s v1alpha1.ShardStatus) string {
	for _, o := range w.shards {
		if o.Number == s.Number && o.awaitsEtcd() {
			return o.EtcdTrouble.Reason
		}
	}
	return string(s.State)
}
