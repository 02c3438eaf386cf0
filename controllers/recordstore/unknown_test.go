package recordstore

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// If no process could be asked about a condition, the condition is not True. The conditions that pools report are
// tested in package poolstatus, and TestRollUpCondition tests how a store combines them.
func TestUnobservedConditionIsNotTrue(t *testing.T) {
	placed := func(group string) func(*observed) {
		return func(run *observed) {
			groups := map[string]string{}
			if group != "" {
				groups["1"] = group
			}
			run.hasPlaces = true
			run.places = *fleettest.View(3, "a b c", groups)
			run.setRedundant()
		}
	}
	certificates := func(processes, upToDate int) func(*observed) {
		return func(run *observed) {
			run.store.Status.TLS = &v1alpha1.TLSStatus{}
			run.transport = &reportedTransport{reports: trust.Reports{Processes: processes, UpToDate: upToDate}}
			run.sayCertificates("", time.Now())
		}
	}
	grants := func(what fleet.GrantsInForce) func(*observed) {
		return func(run *observed) {
			book := &fleet.GrantBook{}
			book.Put(client.ObjectKeyFromObject(run.store), what)
			sayGrants(run.store, book)
		}
	}
	for name, c := range map[string]struct {
		kind   string
		set    func(*observed)
		status metav1.ConditionStatus
	}{
		"etcd was not asked":      {v1alpha1.ConditionRedundant, (*observed).setRedundant, metav1.ConditionUnknown},
		"no group is placed":      {v1alpha1.ConditionRedundant, placed(""), metav1.ConditionUnknown},
		"a group has its copies":  {v1alpha1.ConditionRedundant, placed("a b c"), metav1.ConditionTrue},
		"a group lacks a copy":    {v1alpha1.ConditionRedundant, placed("a b"), metav1.ConditionFalse},
		"no process runs":         {v1alpha1.ConditionCertificates, certificates(0, 0), metav1.ConditionUnknown},
		"no process answers":      {v1alpha1.ConditionCertificates, certificates(3, 0), metav1.ConditionUnknown},
		"a process has its files": {v1alpha1.ConditionCertificates, certificates(3, 1), metav1.ConditionTrue},
		"a table is not written": {v1alpha1.ConditionGrantsInForce,
			grants(fleet.GrantsInForce{Unknown: true, Reason: "APIError"}), metav1.ConditionUnknown},
		"a table is refused": {v1alpha1.ConditionGrantsInForce,
			grants(fleet.GrantsInForce{Reason: "TableRefused"}), metav1.ConditionFalse},
		"a table is in use": {v1alpha1.ConditionGrantsInForce,
			grants(fleet.GrantsInForce{Good: true, Reason: "InForce"}), metav1.ConditionTrue},
		"the pools are not read": {v1alpha1.ConditionAvailable, (*observed).setAvailable, ""},
	} {
		run := &observed{store: &v1alpha1.RecordStore{}}
		run.store.Spec.Replication.Copies = 3
		c.set(run)
		got := metav1.ConditionStatus("")
		if now := meta.FindStatusCondition(run.store.Status.Conditions, c.kind); now != nil {
			got = now.Status
		}
		if got != c.status {
			t.Errorf("%s: %s is %q, want %q", name, c.kind, got, c.status)
		}
	}
}
