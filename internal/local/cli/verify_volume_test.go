package cli

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/must"
)

// plainVolume creates a volume with one group for each number in entries, which says how many entries that group has.
// It returns the folders of the volume and of the groups.
func plainVolume(t *testing.T, entries ...int) (dir string, groups []string) {
	t.Helper()
	dir = t.TempDir()
	store := uuid.New()
	v, err := volume.Open(volume.Options{FS: vfs.OS{}, Dir: dir, Store: store, Shard: "s1", Create: true,
		ReserveBytes: 16 << 20})
	must.OK(t, err)
	for i, n := range entries {
		id := uuid.New()
		opts := group.Options{FS: vfs.OS{}, Dir: v.GroupDir(id), Identity: format.Identity{Store: store, Group: id,
			Name: fmt.Sprint(i)}}
		must.OK(t, group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}))
		log, _, err := group.Load(context.Background(), opts, nil)
		must.OK(t, err)
		for at := range uint64(n) {
			must.OK(t, log.Append(nil, []*raftpb.Entry{format.RaftEntry(&format.Entry{Kind: format.KindPut, Used: true,
				ID: int64(at), Index: at + 1, Term: 1, Data: []byte("data")})}))
		}
		must.OK(t, log.Sync())
		must.OK(t, log.Close(true))
		groups = append(groups, opts.Dir)
	}
	must.OK(t, v.Close())
	return dir, groups
}

func exchange(t *testing.T, a, b string) {
	t.Helper()
	must.OK(t, os.Rename(a, a+".tmp"))
	must.OK(t, os.Rename(b, a))
	must.OK(t, os.Rename(a+".tmp", b))
}

// contents returns the contents of every file in a folder, by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.OK(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		all[name] = string(b)
		return err
	}))
	return all
}

func TestVerifyFindsMissingAndForeignFiles(t *testing.T) {
	for _, c := range []struct {
		name    string
		harm    func(dir string, groups []string)
		says    string // a text that must appear in the report as often as the field places says
		places  int
		refused bool // whether the repair is refused and changes nothing
		heals   bool // whether the repair succeeds
	}{
		{name: "the superblock is missing", harm: func(dir string, _ []string) {
			must.OK(t, os.Remove(filepath.Join(dir, "superblock")))
		},
			says: "the superblock is missing, beside the folder of the volume's groups", places: 1},
		{name: "the superblock is another volume's", harm: func(dir string, groups []string) {
			sb, _, err := volume.VerifySuperblock(vfs.OS{}, dir)
			must.OK(t, err)
			for _, folder := range groups {
				must.OK(t, format.WriteReplicaFile(vfs.OS{}, folder, format.ReplicaFile{RaftID: 1, Volume: sb.Volume,
					Store: sb.Store, Group: uuid.MustParse(filepath.Base(folder))}))
			}
			report, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{}, &Output{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
			if err != nil || report.Bad() != 0 {
				t.Errorf("with replica files: %+v, %v", report, err)
			}
			other, _ := plainVolume(t, 5, 5, 5)
			exchange(t, filepath.Join(dir, "superblock"), filepath.Join(other, "superblock"))
		}, says: "and 3 of 3 groups were made on volume", places: 1},
		{name: "the mark is another group's", harm: func(_ string, groups []string) {
			b, err := os.ReadFile(filepath.Join(groups[1], format.MarkName))
			must.OK(t, err)
			must.OK(t, os.WriteFile(filepath.Join(groups[0], format.MarkName), b, 0o600))
		}, says: "it is the mark of group 1, whose folder is beside this one", places: 1, heals: true},
		{name: "two manifests are exchanged", harm: func(_ string, groups []string) {
			exchange(t, filepath.Join(groups[0], format.ManifestName), filepath.Join(groups[1], format.ManifestName))
		}, says: "was the manifest exchanged with that of the other folder?", places: 2, refused: true},
		{name: "two folders are exchanged", harm: func(_ string, groups []string) { exchange(t, groups[0], groups[1]) },
			says: "was the folder exchanged with another, or renamed?", places: 2, refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, groups := plainVolume(t, 5, 5, 5)
			out := &Output{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}
			if report, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{}, out); err != nil || report.Bad() != 0 {
				t.Fatalf("before: %+v, %v", report, err)
			}
			c.harm(dir, groups)
			report, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{}, out)
			must.OK(t, err)
			words := strings.Join(report.Problems, "\n")
			for _, g := range report.Groups {
				for _, d := range g.Damages {
					words += "\n" + d.What
				}
			}
			if report.Bad() != c.places || strings.Count(words, c.says) != c.places || len(report.Groups) != 3 ||
				report.Volumes != 1 {
				t.Errorf("%d bad things: %s\n%+v", report.Bad(), words, report)
			}
			before := contents(t, dir)
			report, err = VerifyTree(t.Context(), dir, VerifyTreeOptions{Repair: true}, out)
			if c.refused {
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "is not repaired") {
					t.Errorf("repair: %v", err)
				}
				// A repair of the group's folder alone is also refused.
				if report, err := VerifyTree(t.Context(), groups[0], VerifyTreeOptions{Repair: true}, out); err == nil &&
					report.Groups[0].Error == "" {
					t.Errorf("repair of the group: %+v", report)
				}
				after := contents(t, dir)
				if len(after) != len(before) {
					t.Errorf("%d files, there were %d", len(after), len(before))
				}
				for name := range before {
					if before[name] != after[name] {
						t.Errorf("%s was changed", name)
					}
				}
				return
			}
			must.OK(t, err)
			again, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{}, out)
			if err != nil || (again.Bad() == 0) != c.heals {
				t.Errorf("after a repair, which said %+v: %+v, %v", report, again, err)
			}
		})
	}
}

