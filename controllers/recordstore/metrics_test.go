package recordstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/test/must"
)

// seriesOf returns the samples of a collector, such as `groups{namespace="prod",state="total",store="quotes"} 4`.
func seriesOf(t *testing.T, c prometheus.Collector) (lines []string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	must.OK(t, registry.Register(c))
	families, err := registry.Gather()
	must.OK(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			lines = append(lines, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(family.GetName(), "sheaf_store_"),
				strings.Join(labels, ","), m.GetGauge().GetValue()))
		}
	}
	return lines
}

func TestStoreMetricsFollowTheStatusAndGoWithTheStore(t *testing.T) {
	m := &storeMetrics{stores: map[types.NamespacedName]storeFigures{}}
	run := &observed{store: testStore(), gateway: &appsv1.Deployment{}, etcdImage: "sheaf:1"}
	run.etcdPods = etcdPods(metav1.Now().Time, "0 ready", "1 crashed", "2 ready")
	run.gateway.Status.AvailableReplicas = 1
	status := &run.store.Status
	status.Groups, status.Shards = v1alpha1.GroupCounts{Total: 4, Serving: 3, Degraded: 1, Moving: 2},
		v1alpha1.ShardCounts{Total: 3, Serving: 2}
	status.Records, status.StoredBytes = 100, 2000
	step.SetTrue(&status.Conditions, 1, v1alpha1.ConditionAvailable, "A", "")
	step.SetFalse(&status.Conditions, 1, v1alpha1.ConditionReady, "B", "")
	step.SetCondition(&status.Conditions, 1, v1alpha1.ConditionRedundant, metav1.ConditionUnknown, "C", "")
	run.hasPools, run.pools = true, make([]v1alpha1.ShardPool, 3)
	for n, stalled := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionTrue} {
		step.SetCondition(&run.pools[n].Status.Conditions, 1, v1alpha1.ConditionStalled, stalled, "D", "")
	}
	run.reported = fleet.GroupSum{Known: true, CopyingBytes: 77}
	status.TLS = &v1alpha1.TLSStatus{Processes: 7, Reported: 6, NotAfter: &metav1.Time{Time: time.Unix(1<<31, 0)}}
	run.transport = &reportedTransport{}
	m.observe(run)
	got := seriesOf(t, m)
	const of = `namespace="prod",`
	for _, want := range []string{
		`condition{condition="Available",` + of + `store="quotes"} 1`,
		`condition{condition="Ready",` + of + `store="quotes"} 0`,
		`groups{` + of + `state="total",store="quotes"} 4`, `groups{` + of + `state="serving",store="quotes"} 3`,
		`groups{` + of + `state="moving",store="quotes"} 2`, `shards{` + of + `state="serving",store="quotes"} 2`,
		`etcd_members{` + of + `state="wanted",store="quotes"} 3`, `etcd_members{` + of + `state="ready",store="quotes"} 2`,
		`gateways{` + of + `state="ready",store="quotes"} 1`, `records{` + of + `store="quotes"} 100`,
		`stored_bytes{` + of + `store="quotes"} 2000`,
		`tls_processes{` + of + `state="running",store="quotes"} 7`,
		`tls_processes{` + of + `state="as_told",store="quotes"} 6`,
		`tls_certificate_not_after_timestamp_seconds{` + of + `store="quotes"} 2.147483648e+09`,
		`copying_bytes{` + of + `store="quotes"} 77`, `stalled_pools{` + of + `store="quotes"} 2`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(got, "\n"))
		}
	}
	if strings.Contains(strings.Join(got, "\n"), "Redundant") {
		t.Error("what is unknown has a value")
	}
	// A reconcile that stops before it reads the pools and etcd removes no series.
	run.etcdImage, run.etcdPods, run.gateway, run.hasPools, run.pools = "", nil, nil, false, nil
	m.observe(run)
	if now := seriesOf(t, m); !slices.Equal(now, got) {
		t.Errorf("%q, want %q", now, got)
	}
	m.forget(types.NamespacedName{Namespace: "prod", Name: "quotes"})
	if got := seriesOf(t, m); len(got) != 0 {
		t.Errorf("a store that is gone has series: %q", got)
	}
}
