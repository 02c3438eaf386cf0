package volume

import (
	"bufio"
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

var (
	storeA = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000001")
	storeB = uuid.MustParse("bbbbbbbb-0000-4000-8000-000000000002")
)

// options returns options for the volume at /v that belongs to shard s0 of store A. Open creates the volume if it does
// not exist.
func options(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: "/v", Store: storeA, Shard: "s0", Create: true}
}

func mustOpen(t testing.TB, opts Options) *Volume {
	t.Helper()
	v, err := Open(opts)
	must.OK(t, err)
	return v
}

// openOnce opens and closes the volume, and returns its superblock.
func openOnce(t testing.TB, opts Options) Superblock {
	t.Helper()
	v := mustOpen(t, opts)
	must.OK(t, v.Close())
	return v.Superblock()
}

// refused checks that Open fails with the given error, that its message contains all the words, and that the volume
// is neither changed nor left locked.
func refused(t *testing.T, opts Options, want error, words ...string) {
	t.Helper()
	before, _ := opts.FS.List(opts.Dir)
	v, err := Open(opts)
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
	if v != nil {
		t.Error("a volume was returned with the error")
	}
	for _, word := range append(words, opts.Dir) {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("the message does not say %q: %v", word, err)
		}
	}
	after, _ := opts.FS.List(opts.Dir)
	if !slices.Equal(before, after) {
		t.Errorf("names were %q, are %q", before, after)
	}
}

func TestOpenCreatesAndRaisesTheGeneration(t *testing.T) {
	for name, opts := range map[string]Options{
		"mem": options(vfstest.NewMem()),
		"os":  {FS: vfs.OS{}, Dir: filepath.Join(t.TempDir(), "a/v"), Store: storeA, Shard: "s0", Create: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := time.Now().UnixNano()
			first := openOnce(t, opts)
			if first.Store != storeA || first.Shard != "s0" || first.Volume == uuid.Nil || first.Created < before {
				t.Errorf("superblock is %+v", first)
			}
			opts.Create = false
			expected := first
			for range 3 {
				sb := openOnce(t, opts)
				if expected = after(expected, sb); sb != expected {
					t.Errorf("superblock is %+v, want %+v", sb, expected)
				}
				if sb, _, err := VerifySuperblock(opts.FS, opts.Dir); err != nil || sb != expected {
					t.Errorf("VerifySuperblock: %+v, %v", sb, err)
				}
			}
			names, err := opts.FS.List(opts.Dir)
			must.OK(t, err)
			if !slices.Equal(names, []string{"groups", "lock", "superblock", "trash"}) {
				t.Errorf("layout is %q", names)
			}
			opts.Store, opts.Shard = uuid.Nil, "" // without a store and a shard, Open accepts any existing volume
			if sb := openOnce(t, opts); sb.Store != storeA || sb.Shard != "s0" || sb.Generation != 5 {
				t.Errorf("superblock is %+v", sb)
			}
		})
	}
}

func TestOpenRefusesWhatIsNotItsOwn(t *testing.T) {
	m := vfstest.NewMem()
	opts := options(m)
	refused(t, Options{FS: m, Dir: "/v"}, ErrNoVolume, "does not exist", "mounted")
	must.OK(t, m.MkdirAll("/v"))
	refused(t, Options{FS: m, Dir: "/v"}, ErrNoVolume, superblockName, "mounted")
	sb := openOnce(t, opts)

	foreign := opts
	foreign.Store = storeB
	refused(t, foreign, ErrForeign, storeA.String(), storeB.String(), "own store")
	other := opts
	other.Shard = "s1"
	refused(t, other, ErrOtherShard, `"s0"`, `"s1"`, "swapped")
	if now, _, err := VerifySuperblock(m, "/v"); err != nil || now != sb {
		t.Errorf("a refused open changed the superblock: %+v, %v", now, err)
	}
	openOnce(t, opts) // succeeds, because the refused calls have released the lock
}

func TestOpenRefusesAFolderThatIsNotEmpty(t *testing.T) {
	m := vfstest.NewMem()
	opts := options(m)
	must.OK(t, m.MkdirAll("/v/photos"))
	refused(t, opts, ErrNotEmpty, "photos", "empty folder")
	must.OK(t, m.Rename("/v/photos", "/v/lost+found"))
	// A first start that was interrupted leaves these files.
	vfstest.Write(t, m, "/v/lock", nil)
	vfstest.Write(t, m, "/v/superblock.tmp", []byte("half"))
	if sb := openOnce(t, opts); sb.Generation != 1 {
		t.Errorf("superblock is %+v", sb)
	}
	if _, err := m.Stat("/v/superblock.tmp"); err == nil {
		t.Error("the rest of the interrupted start is still there")
	}
}

