package shard

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/care"
	"sheaf.dev/sheaf/internal/shard/disk"
)

// collector reads the shard's status when metrics are scraped.
type collector struct{ shard *Shard }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sheaf_shard_"+name, help, labels, nil)
}

var (
	descLoadDone   = desc("load_done_bytes", "Bytes that the first load has read.")
	descLoadTotal  = desc("load_total_bytes", "Bytes that the first load reads in all.")
	descLoadRate   = desc("load_rate_bytes_per_second", "Rate of the first load so far.")
	descDeviceRate = desc("device_rate_bytes_per_second",
		"Sequential rate of the device as measured before the load; 0: not measured.")
	descLoadShare = desc("load_device_percent", "Rate of the first load in percent of the device's own.")
	descLoadETA   = desc("load_eta_seconds", "Time that the first load still takes, estimated.")
	descLoadTime  = desc("load_elapsed_seconds", "Time since the first load began, or that it took.")
	descGroups    = desc("groups", "Groups by state.", "state")
	descStrays    = desc("stray_groups",
		"Groups on the volume that are not served: etcd says they are elsewhere or does not know them.")
	descMemoryNeed  = desc("memory_need_bytes", "Memory that the groups need, computed before loading.")
	descMemoryUsed  = desc("memory_used_bytes", "Memory of indexes and images.")
	descMemoryLimit = desc("memory_limit_bytes", "Limit of that memory; 0: none.")
	descCapacity    = desc("volume_capacity_bytes", "Size of the volume.")
	descFree        = desc("volume_free_bytes", "Free bytes of the volume.")
	descReserve     = desc("volume_reserve_bytes", "Bytes kept free for compaction, deletes and consensus.")
	descInFlight    = desc("bytes_in_flight", "Data of writes being worked on.")
	descAnswers     = desc("answer_bytes", "Data of answers being worked on, or not taken by their callers yet.")
	descCalls       = desc("calls_in_flight", "Calls being worked on.")
	descEpoch       = desc("routing_epoch", "Revision of etcd that the shard has seen.")
	descFrozen      = desc("etcd_set_back",
		"1 while etcd holds an older state of the store than was seen before: nothing is moved, made or deleted.")
	descUncompacted = desc("uncompacted_bytes",
		"Superseded bytes that are still stored, of all groups, by why; sheaf group compact --why says it of one group.",
		"reason")
	descSnapshots     = desc("snapshots", "Open snapshots of scans, of all groups.")
	descSnapshotsMost = desc("group_snapshots_most",
		"Open snapshots of the group that has most, at most 256: of more, the one not used for longest is given up.")
	descSnapshotPlaces = desc("snapshot_places",
		"Places of superseded versions that snapshots hold in memory, 20 bytes each; at most 4194304 of a group.")
	descProblems = desc("problems", "Number of things that a person should look at; /status says which.")

	descRecords    = desc("records", "Records of all groups.")
	descStored     = desc("stored_bytes", "Bytes of the files of all groups.")
	descSuperseded = desc("superseded_bytes", "Bytes of superseded entries in sealed segments, of all groups.")
	descDamages    = desc("damages", "Places of damage known in all groups.")
	descLeading    = desc("leading_groups", "Groups that this shard leads.")

	// These metrics are exported for each group, but only if there are few groups (groupSeriesMax).
	descGroupRecords    = desc("group_records", "Records of the group.", "group")
	descGroupStored     = desc("group_stored_bytes", "Bytes of the group's files.", "group")
	descGroupSuperseded = desc("group_superseded_bytes", "Bytes of superseded entries in sealed segments.", "group")
	descGroupDamages    = desc("group_damages", "Places of damage known in the group.", "group")
	descGroupLeader     = desc("group_leader", "1 where this shard leads the group.", "group")
)

// groupSeriesMax is the highest number of groups for which each group gets its own series. If there were more, the
// five series of each group would outnumber all other series of the shard. In that case only sums are exported. The
// status at /status always lists each group.
const groupSeriesMax = 256

