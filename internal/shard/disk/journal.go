package disk

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/journal"
)

// openJournal writes the rest of an old journal into the segments, before any other code reads the segments, and
// begins a new journal.
func (v *Disk) openJournal() error {
	found, err := journal.Replay(v.Log.FS, v.Dir(), journal.Target{
		Groups: v.Groups,
		Apply:  v.redo,
	})
	if err != nil {
		return fmt.Errorf(
			"%w: nothing is served before that, as it was acknowledged: see to the disk, then start the shard again", err)
	}
	for _, bad := range found.Bad {
		v.Logger.Error(
			"the journal is damaged: what it held was acknowledged, and may be lost where a power cut took it from the "+
				"segments too", "error", bad)
	}
	if len(found.Ranges) > 0 {
		v.Logger.Info("the journal was written to the segments", "writes", len(found.Ranges))
	}
	if v.Left.Damaged, v.Left.Kept, err = journal.Left(v.Log.FS, v.Dir()); err != nil {
		return err
	}
	if err := v.SetJournal(len(v.Left.Kept) > 0); err != nil {
		return err
	}
	v.Journal = journal.New(journal.Options{
		FS: v.Log.FS, Dir: v.Dir(), Logger: v.Logger, Begin: func() error { return v.SetJournal(true) }, Spare: v.Spare,
		Off: v.Log.Off,
	})
	return nil
}

// redo writes a group's entries from the journal into the group's segment.
func (v *Disk) redo(id uuid.UUID, share journal.Share) error {
	err := group.Redo(v.Log.FS, v.GroupDir(id), share)
	if err != nil {
		v.Logger.Error(
			"what the journal holds of a group cannot be written to its segment: it is kept aside, and the group cannot be "+
				"loaded before it can", "group", id, "error", err)
	}
	if err == nil && (share.Doubt > 0 || len(share.Lost) > 0) {
		v.Logger.Error(
			"the journal has lost acknowledged writes of a group, or may have: what its segment does not have is damage",
			"group", id)
	}
	return err
}

// JournalLeft lists the files of earlier journals that existed when the shard started. The list is kept in memory, so
// that a status request need not wait for the disk.
type JournalLeft struct{ Damaged, Kept []string }

// Problems returns one message for each file. The message describes the file and says what must be done.
func (l JournalLeft) Problems(dir string) (problems []string) {
	if len(l.Damaged) > 0 {
		problems = append(problems, fmt.Sprintf(
			"the journal could not be read as a whole at a start: groups that it may have hit are damaged where they have no "+
				"other copy; "+
				"once that is settled, remove %s from %s; the next start does not name it any more", strings.Join(l.Damaged, ", "),
			dir))
	}
	for _, name := range l.Kept {
		problems = append(problems, fmt.Sprintf(
			"%s in %s holds acknowledged writes of a group whose files could not be read or written: see to the disk, then "+
				"start the shard again", name, dir))
	}
	return problems
}
