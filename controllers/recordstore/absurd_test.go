package recordstore

import (
	"cmp"
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// Whatever etcd, shards and pools report, each decision about a store has a reason and a message, and the API server
// accepts the status.
func TestAbsurdFactsAboutAStoreHaveAnOutcome(t *testing.T) {
	words := []string{"ssd", "ssd-0", "ssd-1", "1", "2", "True", "False", v1alpha1.ConditionReady,
		v1alpha1.ConditionPlacementReady, v1alpha1.ConditionLoaded, string(v1alpha1.ShardServing),
		string(v1alpha1.ShardDiskLost), string(v1alpha1.ShardLoading), string(v1alpha1.RoutingNamed), fleet.GroupDegraded}
	statuses := []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown}
	names := []string{"ssd", "hdd", "other"} // names are unique
	fleettest.Absurdly(t, words, func(a *fleettest.Absurd) {
		var in availableInput
		a.Fill(&in.routing)
		a.Fill(&in.groups)
		a.Fill(&in.shards)
		a.Fill(&in.gateways)
		a.Fill(&in.wanted)
		a.Fill(&in.before)
		a.Fill(&in.unasked)
		if got := decideAvailable(in); got.available == "" || got.reason == "" || got.message == "" {
			t.Fatalf("available: %+v", got)
		}
		var (
			places fleet.Places
			heard  fleet.GroupSum
			pools  []v1alpha1.ShardPool
			copies v1alpha1.Replication
			wanted int32
			store  v1alpha1.RecordStore
		)
		for _, into := range []any{&places, &heard, &pools, &copies, &wanted, &store} {
			a.Fill(into)
		}
		if got := decideRedundancy(&places, copies, wanted); got.reason == "" || got.message == "" {
			t.Fatalf("redundant: %+v", got)
		}
		seen := fleet.Observed{}
		for i := range pools {
			pools[i].Name = names[i]
			// The API server accepts only True, False and Unknown as the status of a condition, and requires a reason.
			for j := range pools[i].Status.Conditions {
				c := &pools[i].Status.Conditions[j]
				c.Status, c.Reason = statuses[a.IntN(len(statuses))], cmp.Or(c.Reason, "Odd")
			}
			var shards []v1alpha1.ShardStatus
			a.Fill(&shards)
			seen[client.ObjectKeyFromObject(&pools[i])] = shards
		}
		members := make([]*observedMember, a.IntN(3))
		for i := range members {
			members[i] = &observedMember{}
			a.Fill(members[i])
		}
		_, _ = disruptable(&places, seen.ByName()), fleet.ShardStates(pools, seen)
		if _, err := emptied(&places, seen.ByName(), func(string) (bool, error) { return true, nil }); err != nil {
			t.Fatal(err)
		}
		_ = etcdState(&store)
		run := &observed{store: &store, pools: pools, shards: seen, hasPools: a.IntN(4) > 0, places: places,
			hasPlaces: a.IntN(2) > 0, reported: heard, keeps: a.IntN(2) > 0, members: members,
			first: decideFirst(&store, pools, time.Unix(int64(a.IntN(1<<40)), 0), time.Unix(0, 0))}
		a.Fill(&run.gateway)
		store.Status.Conditions = nil // only the operator writes the conditions of a store, so they are not absurd
		out := run.awaitPools()
		if run.gateway != nil && out.IsComplete() {
			out = run.awaitGateway()
		}
		if !out.IsComplete() && (out.Reason() == "" || out.Message() == "") {
			t.Fatalf("an outcome without a reason: %+v", out)
		}
		run.setEtcdRedundant()
		run.summarize(nil, out)
		if _, err := json.Marshal(store.Status); err != nil || len(store.Status.Groups.NotWell) > 20 {
			t.Fatalf("%v: %+v", err, store.Status.Groups)
		}
		for _, c := range store.Status.Conditions {
			if c.Status == "" || c.Reason == "" || len(c.Message) > step.MessageMax || !utf8.ValidString(c.Message) {
				t.Fatalf("%s is %q for %q: %d bytes, valid: %t", c.Type, c.Status, c.Reason, len(c.Message),
					utf8.ValidString(c.Message))
			}
		}
	})
}
