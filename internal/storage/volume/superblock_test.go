package volume

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

var update = flag.Bool("update", false, "write the golden files of formats that have none yet")

// flip inverts one bit of the superblock file.
func flip(t testing.TB, m *vfstest.Mem, offset int64, bit int) {
	t.Helper()
	f, err := m.OpenWrite("/v/superblock")
	must.OK(t, err)
	one := make([]byte, 1)
	_, err = f.ReadAt(one, offset)
	must.OK(t, err)
	one[0] ^= 1 << bit
	_, err = f.WriteAt(one, offset)
	must.OK(t, err)
	must.OK(t, f.Sync())
	must.OK(t, f.Close())
}

// after returns the superblock that the next start must write in place of `before`. The step's nonce is random and
// cannot be predicted, so after copies it from `now`, the superblock that was actually written.
func after(before, now Superblock) Superblock {
	before.Generation++
	before.Step.Number++
	before.Step.Nonce = now.Step.Nonce
	return before
}

func TestEveryBitOfTheSuperblockFlipped(t *testing.T) {
	if testing.Short() {
		t.Skip("short: one goroutine, many bits")
	}
	m := vfstest.NewMem()
	want := openOnce(t, options(m))
	for offset := range int64(fileBytes) {
		for bit := range 8 {
			flip(t, m, offset, bit)
			sb, damages, err := VerifySuperblock(m, "/v")
			if err != nil || sb != want {
				t.Fatalf("bit %d of byte %d flipped: %+v, %v", bit, offset, sb, err)
			}
			where := fmt.Sprintf("/v/superblock offset %d:", offset/copyBytes*copyBytes)
			if len(damages) != 1 || !strings.Contains(damages[0].Error(), where) {
				t.Fatalf("bit %d of byte %d flipped: damages %v", bit, offset, damages)
			}
			flip(t, m, offset, bit)
		}
		if offset%97 == 0 { // tests, for some offsets, that a start repairs the damaged copy
			flip(t, m, offset, 3)
			sb := openOnce(t, options(m))
			if want = after(want, sb); sb != want {
				t.Fatalf("byte %d damaged: the start says %+v", offset, sb)
			}
			if _, damages, err := VerifySuperblock(m, "/v"); err != nil || len(damages) > 0 {
				t.Fatalf("byte %d damaged: not healed by the start: %v, %v", offset, damages, err)
			}
		}
	}
}

func TestEveryBitOfBothCopiesFlipped(t *testing.T) {
	m := vfstest.NewMem()
	openOnce(t, options(m))
	for offset := range int64(copyBytes) {
		for bit := range 8 {
			flip(t, m, offset, bit)
			flip(t, m, offset+copyBytes, bit)
			_, _, err := VerifySuperblock(m, "/v")
			if !errors.Is(err, ErrDamaged) || errors.Is(err, ErrFormatVersion) {
				t.Fatalf("bit %d of byte %d flipped twice: error %v", bit, offset, err)
			}
			if offset%256 == 0 {
				refused(t, options(m), ErrDamaged, "superblock", "backup", "copy 0", "copy 1")
			}
			flip(t, m, offset, bit)
			flip(t, m, offset+copyBytes, bit)
		}
	}
	openOnce(t, options(m))
}

func TestEveryTruncationOfTheSuperblock(t *testing.T) {
	m := vfstest.NewMem()
	want := openOnce(t, options(m))
	content := vfstest.Read(t, m, "/v/superblock")
	for length := range fileBytes {
		f := vfstest.Write(t, m, "/v/superblock", content[:length])
		must.OK(t, f.Close())
		sb, damages, err := VerifySuperblock(m, "/v")
		if length < copyBytes {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("%d bytes: error %v", length, err)
			}
		} else if err != nil || sb != want || len(damages) != 1 {
			t.Fatalf("%d bytes: %+v, damages %v, error %v", length, sb, damages, err)
		}
	}
}

// seal writes the correct CRC into the copy b.
func seal(b []byte) {
	binary.LittleEndian.PutUint32(b[crcAt:], crc32c.Of(b[:crcAt]))
}