// Describe implements prometheus.Collector. The collector is an unchecked one, because groups are created and deleted
// while it is registered.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- descLoadDone }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.shard.Status()
	row, load := st.GetShard(), st.GetShard().GetLoad()
	for _, m := range []struct {
		desc  *prometheus.Desc
		value float64
	}{
		{descLoadDone, float64(load.GetBytesDone())},
		{descLoadTotal, float64(load.GetBytesTotal())},
		{descLoadRate, load.GetBytesPerSecond()},
		{descDeviceRate, load.GetDeviceBytesPerSecond()},
		{descLoadShare, load.GetDevicePercent()},
		{descLoadETA, load.GetEtaSeconds()},
		{descLoadTime, load.GetElapsedSeconds()},
		{descStrays, float64(len(st.GetStrays()))},
		{descMemoryNeed, float64(row.GetMemoryNeedBytes())},
		{descMemoryUsed, float64(row.GetMemoryUsedBytes())},
		{descMemoryLimit, float64(row.GetMemoryLimitBytes())},
		{descCapacity, float64(row.GetCapacityBytes())},
		{descFree, float64(row.GetFreeBytes())},
		{descReserve, float64(row.GetReserveBytes())},
		{descInFlight, float64(c.shard.calls.BytesInFlight())},
		{descAnswers, float64(c.shard.calls.AnswerBytes())},
		{descCalls, float64(c.shard.calls.Calls())},
		{descEpoch, float64(row.GetRoutingEpoch())},
		{descProblems, float64(len(row.GetProblems()))},
		{descFrozen, map[bool]float64{true: 1}[c.shard.replicas.IsHeld()]},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value)
	}
	c.collectGroups(ch, st.GetGroups())
	c.collectSnapshots(ch)
	uncompacted := make(map[string]int64, len(st.GetUncompacted()))
	for _, u := range st.GetUncompacted() {
		uncompacted[u.GetReason()] = u.GetBytes()
	}
	for _, reason := range care.HoldReasons {
		ch <- prometheus.MustNewConstMetric(descUncompacted, prometheus.GaugeValue, float64(uncompacted[reason]), reason)
	}
	c.shard.peers.collect(ch)
	collectJournal(c.shard.volume, ch)
}

// collectSnapshots collects the metrics of the snapshots that open scans keep in use.
func (c *collector) collectSnapshots(ch chan<- prometheus.Metric) {
	var open, most, places int
	for _, g := range c.shard.replicas.Routes().ByName {
		if sv := g.Served(); sv != nil {
			stats := sv.Log().Stats()
			open, most, places = open+stats.Scans, max(most, stats.Scans), places+stats.ScanPlaces
		}
	}
	for desc, n := range map[*prometheus.Desc]int{
		descSnapshots: open, descSnapshotsMost: most, descSnapshotPlaces: places,
	} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
}

// collectGroups collects the sums over all groups. If there are few groups, it also collects the metrics of each
// group.
func (c *collector) collectGroups(ch chan<- prometheus.Metric, groups []*recordv1.Group) {
	states := map[string]int{"Pending": 0, "Loading": 0, "Serving": 0, "Damaged": 0, "Failed": 0}
	var records, stored, superseded, damages, leading float64
	for _, g := range groups {
		states[g.GetState().Word()]++
		leader := 0.0
		if g.GetLeader() {
			leader = 1
		}
		records, stored, superseded = records+float64(g.GetRecords()), stored+float64(g.GetStoredBytes()),
			superseded+float64(g.GetSupersededBytes())
		damages, leading = damages+float64(g.GetDamagesTotal()), leading+leader
		if len(groups) > groupSeriesMax {
			continue
		}
		for desc, value := range map[*prometheus.Desc]float64{
			descGroupRecords: float64(g.GetRecords()), descGroupStored: float64(g.GetStoredBytes()),
			descGroupSuperseded: float64(g.GetSupersededBytes()), descGroupDamages: float64(g.GetDamagesTotal()),
			descGroupLeader: leader,
		} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, g.GetGroup())
		}
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descGroups, prometheus.GaugeValue, float64(n), strings.ToLower(state))
	}
	for desc, value := range map[*prometheus.Desc]float64{
		descRecords: records, descStored: stored, descSuperseded: superseded, descDamages: damages, descLeading: leading,
	} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
}

var (
	descJournalWrites  = desc("journal_writes_total", "Small writes of groups that were made durable by the journal.")
	descJournalSyncs   = desc("journal_syncs_total", "Syncs of the journal that this took.")
	descJournalBytes   = desc("journal_bytes_total", "Bytes written to the journal.")
	descJournalDamaged = desc("journal_damaged_files",
		"Files of journals that were set aside because something of them cannot be read, as of the start.")
	descJournalKept = desc("journal_kept_groups",
		"Groups whose part of a journal is kept aside because it could not be written to their files, as of the start.")
	descJournalRefused = desc("journal_refused_total",
		"Writes that the journal did not take, because it had no space yet or is broken: their groups synced their "+
			"own files.")
)

