package shard

import (
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/shard/disk"
)

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

// collectJournal collects the metrics of the journal.
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
