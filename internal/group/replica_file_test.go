package group

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/vfs"
	"sheaf.dev/sheaf/internal/vfs/vfstest"
)

func sampleReplica() ReplicaFile {
	return ReplicaFile{RaftID: 77, Volume: uuid.UUID{5}, Store: logIdentity.Store, Group: logIdentity.Group, Joining: true}
}

func TestReplicaFileRoundTrips(t *testing.T) {
	fs := vfstest.NewMem()
	_, found, err := ReadReplicaFile(fs, "/v/7")
	if found || err != nil {
		t.Fatal(found, err)
	}
	for _, joining := range []bool{true, false, true} {
		want := sampleReplica()
		want.Joining = joining
		ok(t, WriteReplicaFile(fs, "/v/7", want))
		got, found, err := ReadReplicaFile(fs, "/v/7")
		if got != want || !found || err != nil {
			t.Fatal(got, found, err)
		}
	}
	if err := WriteReplicaFile(fs, "/v/7", ReplicaFile{}); err == nil {
		t.Error("a replica file without a Raft id was written")
	}
}

func TestEveryBitOfAReplicaFileCounts(t *testing.T) {
	good, err := sampleReplica().Encode()
	ok(t, err)
	for bit := range len(good) * 8 {
		b := append([]byte(nil), good...)
		b[bit/8] ^= 1 << (bit % 8)
		f, bad, err := DecodeReplicaFile(b)
		if err != nil || f != sampleReplica() || bad[bit/8/blockBytes] == nil {
			t.Fatalf("bit %d: %+v, %v, %v", bit, f, bad, err)
		}
		b[(bit/8+blockBytes)%len(b)] ^= 1 << (bit % 8)
		if _, _, err := DecodeReplicaFile(b); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d of both copies: %v", bit, err)
		}
	}
	other := sampleReplica()
	other.RaftID = 79
	b, err := other.Encode()
	ok(t, err)
	if _, _, err := DecodeReplicaFile(append(good[:blockBytes:blockBytes], b[:blockBytes]...)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("two whole copies that differ: %v", err)
	}
	newer := append([]byte(nil), good[:blockBytes]...)
	newer[8] = FormatVersion + 1
	newer = repair(newer)
	if _, _, err := DecodeReplicaFile(append(newer, newer...)); !errors.Is(err, ErrFormatVersion) {
		t.Errorf("newer version: %v", err)
	}
}

func TestRaftIDsAreNeverZero(t *testing.T) {
	seen := map[uint64]bool{}
	for range 1000 {
		id := NewRaftID()
		if id%2 == 0 || seen[id] {
			t.Fatal(id)
		}
		seen[id] = true
	}
}

func TestVerifyOfAReplicaThatIsJoining(t *testing.T) {
	fs := vfstest.NewMem()
	ok(t, WriteReplicaFile(fs, "/v/7", sampleReplica()))
	report, err := VerifyDir(t.Context(), fs, "/v/7", nil)
	if err != nil || !report.Joining || len(report.Damages) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	member := sampleReplica()
	member.Joining = false
	ok(t, WriteReplicaFile(fs, "/v/7", member))
	report, err = VerifyDir(t.Context(), fs, "/v/7", nil)
	if err != nil || report.Joining || len(report.Damages) != 1 || report.Damages[0].File != ManifestName {
		t.Errorf("a member without a manifest: %+v, %v", report, err)
	}
}

func TestVerifyAndRepairOfAReplicaFile(t *testing.T) {
	fs := vfstest.NewMem()
	g := buildGroup(t, fs, "/v/7", 6, 200)
	member := ReplicaFile{RaftID: 9, Volume: uuid.UUID{5}, Store: g.manifest.Identity.Store, Group: g.manifest.Identity.Group}
	ok(t, WriteReplicaFile(fs, "/v/7", member))
	if report := g.verify(t); len(report.Damages) > 0 {
		t.Fatal(report.Damages)
	}
	undo := g.change(t, ReplicaName, 30, func(b []byte) { b[0] ^= 1 }, 1)
	report := g.verify(t)
	if len(report.Damages) != 1 || report.Damages[0].File != ReplicaName || report.Damages[0].Offset != 0 {
		t.Fatal(report.Damages)
	}
	repaired, err := RepairDir(t.Context(), fs, "/v/7", nil)
	if err != nil || len(repaired.After.Damages) > 0 || repaired.NextIndex != 0 {
		t.Fatalf("%+v, %v", repaired, err)
	}
	if got, _, err := ReadReplicaFile(fs, "/v/7"); got != member || err != nil {
		t.Fatal(got, err)
	}
	undo()
	ok(t, fs.Remove(path.Join("/v/7", ReplicaName)))
	member.Group = uuid.UUID{9}
	ok(t, WriteReplicaFile(fs, "/v/7", member))
	if report := g.verify(t); len(report.Damages) != 1 || !strings.Contains(report.Damages[0].What, "it is of group") {
		t.Fatal(report.Damages)
	}
}

func TestLoadLeavesTheReplicaFileAndMakesAWholeOneAMember(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(Entry{ID: 1, Data: []byte("x")})
	ok(t, d.log.Close(false))
	ok(t, WriteReplicaFile(d.opts.FS, d.opts.Dir, sampleReplica())) // a crash came between manifest and replica file
	got, found, err := ReadReplicaFile(d.opts.FS, d.opts.Dir)
	if err != nil || !found || got.Joining {
		t.Fatal(got, found, err)
	}
	d.load()
	ok(t, d.log.Close(false))
	b, err := readAll(d.opts.FS, path.Join(d.opts.Dir, ReplicaName), 1<<20)
	ok(t, err)
	raw, _, err := DecodeReplicaFile(b)
	if err != nil || raw.Joining || raw.RaftID != 77 {
		t.Fatal(raw, err)
	}
}

func TestDumpOfAReplicaFile(t *testing.T) {
	var out strings.Builder
	ok(t, Dump(&out, vfs.OS{}, filepath.Join(goldenV1, ReplicaName)))
	if want := fmt.Sprintf("replica 1122334455667789 of group %s", uuid.UUID{2, 15: 0x67}); !strings.HasPrefix(out.String(), want) {
		t.Errorf("%q", out.String())
	}
	b, err := os.ReadFile(filepath.Join(goldenV1, ReplicaName))
	ok(t, err)
	b[100] = 1
	name := filepath.Join(t.TempDir(), ReplicaName)
	ok(t, os.WriteFile(name, b, 0o600))
	out.Reset()
	ok(t, Dump(&out, vfs.OS{}, name))
	if !strings.HasPrefix(out.String(), "copy 0: BAD") {
		t.Errorf("%q", out.String())
	}
}
