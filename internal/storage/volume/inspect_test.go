package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestMountCheck(t *testing.T) {
	m := Mount{FileSystem: "ext4", Source: "/dev/sda1", Options: []string{"rw", "noatime", "data=ordered"}}
	for _, c := range []struct {
		fsType  string
		options string
		missing string // substring of the error; empty if there must be no error
	}{
		{"", "", ""}, {"ext4", "noatime", ""}, {"EXT4", "", ""}, {"ext3", "", "ext3"}, {"xfs", "noatime", "xfs"},
		{"", "noatime,nodiratime", "nodiratime"}, {"", "defaults,nofail,x-systemd.automount,_netdev", ""},
		{"", "exec,suid,dev,async,rw", ""}, {"", "atime", "atime"}, {"", "data=ordered", ""},
		{"", "data=journal", "data=journal"},
		{"", "ro", "ro"},
	} {
		err := m.Check(c.fsType, strings.Split(c.options, ","))
		if (err != nil) != (c.missing != "") || err != nil && (!errors.Is(err, ErrMount) ||
			!strings.Contains(err.Error(), c.missing)) {
			t.Errorf("%s %s: %v", c.fsType, c.options, err)
		}
	}
}

// TestMountOfAnEmptyFileSystem checks that the type of a file system is known before anything is written to it, even
// for a folder that does not exist yet.
func TestMountOfAnEmptyFileSystem(t *testing.T) {
	for _, fsType := range []string{"ext2", "ext3", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			point := vfstest.LoopMount(t, fsType, "ext4", 16<<20)
			for _, dir := range []string{point, filepath.Join(point, "to", "be", "made")} {
				m, err := MountOf(vfs.OS{}, dir)
				if err != nil || m.FileSystem != fsType {
					t.Errorf("%s: %+v, %v", dir, m, err)
				}
			}
		})
	}
}

func TestBlankAndFresh(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		dir   string
		blank bool
		is    error
	}{{filepath.Join(dir, "absent"), true, nil}, {dir, true, nil}} {
		if blank, err := Blank(vfs.OS{}, c.dir); blank != c.blank || !errors.Is(err, c.is) {
			t.Errorf("%s: %v, %v", c.dir, blank, err)
		}
	}
	if _, err := FreshSuperblock(vfs.OS{}, dir); !errors.Is(err, ErrNoVolume) {
		t.Errorf("no volume: error %v", err)
	}
	v := mustOpen(t, Options{FS: vfs.OS{}, Dir: dir, Store: storeA, Shard: "s0", Create: true})
	defer func() { must.OK(t, v.Close()) }()
	if blank, err := Blank(vfs.OS{}, dir); blank || err != nil {
		t.Errorf("a volume: %v, %v", blank, err)
	}
	if sb, err := FreshSuperblock(vfs.OS{}, dir); err != nil || sb != v.Superblock() {
		t.Errorf("%+v, %v", sb, err)
	}
	name := filepath.Join(dir, superblockName)
	must.OK(t, os.WriteFile(name, make([]byte, fileBytes), 0o600))
	if _, err := FreshSuperblock(vfs.OS{}, dir); !errors.Is(err, ErrDamaged) {
		t.Errorf("zeroed: error %v", err)
	}
	other := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(other, "x"), nil, 0o600))
	if _, err := Blank(vfs.OS{}, other); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("somebody else's folder: error %v", err)
	}
}

func TestFactsAreKeptOrDamaged(t *testing.T) {
	dir := t.TempDir()
	v := mustOpen(t, Options{FS: vfs.OS{}, Dir: dir, Store: storeA, Shard: "s0", Create: true})
	defer func() { must.OK(t, v.Close()) }()
	if _, err := ReadFacts(vfs.OS{}, dir); !errors.Is(err, ErrNoFacts) {
		t.Errorf("a volume without: error %v", err)
	}
	want := Facts{Routing: "Hash", Groups: 256, Copies: 3, GroupsMax: 7, Created: "2026-01-02T03:04:05Z", Epoch: 1 << 40}
	must.OK(t, v.WriteFacts(Facts{Routing: "Named"}))
	must.OK(t, v.WriteFacts(want))
	want.Format, want.Store = FactsVersion, storeA
	if got, err := ReadFacts(vfs.OS{}, dir); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	name := filepath.Join(dir, factsName)
	content, err := os.ReadFile(name)
	must.OK(t, err)
	for bit := range 8 * len(content) {
		bad := append([]byte(nil), content...)
		bad[bit/8] ^= 1 << (bit % 8)
		must.OK(t, os.WriteFile(name, bad, 0o600))
		// Some flipped bits do no harm, such as a bit that changes the case of a letter in the checksum, or one that turns
		// the line end into a space. A file with such a flip still has the same facts.
		if got, err := ReadFacts(vfs.OS{}, dir); err == nil && got != want {
			t.Fatalf("bit %d: %+v", bit, got)
		}
	}
	for n := range len(content) - 1 {
		must.OK(t, os.WriteFile(name, content[:n], 0o600))
		if _, err := ReadFacts(vfs.OS{}, dir); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: error %v", n, err)
		}
	}
}