func TestNewerFormatVersionIsNotDamage(t *testing.T) {
	m := vfstest.NewMem()
	openOnce(t, options(m))
	content := vfstest.Read(t, m, "/v/superblock")
	for at := 0; at < fileBytes; at += copyBytes {
		b := content[at : at+copyBytes]
		binary.LittleEndian.PutUint32(b[versionAt:], FormatVersion+1)
		b[flagsAt] = 9 // a newer format may use these bytes
		seal(b)
	}
	must.OK(t, vfstest.Write(t, m, "/v/superblock", content).Close())
	refused(t, options(m), ErrFormatVersion, "format version 4", "newer one")
	if _, _, err := VerifySuperblock(m, "/v"); !errors.Is(err, ErrFormatVersion) || errors.Is(err, ErrDamaged) {
		t.Errorf("error is %v", err)
	}
}

func TestWellSealedNonsenseIsDamage(t *testing.T) {
	valid := (&Superblock{Store: storeA, Volume: storeB, Generation: 7, Shard: "s0"}).encode()
	if _, err := decode(valid); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(b []byte){
		"version 0":          func(b []byte) { b[versionAt] = 0 },
		"no shard":           func(b []byte) { b[shardLenAt] = 0 },
		"shard too long":     func(b []byte) { binary.LittleEndian.PutUint16(b[shardLenAt:], ShardNameBytesMax+1) },
		"shard enormous":     func(b []byte) { binary.LittleEndian.PutUint16(b[shardLenAt:], 0xffff) },
		"zero in shard":      func(b []byte) { b[shardAt] = 0 },
		"byte behind shard":  func(b []byte) { b[shardAt+2] = 1 },
		"unknown flag":       func(b []byte) { b[flagsAt] = 2 },
		"byte before steps":  func(b []byte) { b[stepAt-1] = 1 },
		"byte behind steps":  func(b []byte) { b[registerAt+stepBytes] = 1 },
		"step of version 2":  func(b []byte) { b[versionAt] = 2; b[stepAt] = 1 },
		"flag of version 1":  func(b []byte) { b[versionAt], b[flagsAt] = 1, 1 },
		"last unused byte":   func(b []byte) { b[crcAt-1] = 1 },
		"another magic":      func(b []byte) { b[0] = 's' },
		"CRC of other bytes": func(b []byte) { b[crcAt] ^= 1; b[generateAt] ^= 1 },
	} {
		b := bytes.Clone(valid)
		change(b)
		if name != "CRC of other bytes" {
			seal(b)
		}
		if sb, err := decode(b); err == nil || errors.Is(err, ErrFormatVersion) {
			t.Errorf("%s: %+v, error %v", name, sb, err)
		}
	}
	if _, err := decode(nil); err == nil {
		t.Error("nothing at all is a superblock")
	}
}

func TestCopiesOfDifferentVolumesAreDamage(t *testing.T) {
	m := vfstest.NewMem()
	sb := openOnce(t, options(m))
	other := sb
	other.Volume = uuid.New()
	must.OK(t, vfstest.Write(t, m, "/v/superblock", append(sb.encode(), other.encode()...)).Close())
	refused(t, options(m), ErrDamaged, sb.Volume.String(), other.Volume.String())
	newer, further := sb, sb
	newer.Generation = 40
	further.Step.Number++
	for _, later := range []Superblock{newer, further} {
		for _, content := range [][]byte{append(sb.encode(), later.encode()...), append(later.encode(), sb.encode()...)} {
			must.OK(t, vfstest.Write(t, m, "/v/superblock", content).Close())
			if got, _, err := VerifySuperblock(m, "/v"); err != nil || got != later {
				t.Errorf("of two states %+v was taken, error %v", got, err)
			}
		}
	}
}

