package quota

import (
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/security/access"
)

var (
	descLimit = prometheus.NewDesc("sheaf_tenant_quota_limit", "Limit of the tenant in the whole store, by quota.",
		[]string{"tenant", "quota"}, nil)
	descUsed = prometheus.NewDesc("sheaf_tenant_quota_used",
		"What the groups that this shard leads use of a quota: stored bytes, records, calls under way, their own number. "+
			"The sum over shards is what the tenant uses.",
		[]string{"tenant", "quota"}, nil)
	descPart = prometheus.NewDesc("sheaf_tenant_part",
		"Part of the tenant's groups that this shard leads, and of its rates that it gives, 0 to 1.", []string{"tenant"}, nil)
	descCalls = prometheus.NewDesc("sheaf_tenant_calls_total", "Calls, and messages of batches, that were let in.",
		[]string{"tenant"}, nil)
	descBytes = prometheus.NewDesc("sheaf_tenant_bytes_total",
		"Data and attributes of records that calls wrote or read.", []string{"tenant"}, nil)
	descRefused = prometheus.NewDesc("sheaf_tenant_refused_total",
		"Calls, or records of a batch, that were refused, by quota.", []string{"tenant", "quota"}, nil)
	descWaited = prometheus.NewDesc("sheaf_tenant_waited_total",
		"Messages of streams, and calls of a tenant that is refused all the time, that had to wait, by quota.",
		[]string{"tenant", "quota"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLimit, descUsed, descPart, descCalls, descBytes, descRefused, descWaited} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It reads the usage of the tenants.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	for _, t := range s.all() {
		t.collect(ch)
	}
}

func (t *Tenant) collect(ch chan<- prometheus.Metric) {
	now := t.Usage()
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, value, append([]string{t.name}, labels...)...)
	}
	used := map[access.Quota]int64{access.StoredBytes: now.Stored.Bytes, access.Records: now.Stored.Records,
		access.CallsAtOnce: now.Open, access.TenantGroups: now.Groups}
	for _, quota := range access.AllQuotas() {
		limit := now.Quotas.Of(quota)
		if limit == 0 {
			continue
		}
		tell(descLimit, prometheus.GaugeValue, float64(limit), string(quota))
		if n, known := used[quota]; known {
			tell(descUsed, prometheus.GaugeValue, float64(n), string(quota))
		}
		if quota == access.TenantGroups {
			continue // gateways enforce this quota, and count the groups that they refuse to create
		}
		tell(descRefused, prometheus.CounterValue, float64(now.Refused[quota]), string(quota))
		tell(descWaited, prometheus.CounterValue, float64(now.Waited[quota]), string(quota))
	}
	tell(descPart, prometheus.GaugeValue, now.Part)
	tell(descCalls, prometheus.CounterValue, float64(now.Calls))
	tell(descBytes, prometheus.CounterValue, float64(now.Bytes))
}
