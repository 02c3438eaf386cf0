package recordstore

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// storeFigures holds the Prometheus values of one store.
type storeFigures struct {
	conditions           map[string]bool // does not contain conditions that are Unknown
	groups               v1alpha1.GroupCounts
	shards               v1alpha1.ShardCounts
	gateways             *readyCount // nil if not observed yet
	etcd                 *readyCount // nil if not observed yet, or if the etcd is not managed
	records, storedBytes int64
	copyingBytes         *int64 // nil if the shards have not been asked yet
	// certificateEnds is the earliest expiry of a certificate in use, in Unix seconds. It is 0 if no process has
	// reported one.
	certificateEnds float64
	// processes has the number of running processes, and the number of those that use the transport and authorities
	// recorded for them. It is nil if the processes were not asked.
	processes    *readyCount
	poolsStalled int // pools that need an administrator
}

// readyCount says how many objects are wanted, and how many of them are ready.
type readyCount struct{ wanted, ready int32 }

// storeMetrics exports the existing stores to Prometheus. Safe for concurrent use.
type storeMetrics struct {
	mu     sync.Mutex
	stores map[types.NamespacedName]storeFigures
}

// storeSeries holds the series of all stores that this operator manages.
var storeSeries = &storeMetrics{stores: map[types.NamespacedName]storeFigures{}}

func init() { metrics.Registry.MustRegister(storeSeries) }

var storeLabels = []string{"namespace", "store"}

func storeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sheaf_store_"+name, help, append(append([]string{}, storeLabels...), labels...), nil)
}

var (
	descCondition = storeDesc("condition",
		"1 where the condition of a RecordStore is True, 0 where it is False; absent where it is unknown.", "condition")
	descGroups   = storeDesc("groups", "Groups of a store by state, as its status counts them.", "state")
	descShards   = storeDesc("shards", "Shards of a store by state, as its status counts them.", "state")
	descGateways = storeDesc("gateways", "Gateways of a store, wanted and ready.", "state")
	descEtcd     = storeDesc("etcd_members", "Members of a store's managed etcd, wanted and ready.", "state")
	descRecords  = storeDesc("records", "Records of a store, each counted once.")
	descStored   = storeDesc("stored_bytes", "Bytes of all copies of all groups of a store on their volumes.")
	descStalled  = storeDesc("stalled_pools",
		"ShardPools of a store that wait for a person: those whose condition Stalled is True.")
	descCertEnds = storeDesc("tls_certificate_not_after_timestamp_seconds",
		"When the first of the certificates ends that processes of a store have in use.")
	descProcesses = storeDesc("tls_processes",
		"Processes of a store that run, and those of them that use the transport and authorities that they were given.",
		"state")
	descCopying = storeDesc("copying_bytes", "Bytes that are still to come of copies that are being made.")
)

// Describe implements prometheus.Collector.
func (m *storeMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCondition, descGroups, descShards, descGateways, descEtcd, descRecords,
		descStored, descStalled, descCopying, descCertEnds, descProcesses} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *storeMetrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, f := range m.stores {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value,
				append([]string{key.Namespace, key.Name}, labels...)...)
		}
		for kind, truth := range f.conditions {
			value := 0.0
			if truth {
				value = 1
			}
			gauge(descCondition, value, kind)
		}
		for state, n := range map[string]int32{
			"total": f.groups.Total, "serving": f.groups.Serving, "loading": f.groups.Loading, "degraded": f.groups.Degraded,
			"damaged": f.groups.Damaged, "dataLost": f.groups.DataLost, "moving": f.groups.Moving,
		} {
			gauge(descGroups, float64(n), state)
		}
		for state, n := range map[string]int32{"total": f.shards.Total, "serving": f.shards.Serving,
			"loading": f.shards.Loading, "updated": f.shards.Updated} {
			gauge(descShards, float64(n), state)
		}
		for d, count := range map[*prometheus.Desc]*readyCount{descGateways: f.gateways, descEtcd: f.etcd} {
			if count != nil {
				gauge(d, float64(count.wanted), "wanted")
				gauge(d, float64(count.ready), "ready")
			}
		}
		gauge(descRecords, float64(f.records))
		gauge(descStored, float64(f.storedBytes))
		gauge(descStalled, float64(f.poolsStalled))
		if f.certificateEnds > 0 {
			gauge(descCertEnds, f.certificateEnds)
		}
		if f.processes != nil {
			gauge(descProcesses, float64(f.processes.wanted), "running")
			gauge(descProcesses, float64(f.processes.ready), "as_told")
		}
		if f.copyingBytes != nil {
			gauge(descCopying, float64(*f.copyingBytes))
		}
	}
}

// observe records what a reconcile has observed about a store. Values that the reconcile did not determine remain
// unchanged.
func (m *storeMetrics) observe(seen *observed) {
	store := seen.store
	key, status := types.NamespacedName{Namespace: store.Namespace, Name: store.Name}, store.Status
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.stores[key]
	f.conditions = map[string]bool{}
	for _, c := range status.Conditions {
		if c.Status != metav1.ConditionUnknown {
			f.conditions[c.Type] = c.Status == metav1.ConditionTrue
		}
	}
	f.groups, f.shards, f.records, f.storedBytes = status.Groups, status.Shards, status.Records, status.StoredBytes
	if seen.hasPools {
		f.poolsStalled = 0
		for n := range seen.pools {
			if meta.IsStatusConditionTrue(seen.pools[n].Status.Conditions, v1alpha1.ConditionStalled) {
				f.poolsStalled++
			}
		}
	}
	if seen.gateway != nil {
		f.gateways = &readyCount{wanted: workload.GatewayReplicas(store), ready: seen.gateway.Status.AvailableReplicas}
	}
	if store.Spec.Etcd.Managed != nil && seen.etcdImage != "" { // this reconcile has listed the pods of etcd
		f.etcd = &readyCount{wanted: workload.EtcdMembers(store)}
		for n := range seen.etcdPods {
			if workload.PodReady(&seen.etcdPods[n]) {
				f.etcd.ready++
			}
		}
	}
	if tls := status.TLS; tls != nil && seen.transport != nil {
		f.processes, f.certificateEnds = &readyCount{wanted: tls.Processes, ready: tls.Reported}, 0
		if tls.NotAfter != nil {
			f.certificateEnds = float64(tls.NotAfter.Unix())
		}
	}
	if seen.reported.Known {
		f.copyingBytes = &seen.reported.CopyingBytes
	}
	m.stores[key] = f
}

func (m *storeMetrics) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.stores, key)
}
