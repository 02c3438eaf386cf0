package shard

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/journal"
)

var (
	descJournalWrites  = desc("journal_writes_total", "Small writes of groups that were made durable by the journal.")
	descJournalSyncs   = desc("journal_syncs_total", "Syncs of the journal that this took.")
	descJournalBytes   = desc("journal_bytes_total", "Bytes written to the journal.")
	descJournalRefused = desc("journal_refused_total", "Writes that the journal did not take, because it had no room yet or is broken: their groups synced their own files.")
)

// openJournal writes what a journal still holds into the segments, before anything else looks at them, and begins a new one.
func (s *Shard) openJournal() error {
	found, err := journal.Replay(s.cfg.FS, s.cfg.Dir, func(id uuid.UUID, ranges []journal.Range) error {
		return group.Redo(s.cfg.FS, s.volume.GroupDir(id), ranges)
	})
	if err != nil {
		return fmt.Errorf("%w: nothing is served before that, as it was acknowledged: see to the disk, then start the shard again", err)
	}
	for _, bad := range found.Bad {
		s.logger.Error("the journal is damaged: what it held was acknowledged, and may be lost where a power cut took it from the segments too", "error", bad)
	}
	if len(found.Ranges) > 0 {
		s.logger.Info("the journal was written to the segments", "writes", len(found.Ranges))
	}
	if err := journal.Remove(s.cfg.FS, s.cfg.Dir); err != nil {
		return err
	}
	if err := s.volume.SetJournal(false); err != nil {
		return err
	}
	s.journal = journal.New(journal.Options{
		FS: s.cfg.FS, Dir: s.cfg.Dir, Logger: s.logger, Begin: func() error { return s.volume.SetJournal(true) }, Spare: s.volume.Spare,
	})
	return nil
}

// closeJournal removes the journal where all groups have what it held. The groups are closed.
func (s *Shard) closeJournal() error {
	if s.journal == nil {
		return nil
	}
	clean, err := s.journal.Close()
	if err != nil || !clean {
		return err // the next start writes it to the segments
	}
	return s.volume.SetJournal(false)
}

func (s *Shard) collectJournal(ch chan<- prometheus.Metric) {
	if s.journal == nil {
		return
	}
	st := s.journal.Stats()
	for _, m := range []struct {
		desc  *prometheus.Desc
		value int64
	}{
		{descJournalWrites, st.Writes}, {descJournalSyncs, st.Syncs}, {descJournalBytes, st.Bytes}, {descJournalRefused, st.Refused},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.value))
	}
}