func TestCopyThatCannotBeRead(t *testing.T) {
	m := vfstest.NewMem()
	f := vfstest.NewFaulty(m)
	want := openOnce(t, options(f))
	for _, offset := range []int64{0, copyBytes} {
		fault := f.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpRead && op.Offset == offset
		}})
		sb, damages, err := VerifySuperblock(f, "/v")
		if err != nil || sb != want || len(damages) != 1 || fault.Fired() != 1 {
			t.Errorf("offset %d: %+v, damages %v, error %v, fired %d", offset, sb, damages, err, fault.Fired())
		}
		fault.Remove()
	}
	f.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpRead }})
	refused(t, options(f), ErrDamaged, "cannot be read")
}

// TestGoldenSuperblock reads a file of each format version that ever existed. These files must never be removed.
func TestGoldenSuperblock(t *testing.T) {
	first := Superblock{Store: storeA, Volume: storeB, Generation: 0x0102030405060708, Created: 1795236447085296573,
		Shard: "quotes-ssd-0"}
	second, third := first, first
	second.Journal = true
	third.Journal = true
	third.Step = Step{Number: 0x1112131415161718, Nonce: storeA}
	third.Registered = Step{Number: 0x2122232425262728, Nonce: storeB}
	for i, want := range []Superblock{first, second, third} {
		version := i + 1
		name := fmt.Sprintf("testdata/superblock-v%d.hex", version)
		if *update && version == FormatVersion {
			if _, err := os.Stat(name); err == nil {
				t.Fatalf("%s exists and stays as it is", name)
			}
			must.OK(t, os.WriteFile(name, []byte(hex.Dump(want.encode())), 0o600))
		}
		golden, err := os.ReadFile(name)
		must.OK(t, err)
		if FormatVersion == version && string(golden) != hex.Dump(want.encode()) {
			t.Errorf("the format changed without a new version; it is now\n%s", hex.Dump(want.encode()))
		}
		got, err := decode(undump(t, golden))
		if err != nil || got != want {
			t.Errorf("version %d reads as %+v, %v", version, got, err)
		}
	}
}

// TestAnOlderSuperblockIsOpened checks that a volume in any earlier format can be opened, and is upgraded to the newest
// format.
func TestAnOlderSuperblockIsOpened(t *testing.T) {
	for version := 1; version < FormatVersion; version++ {
		golden, err := os.ReadFile(fmt.Sprintf("testdata/superblock-v%d.hex", version))
		must.OK(t, err)
		m := vfstest.NewMem()
		must.OK(t, m.MkdirAll("/v"))
		b := undump(t, golden)
		must.OK(t, vfstest.Write(t, m, "/v/superblock", append(bytes.Clone(b), b...)).Close())
		was, _, err := VerifySuperblock(m, "/v")
		must.OK(t, err)
		sb := openOnce(t, Options{FS: m, Dir: "/v", ReserveBytes: 1})
		if sb != after(was, sb) || sb.Step.Number != 1 || sb.Step.Nonce == uuid.Nil || sb.Journal != (version == 2) {
			t.Errorf("version %d is opened as %+v, was %+v", version, sb, was)
		}
		if got, _, err := VerifySuperblock(m, "/v"); err != nil || got != sb {
			t.Errorf("version %d reads as %+v then, %v", version, got, err)
		}
	}
}

// TestStepsOfAVolume checks that each start and each NextStep creates a new state, and that a crash at any moment
// leaves either the old or the new state. Each state includes the latest step that was known to be registered.
func TestStepsOfAVolume(t *testing.T) {
	m := vfstest.NewMem()
	seen := map[Step]bool{}
	last := Step{}
	for range 3 {
		opts := options(m)
		opts.Registered = last
		v, err := Open(opts)
		must.OK(t, err)
		if sb := v.Superblock(); sb.Step.Number != last.Number+1 || sb.Registered != last || seen[sb.Step] {
			t.Fatalf("a start makes %+v after %+v", sb, last)
		}
		last = v.Superblock().Step
		for range 3 {
			seen[last] = true
			before := last
			last, err = v.NextStep(before)
			must.OK(t, err)
			sb, _, err := VerifySuperblock(m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), "/v")
			if err != nil || sb.Step != last || sb.Registered != before || last.Number != before.Number+1 || seen[last] {
				t.Fatalf("the step behind %+v is %+v; on disk %+v, %v", before, last, sb, err)
			}
			must.OK(t, v.SetJournal(!sb.Journal))
			if sb, _, err := VerifySuperblock(m, "/v"); err != nil || sb.Step != last {
				t.Fatalf("a note of a journal leaves %+v, %v", sb, err)
			}
		}
		must.OK(t, v.Close())
	}
	v, err := Open(options(m))
	must.OK(t, err)
	must.OK(t, v.Close())
	if _, err := v.NextStep(last); !errors.Is(err, ErrClosed) {
		t.Errorf("a step of a closed volume: %v", err)
	}
}

