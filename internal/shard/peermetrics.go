package shard

import "github.com/prometheus/client_golang/prometheus"

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
	count := p.hub.Counters()
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
		{descPeerFetched, count.FetchedBytes.Load(), nil},
		{descPeerRefused, count.ExportsRefused.Load(), nil},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.value), m.labels...)
	}
	ch <- prometheus.MustNewConstMetric(descPeerExports, prometheus.GaugeValue, float64(count.ExportsUnderWay.Load()))
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