// TestVerifyCountsBadRecordsOfTheJournal checks that a bad journal record counts as a defect, because its content may
// be lost.
func TestVerifyCountsBadRecordsOfTheJournal(t *testing.T) {
	dir := t.TempDir()
	store, id := uuid.New(), uuid.New()
	v, err := volume.Open(volume.Options{FS: vfs.OS{}, Dir: dir, Store: store, Shard: "s1", Create: true,
		ReserveBytes: 16 << 20})
	must.OK(t, err)
	j := journal.New(journal.Options{FS: vfs.OS{}, Dir: dir, Begin: func() error { return v.SetJournal(true) }})
	opts := group.Options{FS: vfs.OS{}, Dir: v.GroupDir(id), Identity: format.Identity{Store: store, Group: id, Name: "g"},
		Journal: j}
	must.OK(t, group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}))
	log, _, err := group.Load(context.Background(), opts, nil)
	must.OK(t, err)
	marked := func(n uint64) []byte { return bytes.Repeat([]byte{byte(n)}, 3000) }
	for n := uint64(1); n <= 5; n++ {
		must.OK(t, log.Append(nil, []*raftpb.Entry{format.RaftEntry(&format.Entry{Kind: format.KindPut, Used: true,
			ID: int64(n), Index: n, Term: 1, Data: marked(n)})}))
		if !log.SyncShared() {
			t.Fatal("the journal did not take it")
		}
	}
	_, err = j.Close() // the journal is closed before the log, as if the process had been killed
	must.OK(t, err)
	must.OK(t, log.Close(false))
	must.OK(t, v.Close())
	out := &Output{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}
	if report, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{}, out); err != nil || report.Bad() != 0 {
		t.Fatalf("before: %+v, %v", report, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "journal-*"))
	must.OK(t, err)
	hits := 0
	for _, name := range files {
		b, err := os.ReadFile(name)
		must.OK(t, err)
		if at := bytes.Index(b, marked(3)); at >= 0 {
			hits++
			b[at+100] ^= 1
			must.OK(t, os.WriteFile(name, b, 0o600))
		}
	}
	report, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{}, out)
	if err != nil || hits != 1 || report.Bad() != 1 || len(report.Problems) != 1 {
		t.Errorf("a bit was changed in %d records: %+v, %v", hits, report, err)
	}
}

// The groups of a store with one copy do not record their volume. In a folder of sheaf dev, the name of a volume's
// folder says which shard it belongs to.
func TestVerifyFindsExchangedSuperblocksOfADevStore(t *testing.T) {
	store := t.TempDir()
	superblocks := [2]string{}
	for n := range superblocks {
		shard := fmt.Sprintf("shard-%d", n)
		dir := filepath.Join(store, "shards", shard)
		must.OK(t, os.MkdirAll(dir, 0o700))
		v, err := volume.Open(volume.Options{FS: vfs.OS{}, Dir: dir, Store: uuid.New(), Shard: shard, Create: true,
			ReserveBytes: 16 << 20})
		must.OK(t, err)
		must.OK(t, v.Close())
		superblocks[n] = filepath.Join(dir, "superblock")
	}
	problems := func(dir string) string {
		t.Helper()
		report, err := VerifyTree(t.Context(), dir, VerifyTreeOptions{},
			&Output{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
		must.OK(t, err)
		if report.Bad() != len(report.Problems) {
			t.Errorf("%d are bad: %+v", report.Bad(), report)
		}
		return strings.Join(report.Problems, "\n")
	}
	exchange(t, superblocks[0], superblocks[1])
	if found := problems(store); found != "" {
		t.Errorf("folders that are not of sheaf dev may have any name: %s", found)
	}
	must.OK(t, os.WriteFile(filepath.Join(store, "dev.json"), nil, 0o600))
	for _, dir := range []string{store, filepath.Join(store, "shards", "shard-1")} {
		if found := problems(dir); !strings.Contains(found, "is of shard shard-0 and volume") ||
			!strings.Contains(found, "and the folder is of shard shard-1") {
			t.Errorf("%s: %q", dir, found)
		}
	}
	exchange(t, superblocks[0], superblocks[1])
	if found := problems(store); found != "" {
		t.Errorf("each in its place: %s", found)
	}
}
