package group

import (
	"errors"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/foldertest"
	"sheaf.dev/sheaf/internal/test/must"
)

// sealAndClose seals the log and closes it, so that the next load finds hints for all entries.
func sealAndClose(l *Log) error { return errors.Join(l.Seal(), l.Close(true)) }

func verifyFolder(t testing.TB, g *foldertest.Folder) fsck.VerifyReport {
	t.Helper()
	report, err := fsck.VerifyDir(t.Context(), g.FS, g.Dir, nil)
	must.OK(t, err)
	return report
}
