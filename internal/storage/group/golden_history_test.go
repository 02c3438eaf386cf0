package group

import (
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/must"
)

// goldenHistory is the folder of a group with a version 2 manifest. Every later version of Sheaf must be able to read
// this manifest.
var goldenHistory = filepath.Join("testdata", "history")

func TestGoldenManifestOfVersion2IsWrittenTheSame(t *testing.T) {
	files := requestFiles(t, func(m *format.Manifest) { m.HistoryKnown, m.HistoryFloor = true, 6 })
	writtenTheSame(t, goldenHistory, files)
}

func TestGoldenManifestOfVersion2IsRead(t *testing.T) {
	mem := readGolden(t, goldenHistory)
	report, err := fsck.VerifyDir(t.Context(), mem, "/g", nil)
	if err != nil || len(report.Damages) != 0 || report.Entries != 4 {
		t.Errorf("%+v, %v", report, err)
	}
	m, err := format.ReadManifest(mem, "/g")
	must.OK(t, err)
	l, _, err := Load(t.Context(), Options{FS: mem, Dir: "/g", Identity: m.Identity}, nil)
	must.OK(t, err)
	wantFloor(t, l, 6, true)
	must.OK(t, l.Close(false))
	old := readGolden(t, goldenV2)
	l, _, err = Load(t.Context(), Options{FS: old, Dir: "/g", Identity: m.Identity}, nil)
	must.OK(t, err)
	wantFloor(t, l, 0, false)
	must.OK(t, l.Close(false))
}