func TestOpenRefusesBadOptions(t *testing.T) {
	m := vfstest.NewMem()
	for name, change := range map[string]func(*Options){
		"no file system": func(o *Options) { o.FS = nil }, "no folder": func(o *Options) { o.Dir = "" },
		"long shard": func(o *Options) { o.Shard = strings.Repeat("s", ShardNameBytesMax+1) },
		"zero byte":  func(o *Options) { o.Shard = "s\x000" }, "reserve": func(o *Options) { o.ReserveBytes = -1 },
		"no store": func(o *Options) { o.Store = uuid.Nil }, "no shard": func(o *Options) { o.Shard = "" },
		"folder is a file": func(o *Options) { vfstest.Write(t, m, "/file", nil); o.Dir = "/file" },
	} {
		opts := options(m)
		change(&opts)
		if v, err := Open(opts); err == nil || v != nil {
			t.Errorf("%s: volume %v, error %v", name, v, err)
		}
	}
	opts := options(m)
	opts.Shard = strings.Repeat("s", ShardNameBytesMax)
	openOnce(t, opts)
	if sb := openOnce(t, opts); sb.Shard != opts.Shard {
		t.Errorf("the longest name of a shard reads back as %q", sb.Shard)
	}
}

func TestOpenRefusesATwin(t *testing.T) {
	for name, opts := range map[string]Options{
		"mem": options(vfstest.NewMem()),
		"os":  {FS: vfs.OS{}, Dir: t.TempDir(), Store: storeA, Shard: "s0", Create: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := mustOpen(t, opts)
			refused(t, opts, ErrLocked, "stop the other process")
			if sb, _, err := VerifySuperblock(opts.FS, opts.Dir); err != nil || sb != v.Superblock() {
				t.Errorf("superblock is %+v, %v", sb, err)
			}
			must.OK(t, v.Close())
			must.OK(t, v.Close())
			if sb := openOnce(t, opts); sb.Generation != 2 {
				t.Errorf("generation is %d", sb.Generation)
			}
		})
	}
}

// TestOpenAfterTheOtherProcessWasKilled checks that a volume can be opened after a process that had it open was
// killed.
func TestOpenAfterTheOtherProcessWasKilled(t *testing.T) {
	const env = "SHEAF_TEST_HOLD_VOLUME"
	opts := Options{FS: vfs.OS{}, Dir: os.Getenv(env), Store: storeA, Shard: "s0", Create: true}
	if opts.Dir != "" {
		mustOpen(t, opts)
		if _, err := os.Stdout.WriteString("open\n"); err != nil {
			t.Fatal(err)
		}
		select {} // waits until the process is killed
	}
	opts.Dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOpenAfterTheOtherProcessWasKilled$")
	cmd.Env = append(os.Environ(), env+"="+opts.Dir)
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	refused(t, opts, ErrLocked)
	must.OK(t, cmd.Process.Kill())
	if cmd.Wait() == nil {
		t.Error("the other process ended before it was killed")
	}
	if sb := openOnce(t, opts); sb.Generation != 2 {
		t.Errorf("generation is %d", sb.Generation)
	}
}

// openAndWatch opens the volume twice on m. It simulates a power cut after each operation, and tries every choice of
// the writes that survive. After each power cut, Open must succeed, the identity must be unchanged, and the
// generation must be higher than that of any earlier Open.
func openAndWatch(t *testing.T, m *vfstest.Mem, opts Options, returned Superblock) (points int) {
	t.Helper()
	m.AfterOp(func(op vfstest.Op) {
		points++
		for _, kind := range vfstest.SurvivalKinds {
			for seed := range uint64(8) {
				s := vfstest.Survival{Kind: kind, Seed: seed}
				disk := m.CrashClone(s)
				again := opts
				again.FS = disk
				v, err := Open(again)
				if err != nil {
					t.Fatalf("cut after %s, %s survives: %v", op, s, err)
				}
				sb := v.Superblock()
				must.OK(t, v.Close())
				if sb.Generation <= returned.Generation {
					t.Fatalf("cut after %s, %s survives: generation %d was seen before", op, s, sb.Generation)
				}
				if returned.Volume != uuid.Nil && sb.Volume != returned.Volume {
					t.Fatalf("cut after %s, %s survives: it is another volume", op, s)
				}
				if now, damages, err := VerifySuperblock(disk, opts.Dir); err != nil || now != sb || len(damages) > 0 {
					t.Fatalf("cut after %s, %s survives: after the start the superblock is %+v, damages %v, error %v", op, s, now,
						damages, err)
				}
			}
		}
	})
	defer m.AfterOp(nil)
	for range 2 {
		v := mustOpen(t, opts)
		returned = v.Superblock()
		must.OK(t, v.Close())
	}
	return points
}

