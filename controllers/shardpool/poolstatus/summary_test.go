package poolstatus

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
)

// shardsIn returns shards 0, 1, ... of pool "ssd" in these states.
func shardsIn(states ...v1alpha1.ShardState) *Found {
	f := &Found{Seen: &observed.Pool{Pool: &v1alpha1.ShardPool{}, Store: &v1alpha1.RecordStore{}}}
	for n, state := range states {
		name := "ssd-" + string(rune('0'+n))
		f.Seen.Shards = append(f.Seen.Shards, &observed.Shard{Name: name, Number: int32(n),
			Parked: state == v1alpha1.ShardParked})
		f.Statuses = append(f.Statuses, v1alpha1.ShardStatus{Name: name, Number: int32(n), State: state, Message: "m"})
	}
	return f
}

func TestSummary(t *testing.T) {
	const serving, lost, pending = v1alpha1.ShardServing, v1alpha1.ShardDiskLost, v1alpha1.ShardPending
	for name, c := range map[string]struct {
		states  []v1alpha1.ShardState
		notes   step.Notes
		reason  string // empty if the outcome is complete
		says    string
		stalled bool
		after   bool // whether another reconcile is requested soon
	}{
		"all serve": {[]v1alpha1.ShardState{serving, v1alpha1.ShardDraining, v1alpha1.ShardParked}, nil, "", "",
			false, false},
		"one starts": {[]v1alpha1.ShardState{serving, pending}, nil, "Pending", "shard ssd-1 is Pending: m", false,
			true},
		"one needs a person": {[]v1alpha1.ShardState{pending, lost}, nil, "DiskLost",
			"shard ssd-1 is DiskLost: m; shard ssd-0 is Pending: m", true, true},
		"no shards": {nil, nil, fleet.ReasonNoShards, "spec.shards is 0", false, false},
		"all parked": {[]v1alpha1.ShardState{v1alpha1.ShardParked}, nil, fleet.ReasonAllParked,
			"names the only shard: none serves", false, false},
		"a step waits": {[]v1alpha1.ShardState{serving}, step.Notes{step.Wait("Resizing", "grows", step.PauseShort)},
			"Resizing", "grows", false, true},
		"a step fails": {[]v1alpha1.ShardState{pending}, step.Notes{step.Fail("NameTaken", "by another")},
			"NameTaken", "by another", true, true},
		"a step has an error": {[]v1alpha1.ShardState{pending}, step.Notes{step.Retry(errors.New("no route"))}, "APIError",
			"no route", false, true},
		"the first step counts": {[]v1alpha1.ShardState{serving}, step.Notes{step.Wait("A", "a", 0), step.Wait("B", "b", 0)},
			"A", "a", false, false},
	} {
		f := shardsIn(c.states...)
		f.Notes = c.notes
		out := Summary(f)
		soon := out.After() > 0 && out.After() < step.PauseLong
		if out.Reason() != c.reason || !strings.Contains(out.Message(), c.says) || out.IsStalled() != c.stalled ||
			soon != c.after {
			t.Errorf("%s: %s %q, stalled %v, again after %v", name, out.Reason(), out.Message(), out.IsStalled(), out.After())
		}
	}
}

// The reason why a shard waits for etcd is taken from the store.
func TestSummaryNamesTheTroubleOfEtcd(t *testing.T) {
	f := shardsIn(v1alpha1.ShardPending)
	f.Seen.Shards[0].EtcdTrouble = &metav1.Condition{Type: v1alpha1.ConditionEtcdReady, Reason: "EtcdAway"}
	f.Seen.Shards[0].Report = &recordv1.ShardStatus{Shard: &recordv1.Shard{State: recordv1.ShardState_SHARD_STATE_PENDING}}
	if out := Summary(f); out.Reason() != "EtcdAway" {
		t.Errorf("reason %s", out.Reason())
	}
}

// A condition that no longer applies to the pool is removed. If no shard was observed, all conditions are kept.
func TestConditionsComeAndGo(t *testing.T) {
	find := func(status v1alpha1.ShardPoolStatus, kind string) *metav1.Condition {
		return meta.FindStatusCondition(status.Conditions, kind)
	}
	f := shardsIn(v1alpha1.ShardServing)
	pool, store := f.Seen.Pool, f.Seen.Store
	pool.Spec.State = v1alpha1.PoolDrained
	f.Held = map[string]int{"ssd-0": 3}
	f.Statuses[0].Groups = 2
	store.Name = "quotes"
	step.SetFalse(&store.Status.Conditions, 1, v1alpha1.ConditionEtcdReady, "NoQuorum", "one of three members answers")
	pool.Status = Of(pool, f, Summary(f))
	if c := find(pool.Status, v1alpha1.ConditionDrained); c == nil || c.Status != metav1.ConditionFalse ||
		c.Message != "shard ssd-0 holds 3 groups" {
		t.Errorf("drained: %+v", c)
	}
	if c := find(pool.Status, v1alpha1.ConditionEtcdReady); c == nil || c.Reason != "NoQuorum" ||
		c.Message != "RecordStore quotes: one of three members answers" {
		t.Errorf("etcd: %+v", c)
	}
	read, before := pool.Status.DeepCopy(), len(pool.Status.Conditions)
	if now := Of(pool, &Found{}, step.Wait("StoreNotFound", "there is none", 0)); len(now.Conditions) != before+1 ||
		find(now, v1alpha1.ConditionReconciling) == nil {
		t.Errorf("no shard was looked at: %d conditions, then %d", before, len(now.Conditions))
	}
	pool.Spec.State, store.Status.Conditions = v1alpha1.PoolActive, nil
	now := Of(pool, f, Summary(f))
	if c, etcd := find(now, v1alpha1.ConditionDrained), find(now, v1alpha1.ConditionEtcdReady); c != nil || etcd != nil {
		t.Errorf("they stay: %+v, %+v", c, etcd)
	}
	if !equality.Semantic.DeepEqual(&pool.Status, read) {
		t.Error("the pool that was handed in has changed")
	}
}