// undump is the inverse of hex.Dump.
func undump(t *testing.T, dump []byte) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(string(dump)) {
		if len(line) < 60 {
			t.Fatalf("a line that is not of a dump: %q", line)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(line[10:58], " ", ""))
		must.OK(t, err)
		out = append(out, b...)
	}
	return out
}

func FuzzDecodeSuperblock(f *testing.F) {
	valid := (&Superblock{Store: storeA, Volume: storeB, Generation: 7, Shard: "s0"}).encode()
	f.Add(valid, false)
	f.Add([]byte(magic), true)
	f.Add(valid[:shardAt], true)
	f.Fuzz(func(t *testing.T, b []byte, fit bool) {
		if fit { // sets the correct length and CRC, so that decode gets past these checks
			b = append(bytes.Clone(b), make([]byte, copyBytes)...)[:copyBytes]
			copy(b, magic)
			seal(b)
		}
		sb, err := decode(b)
		if err != nil {
			return
		}
		if binary.LittleEndian.Uint32(b[versionAt:]) == FormatVersion && !bytes.Equal(sb.encode(), b) {
			t.Errorf("%+v was read, and is written in another way", sb)
		}
	})
}

// TestAStepDoesNotHealWhatTheDeviceLost checks that NextStep does not write a superblock to a device that has lost
// its content, because a new superblock would hide the loss.
func TestAStepDoesNotHealWhatTheDeviceLost(t *testing.T) {
	for name, now := range map[string]func(was []byte) []byte{
		"zeros":     func(was []byte) []byte { return make([]byte, len(was)) },
		"it before": func(was []byte) []byte { return was },
	} {
		m := vfstest.NewMem()
		v, err := Open(options(m))
		must.OK(t, err)
		sb := v.Superblock()
		was := bytes.Repeat(sb.encode(), copyCount)
		first, err := v.NextStep(Step{})
		must.OK(t, err)
		content := now(was)
		must.OK(t, vfstest.Write(t, m, "/v/superblock", content).Close())
		if _, err := v.NextStep(first); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: a step over it: %v", name, err)
		}
		if err := v.SetJournal(!v.Superblock().Journal); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: a note over it: %v", name, err)
		}
		f, err := m.Open("/v/superblock")
		must.OK(t, err)
		got := make([]byte, len(content))
		_, err = f.ReadAt(got, 0)
		must.OK(t, err)
		if !bytes.Equal(got, content) {
			t.Errorf("%s: the superblock was written", name)
		}
		must.OK(t, f.Close())
		must.OK(t, v.Close())
	}
}

// TestAnAbsurdGenerationIsDamage checks that a generation or a step counts as damage if it is so large that a start
// could not add to it without overflow.
func TestAnAbsurdGenerationIsDamage(t *testing.T) {
	for what, sb := range map[string]Superblock{
		"generation": {Generation: 1<<62 + 1}, "step": {Generation: 1, Step: Step{Number: math.MaxUint64}},
		"registered": {Generation: 1, Registered: Step{Number: 1 << 63}},
	} {
		sb.Store, sb.Volume, sb.Shard = storeA, storeB, "s0"
		if got, err := decode(sb.encode()); err == nil {
			t.Errorf("%s: %+v is taken", what, got)
		}
	}
}