func TestRule7_GenerationSurvivesEveryCrashPoint(t *testing.T) {
	m := vfstest.NewMem()
	points := openAndWatch(t, m, options(m), Superblock{})
	if points < 15 {
		t.Errorf("only %d crash points", points)
	}
	t.Logf("%d crash points", points)
}

func TestRule7_GenerationSurvivesEveryCrashPointOnAFullDisk(t *testing.T) {
	for name, damaged := range map[string]int64{"both copies whole": -1, "copy 0 damaged": 0, "copy 1 damaged": 1} {
		t.Run(name, func(t *testing.T) {
			m := vfstest.NewMem()
			sb := openOnce(t, options(m))
			if damaged >= 0 {
				flip(t, m, damaged*copyBytes+100, 0)
			}
			m.SetCapacity(fileBytes) // the superblock leaves no free space on the disk
			if s, err := m.Space("/v"); err != nil || s.FreeBytes != 0 {
				t.Fatal(s, err)
			}
			openAndWatch(t, m, options(m), sb)
			if now, _, err := VerifySuperblock(m, "/v"); err != nil || now.Generation != 3 {
				t.Errorf("superblock is %+v, %v", now, err)
			}
		})
	}
}

func TestOpenFailsCleanlyAtEveryFault(t *testing.T) {
	m := vfstest.NewMem()
	f := vfstest.NewFaulty(m)
	opts := options(f)
	sb := openOnce(t, opts)
	vfstest.Write(t, m, "/v/superblock.tmp", nil)
	for kind := vfstest.OpCreate; kind <= vfstest.OpSpace; kind++ {
		for skip := int64(0); ; skip++ {
			fault := f.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
				return op.Kind == kind
			}, Skip: skip, Count: 1, Effect: vfstest.EffectDrop})
			v, err := Open(opts)
			fault.Remove()
			if fault.Fired() == 0 {
				must.OK(t, err)
				must.OK(t, v.Close())
				break
			}
			if err == nil { // a copy that cannot be read is repaired from the other copy
				if kind != vfstest.OpRead {
					t.Errorf("%s number %d failed, and Open did not", kind, skip)
				}
				must.OK(t, v.Close())
			} else if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "/v") {
				t.Errorf("%s number %d: error %v", kind, skip, err)
			}
			after, _, err := VerifySuperblock(m, "/v")
			must.OK(t, err)
			if after.Volume != sb.Volume || after.Generation < sb.Generation {
				t.Fatalf("%s number %d: superblock was %+v, is %+v", kind, skip, sb, after)
			}
			sb = openOnce(t, opts) // a failed Open leaves nothing locked or unfinished
			if sb.Generation <= after.Generation {
				t.Fatalf("generation %d after %d", sb.Generation, after.Generation)
			}
		}
	}
	if f.Fired() < 12 {
		t.Errorf("only %d faults fired", f.Fired())
	}
}

func TestGroupsListsFoldersOfGroups(t *testing.T) {
	m := vfstest.NewMem()
	opts := options(m)
	var logged bytes.Buffer
	opts.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	v := mustOpen(t, opts)
	if groups, err := v.Groups(); err != nil || len(groups) != 0 {
		t.Errorf("groups of a new volume: %v, %v", groups, err)
	}
	for _, g := range []uuid.UUID{storeB, storeA} {
		must.OK(t, m.MkdirAll(v.GroupDir(g)))
	}
	must.OK(t, m.MkdirAll("/v/groups/notes"))
	// uuid.Parse accepts this name, but Groups must not.
	must.OK(t, m.MkdirAll("/v/groups/{aaaaaaaa-0000-4000-8000-000000000001}"))
	groups, err := v.Groups()
	must.OK(t, err)
	if !slices.Equal(groups, []uuid.UUID{storeA, storeB}) {
		t.Errorf("groups are %v", groups)
	}
	if !strings.Contains(logged.String(), "name=notes") {
		t.Errorf("the name that is no group was not logged: %s", logged.String())
	}
	if v.GroupDir(storeA) != "/v/groups/"+storeA.String() || v.TrashDir() != "/v/trash" || v.Dir() != "/v" {
		t.Errorf("folders: %s, %s, %s", v.GroupDir(storeA), v.TrashDir(), v.Dir())
	}
	must.OK(t, v.Close())
	must.OK(t, m.Rename(path.Join("/v", groupsName), "/elsewhere"))
	if _, err := v.Groups(); err == nil {
		t.Error("no error where the folder of the groups is gone")
	}
}