// TestAbsurdFactsAreDamage checks that facts count as damaged if they hold a number that no store reaches, even if
// their checksum is right.
func TestAbsurdFactsAreDamage(t *testing.T) {
	for field, values := range map[string][]string{
		"groups": {"-1", "4294967296"}, "copies": {"-1", "4294967296"}, "groupsMax": {"-1", "4294967296"},
		"epoch": {"18446744073709551615"}, "etcdBase": {"18446744073709551615"},
		"etcdRevision": {"-1", "9223372036854775807"}, "etcdContent": {"-1", "9223372036854775807"},
	} {
		for _, value := range values {
			m := vfstest.NewMem()
			putFacts(t, m, []byte(`{"format":1,"`+field+`":`+value+`}`))
			if facts, err := ReadFacts(m, "v"); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s %s: %+v, %v", field, value, facts, err)
			}
		}
	}
}

// putFacts writes a facts file that consists of the given line and its checksum.
func putFacts(t *testing.T, m *vfstest.Mem, line []byte) {
	t.Helper()
	must.OK(t, m.MkdirAll("v"))
	f, err := m.Create("v/" + factsName)
	must.OK(t, err)
	_, err = f.WriteAt(fmt.Appendf(line, "\n%08x\n", crc32c.Of(line)), 0)
	must.OK(t, errors.Join(err, f.Close()))
}

// FuzzReadFacts checks that a facts file with any content, even with the right checksum, either counts as damaged or
// gives facts that can be written and read again.
func FuzzReadFacts(f *testing.F) {
	f.Add([]byte(`{"format":1,"store":"11111111-1111-4111-8111-111111111111","routing":"Hash","groups":4,"epoch":9}`))
	f.Add([]byte(`{"etcdRevision":9223372036854775807,"etcdCluster":"18446744073709551615"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, line []byte) {
		m := vfstest.NewMem()
		putFacts(t, m, line)
		facts, err := ReadFacts(m, "v")
		if err != nil {
			return
		}
		again, err := json.Marshal(facts)
		must.OK(t, err)
		m = vfstest.NewMem()
		putFacts(t, m, again)
		if other, err := ReadFacts(m, "v"); err != nil || other != facts {
			t.Errorf("%+v, then %+v, %v", facts, other, err)
		}
	})
}

func TestAdoptTakesOverOnlyWithinTheStore(t *testing.T) {
	dir := t.TempDir()
	open := func(store uuid.UUID, shard string, adopt bool) (*Volume, error) {
		return Open(Options{FS: vfs.OS{}, Dir: dir, Store: store, Shard: shard, Create: true, Adopt: adopt})
	}
	v, err := open(storeA, "s0", false)
	must.OK(t, err)
	id := v.Superblock().Volume
	must.OK(t, v.Close())
	if _, err := open(storeA, "s1", false); !errors.Is(err, ErrOtherShard) {
		t.Errorf("not asked for: error %v", err)
	}
	if _, err := open(uuid.New(), "s1", true); !errors.Is(err, ErrForeign) {
		t.Errorf("another store: error %v", err)
	}
	v, err = open(storeA, "s1", true)
	must.OK(t, err)
	must.OK(t, v.Close())
	if sb, _, err := VerifySuperblock(vfs.OS{}, dir); err != nil || sb.Shard != "s1" || sb.Volume != id ||
		sb.Generation != 2 {
		t.Errorf("%+v, %v", sb, err)
	}
	if _, err := open(storeA, "s0", false); !errors.Is(err, ErrOtherShard) {
		t.Errorf("the former shard: error %v", err)
	}
}
