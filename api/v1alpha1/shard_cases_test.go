package v1alpha1_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

var shardCases = []badCase{
	{field: "spec", value: nil, says: "Required value"},
	{field: "spec/pool", value: nil, says: "Required value"},
	{field: "spec/pool", value: "", says: "should match"},
	{field: "spec/pool", value: "Quotes", says: "should match"},
	{field: "spec/pool", value: letters(46), says: "may not be more than 45"},
	{field: "spec/pool", value: "another", update: true, at: "spec", says: "change the spec of its ShardPool instead"},
	{field: "spec/number", value: nil, says: "Required value"},
	{field: "spec/number", value: -1, says: "greater than or equal to 0"},
	{field: "spec/number", value: 1, update: true, at: "spec", says: "change the spec of its ShardPool instead"},
}

// shardOf returns a Shard object of the pool in state Serving.
func shardOf(pool *v1alpha1.ShardPool, n int32) v1alpha1.Shard {
	s := v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: pool.Name, Number: n}}
	s.Namespace, s.Name = pool.Namespace, fmt.Sprintf("%s-%d", pool.Name, n)
	owner := metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("ShardPool"))
	s.OwnerReferences = []metav1.OwnerReference{*owner}
	s.Status = v1alpha1.ShardStatus{Name: s.Name, Number: n, State: v1alpha1.ShardServing}
	return s
}

func TestShardsOf(t *testing.T) {
	newPool := func(shards int32, listed ...int32) *v1alpha1.ShardPool {
		pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "ssd", UID: "this"}}
		pool.Status.Shards = shards
		for _, n := range listed {
			pool.Status.ShardStatuses = append(pool.Status.ShardStatuses,
				v1alpha1.ShardStatus{Name: fmt.Sprintf("ssd-%d", n), Number: n, State: v1alpha1.ShardPending})
		}
		return pool
	}
	first := func(n int32) (numbers []int32) {
		for i := range n {
			numbers = append(numbers, i)
		}
		return numbers
	}
	earlier := newPool(2)
	earlier.UID = "earlier"
	elsewhere := newPool(2)
	elsewhere.Namespace = "test"
	misnamed := shardOf(newPool(2), 1)
	misnamed.Name = "by-hand"
	edited := shardOf(newPool(2), 1)
	edited.Status.Name, edited.Status.Number, edited.OwnerReferences = "ssd-7", 7, nil
	fresh := shardOf(newPool(2), 1)
	fresh.Status = v1alpha1.ShardStatus{}
	for name, c := range map[string]struct {
		pool   *v1alpha1.ShardPool
		shards []v1alpha1.Shard
		want   string
	}{
		"nothing": {newPool(0), nil, "[]"},
		"Shards come before the list": {newPool(2, 0, 1), []v1alpha1.Shard{shardOf(newPool(2), 1)},
			"[ssd-0 Pending ssd-1 Serving]"},
		"by number": {newPool(0), []v1alpha1.Shard{shardOf(newPool(2), 10),
			shardOf(newPool(2), 9)}, "[ssd-9 Serving ssd-10 Serving]"},
		"of an earlier pool":                    {newPool(0), []v1alpha1.Shard{shardOf(earlier, 1)}, "[]"},
		"of another namespace":                  {newPool(0), []v1alpha1.Shard{shardOf(elsewhere, 1)}, "[]"},
		"with another name":                     {newPool(0), []v1alpha1.Shard{misnamed}, "[]"},
		"name and number are those of the spec": {newPool(0), []v1alpha1.Shard{edited}, "[ssd-1 Serving]"},
		"not seen yet":                          {newPool(2, 0, 1), []v1alpha1.Shard{fresh}, "[ssd-0 Pending ssd-1 Pending]"},
	} {
		got := []string{}
		for _, s := range v1alpha1.ShardsOf(c.pool, c.shards) {
			got = append(got, s.Name, string(s.State))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	// ShardsOf uses the list in the pool's status only if the list is complete. An operator older than the kind Shard
	// lists every shard. A list with fewer items than the limit is complete, too.
	for _, c := range []struct {
		shards, listed, want int32
	}{{1000, 1000, 1000}, {1000, 20, 0}, {20, 20, 20}, {21, 20, 0}, {19, 19, 19}} {
		if got := v1alpha1.ShardsOf(newPool(c.shards, first(c.listed)...), nil); len(got) != int(c.want) {
			t.Errorf("%d of %d shards are listed: %d are seen, want %d", c.listed, c.shards, len(got), c.want)
		}
	}
}
