package group

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/foldertest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestVerifyOfAReplicaThatIsJoining(t *testing.T) {
	fs := vfstest.NewMem()
	ok(t, format.WriteReplicaFile(fs, "/v/7", sampleReplica()))
	report, err := fsck.VerifyDir(t.Context(), fs, "/v/7", nil)
	if err != nil || !report.Joining || len(report.Damages) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	member := sampleReplica()
	member.Joining = false
	ok(t, format.WriteReplicaFile(fs, "/v/7", member))
	report, err = fsck.VerifyDir(t.Context(), fs, "/v/7", nil)
	if err != nil || report.Joining || len(report.Damages) != 1 || report.Damages[0].File != format.ManifestName {
		t.Errorf("a member without a manifest: %+v, %v", report, err)
	}
}

func TestVerifyAndRepairOfAReplicaFile(t *testing.T) {
	fs := vfstest.NewMem()
	g := foldertest.Build(t, fs, "/v/7", 6, 200)
	member := format.ReplicaFile{RaftID: 9, Volume: uuid.UUID{5}, Store: g.Manifest.Identity.Store,
		Group: g.Manifest.Identity.Group}
	ok(t, format.WriteReplicaFile(fs, "/v/7", member))
	if report := verifyFolder(t, g); len(report.Damages) > 0 {
		t.Fatal(report.Damages)
	}
	undo := g.Change(t, format.ReplicaName, 30, func(b []byte) { b[0] ^= 1 }, 1)
	report := verifyFolder(t, g)
	if len(report.Damages) != 1 || report.Damages[0].File != format.ReplicaName || report.Damages[0].Offset != 0 {
		t.Fatal(report.Damages)
	}
	repaired, err := fsck.RepairDir(t.Context(), fs, "/v/7", nil)
	if err != nil || len(repaired.After.Damages) > 0 || repaired.NextIndex != 0 {
		t.Fatalf("%+v, %v", repaired, err)
	}
	if got, _, err := format.ReadReplicaFile(fs, "/v/7"); got != member || err != nil {
		t.Fatal(got, err)
	}
	undo()
	ok(t, fs.Remove(path.Join("/v/7", format.ReplicaName)))
	member.Group = uuid.UUID{9}
	ok(t, format.WriteReplicaFile(fs, "/v/7", member))
	if report := verifyFolder(t, g); len(report.Damages) != 1 ||
		!strings.Contains(report.Damages[0].What, "it is of group") {
		t.Fatal(report.Damages)
	}
}

func TestLoadLeavesTheReplicaFileAndMakesAWholeOneAMember(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: []byte("x")})
	ok(t, d.log.Close(false))
	// This is the state after a crash between writing the manifest and writing the replica file.
	ok(t, format.WriteReplicaFile(d.opts.FS, d.opts.Dir, sampleReplica()))
	got, found, err := format.ReadReplicaFile(d.opts.FS, d.opts.Dir)
	if err != nil || !found || got.Joining {
		t.Fatal(got, found, err)
	}
	d.load()
	ok(t, d.log.Close(false))
	b, err := format.ReadAll(d.opts.FS, path.Join(d.opts.Dir, format.ReplicaName), 1<<20)
	ok(t, err)
	raw, _, err := format.DecodeReplicaFile(b)
	if err != nil || raw.Joining || raw.RaftID != 77 {
		t.Fatal(raw, err)
	}
}

func TestDumpOfAReplicaFile(t *testing.T) {
	var out strings.Builder
	ok(t, fsck.Dump(&out, vfs.OS{}, filepath.Join(goldenV1, format.ReplicaName)))
	if want := fmt.Sprintf("replica 1122334455667789 of group %s",
		uuid.UUID{2, 15: 0x67}); !strings.HasPrefix(out.String(), want) {
		t.Errorf("%q", out.String())
	}
	b, err := os.ReadFile(filepath.Join(goldenV1, format.ReplicaName))
	ok(t, err)
	b[100] = 1
	name := filepath.Join(t.TempDir(), format.ReplicaName)
	ok(t, os.WriteFile(name, b, 0o600))
	out.Reset()
	ok(t, fsck.Dump(&out, vfs.OS{}, name))
	if !strings.HasPrefix(out.String(), "copy 0: BAD") {
		t.Errorf("%q", out.String())
	}
}

func sampleReplica() format.ReplicaFile {
	return format.ReplicaFile{RaftID: 77, Volume: uuid.UUID{5}, Store: logIdentity.Store, Group: logIdentity.Group,
		Joining: true}
}