// collectJournal collects the journal's metrics.
func collectJournal(v *disk.Disk, ch chan<- prometheus.Metric) {
	if v.Journal == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(descJournalDamaged, prometheus.GaugeValue, float64(len(v.Left.Damaged)))
	ch <- prometheus.MustNewConstMetric(descJournalKept, prometheus.GaugeValue, float64(len(v.Left.Kept)))
	st := v.Journal.Stats()
	for _, m := range []struct {
		desc  *prometheus.Desc
		value int64
	}{
		{descJournalWrites, st.Writes}, {descJournalSyncs, st.Syncs}, {descJournalBytes, st.Bytes},
		{descJournalRefused, st.Refused},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.value))
	}
}

var (
	descPeerSent = desc("peer_sent_messages_total",
		"Messages sent to other shards: those of consensus between copies.")
	descPeerSentBytes = desc("peer_sent_bytes_total", "Bytes of these messages.")
	descPeerReceived  = desc("peer_received_messages_total", "Messages that came from other shards.")
	descPeerDropped   = desc("peer_dropped_messages_total",
		"Messages lost, by why: the queue to a peer was full, it was not connected, what they were for is not here, they "+
			"cannot be read. They are repeated.", "reason")
	descPeerConnects = desc("peer_connects_total",
		"Connections made to other shards. All but the first one of each are reconnects.")
	descPeerFetched = desc("peer_fetched_bytes_total",
		"Bytes of files, entries and blobs that other shards took from here.")
	descPeerExports = desc("peer_exports", "Groups whose files other shards are taking from here.")
	descPeerRefused = desc("peer_exports_refused_total",
		"Requests for files that were put off, because enough groups were being sent.")

	descPeerAlive   = desc("peer_alive", "1 where the peer was heard within a second.", "peer")
	descPeerSilence = desc("peer_silence_seconds", "Time since the peer was heard.", "peer")
	descPeerQueued  = desc("peer_queued_messages", "Messages that wait to be sent to the peer.", "peer")
	descPeerQueue   = desc("peer_queued_bytes", "Bytes of the messages that wait to be sent to the peer.", "peer")
)

// collect collects the metrics of the traffic between this shard and its peers.
func (p *peers) collect(ch chan<- prometheus.Metric) {
	count, fetched := p.hub.Counters(), p.hub.Fetched()
	for _, m := range []struct {
		desc   *prometheus.Desc
		value  uint64
		labels []string
	}{
		{descPeerSent, count.Sent.Load(), nil},
		{descPeerSentBytes, count.SentBytes.Load(), nil},
		{descPeerReceived, count.Received.Load(), nil},
		{descPeerDropped, count.DroppedFull.Load(), []string{"full"}},
		{descPeerDropped, count.DroppedDown.Load(), []string{"down"}},
		{descPeerDropped, count.DroppedStray.Load(), []string{"stray"}},
		{descPeerDropped, count.DroppedBad.Load(), []string{"bad"}},
		{descPeerConnects, count.Connects.Load(), nil},
		{descPeerFetched, fetched.FetchedBytes.Load(), nil},
		{descPeerRefused, fetched.ExportsRefused.Load(), nil},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.value), m.labels...)
	}
	ch <- prometheus.MustNewConstMetric(descPeerExports, prometheus.GaugeValue, float64(fetched.ExportsUnderWay.Load()))
	for _, one := range p.hub.Peers() {
		alive := 0.0
		if one.Alive {
			alive = 1
		}
		ch <- prometheus.MustNewConstMetric(descPeerAlive, prometheus.GaugeValue, alive, one.Shard)
		ch <- prometheus.MustNewConstMetric(descPeerSilence, prometheus.GaugeValue, one.Silence.Seconds(), one.Shard)
		ch <- prometheus.MustNewConstMetric(descPeerQueued, prometheus.GaugeValue, float64(one.Messages), one.Shard)
		ch <- prometheus.MustNewConstMetric(descPeerQueue, prometheus.GaugeValue, float64(one.Bytes), one.Shard)
	}
}
