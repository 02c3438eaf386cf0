package shard

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/journal"
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

// openJournal writes the rest of an old journal into the segments, before any other code reads them, and begins a new
// journal.
func (v *storage) openJournal() error {
	found, err := journal.Replay(v.cfg.FS, v.cfg.Dir, journal.Target{
		Groups: v.Groups,
		Apply:  v.redo,
	})
	if err != nil {
		return fmt.Errorf(
			"%w: nothing is served before that, as it was acknowledged: see to the disk, then start the shard again", err)
	}
	for _, bad := range found.Bad {
		v.logger.Error(
			"the journal is damaged: what it held was acknowledged, and may be lost where a power cut took it from the "+
				"segments too", "error", bad)
	}
	if len(found.Ranges) > 0 {
		v.logger.Info("the journal was written to the segments", "writes", len(found.Ranges))
	}
	if v.left.damaged, v.left.kept, err = journal.Left(v.cfg.FS, v.cfg.Dir); err != nil {
		return err
	}
	if err := v.SetJournal(len(v.left.kept) > 0); err != nil {
		return err
	}
	v.journal = journal.New(journal.Options{
		FS: v.cfg.FS, Dir: v.cfg.Dir, Logger: v.logger, Begin: func() error { return v.SetJournal(true) }, Spare: v.Spare,
		Off: v.cfg.off,
	})
	return nil
}

// redo writes the journal's entries of a group into the group's segment.
func (v *storage) redo(id uuid.UUID, share journal.Share) error {
	err := group.Redo(v.cfg.FS, v.GroupDir(id), share)
	if err != nil {
		v.logger.Error(
			"what the journal holds of a group cannot be written to its segment: it is kept aside, and the group cannot be "+
				"loaded before it can", "group", id, "error", err)
	}
	if err == nil && (share.Doubt > 0 || len(share.Lost) > 0) {
		v.logger.Error(
			"the journal has lost acknowledged writes of a group, or may have: what its segment does not have is damage",
			"group", id)
	}
	return err
}

// journalLeft holds the files of earlier journals that existed when the shard started. They are kept in memory, so that
// a status request need not wait for the disk.
type journalLeft struct{ damaged, kept []string }

// problems describes the files, and what must be done about them.
func (l journalLeft) problems(dir string) (problems []string) {
	if len(l.damaged) > 0 {
		problems = append(problems, fmt.Sprintf(
			"the journal could not be read as a whole at a start: groups that it may have hit are damaged where they have no "+
				"other copy; "+
				"once that is settled, remove %s from %s; the next start does not name it any more", strings.Join(l.damaged, ", "),
			dir))
	}
	for _, name := range l.kept {
		problems = append(problems, fmt.Sprintf(
			"%s in %s holds acknowledged writes of a group whose files could not be read or written: see to the disk, then "+
				"start the shard again", name, dir))
	}
	return problems
}

func (v *storage) collect(ch chan<- prometheus.Metric) {
	if v.journal == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(descJournalDamaged, prometheus.GaugeValue, float64(len(v.left.damaged)))
	ch <- prometheus.MustNewConstMetric(descJournalKept, prometheus.GaugeValue, float64(len(v.left.kept)))
	st := v.journal.Stats()
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
