package volume

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/vfs"
	"sheaf.dev/sheaf/internal/vfs/vfstest"
)

var update = flag.Bool("update", false, "write the golden files of formats that have none yet")

// flip inverts one bit of the superblock file.
func flip(t testing.TB, m *vfs.Mem, offset int64, bit int) {
	t.Helper()
	f, err := m.OpenWrite("/v/superblock")
	check(t, err)
	one := make([]byte, 1)
	_, err = f.ReadAt(one, offset)
	check(t, err)
	one[0] ^= 1 << bit
	_, err = f.WriteAt(one, offset)
	check(t, err)
	check(t, f.Sync())
	check(t, f.Close())
}

func TestEveryBitOfTheSuperblockFlipped(t *testing.T) {
	m := vfs.NewMem()
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
		if offset%97 == 0 { // both healed by a start
			flip(t, m, offset, 3)
			want.Generation++
			if sb := openOnce(t, options(m)); sb != want {
				t.Fatalf("byte %d damaged: the start says %+v", offset, sb)
			}
			if _, damages, err := VerifySuperblock(m, "/v"); err != nil || len(damages) > 0 {
				t.Fatalf("byte %d damaged: not healed by the start: %v, %v", offset, damages, err)
			}
		}
	}
}

func TestEveryBitOfBothCopiesFlipped(t *testing.T) {
	m := vfs.NewMem()
	openOnce(t, options(m))
	for offset := range int64(copyBytes) {
		for bit := range 8 {
			flip(t, m, offset, bit)
			flip(t, m, offset+copyBytes, bit)
			_, err := ReadSuperblock(m, "/v")
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
	m := vfs.NewMem()
	want := openOnce(t, options(m))
	content := vfstest.Read(t, m, "/v/superblock")
	for length := range fileBytes {
		f := vfstest.Write(t, m, "/v/superblock", content[:length])
		check(t, f.Close())
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

// seal puts the right CRC under a copy.
func seal(b []byte) {
	binary.LittleEndian.PutUint32(b[crcAt:], crc32.Checksum(b[:crcAt], castagnoli))
}

func TestNewerFormatVersionIsNotDamage(t *testing.T) {
	m := vfs.NewMem()
	openOnce(t, options(m))
	content := vfstest.Read(t, m, "/v/superblock")
	for at := 0; at < fileBytes; at += copyBytes {
		b := content[at : at+copyBytes]
		binary.LittleEndian.PutUint32(b[versionAt:], FormatVersion+1)
		b[zeroAt] = 9 // a newer format may use it
		seal(b)
	}
	check(t, vfstest.Write(t, m, "/v/superblock", content).Close())
	refused(t, options(m), ErrFormatVersion, "format version 3", "newer one")
	if _, err := ReadSuperblock(m, "/v"); !errors.Is(err, ErrFormatVersion) || errors.Is(err, ErrDamaged) {
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
		"byte before store":  func(b []byte) { b[zeroAt] = 1 },
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
	m := vfs.NewMem()
	sb := openOnce(t, options(m))
	other := sb
	other.Volume = uuid.New()
	check(t, vfstest.Write(t, m, "/v/superblock", append(sb.encode(), other.encode()...)).Close())
	refused(t, options(m), ErrDamaged, sb.Volume.String(), other.Volume.String())
	newer := sb
	newer.Generation = 40
	for _, content := range [][]byte{append(sb.encode(), newer.encode()...), append(newer.encode(), sb.encode()...)} {
		check(t, vfstest.Write(t, m, "/v/superblock", content).Close())
		if got, err := ReadSuperblock(m, "/v"); err != nil || got != newer {
			t.Errorf("of two generations %+v was taken, error %v", got, err)
		}
	}
}

func TestCopyThatCannotBeRead(t *testing.T) {
	m := vfs.NewMem()
	f := vfs.NewFaulty(m)
	want := openOnce(t, options(f))
	for _, offset := range []int64{0, copyBytes} {
		fault := f.Add(&vfs.Fault{Match: func(op vfs.Op) bool { return op.Kind == vfs.OpRead && op.Offset == offset }})
		sb, damages, err := VerifySuperblock(f, "/v")
		if err != nil || sb != want || len(damages) != 1 || fault.Fired() != 1 {
			t.Errorf("offset %d: %+v, damages %v, error %v, fired %d", offset, sb, damages, err, fault.Fired())
		}
		fault.Remove()
	}
	f.Add(&vfs.Fault{Match: func(op vfs.Op) bool { return op.Kind == vfs.OpRead }})
	refused(t, options(f), ErrDamaged, "cannot be read")
}

// TestGoldenSuperblock reads the files of every format version that ever was. They stay for ever.
func TestGoldenSuperblock(t *testing.T) {
	want := Superblock{Store: storeA, Volume: storeB, Generation: 0x0102030405060708, Created: 1795236447085296573, Shard: "quotes-ssd-0"}
	const name = "testdata/superblock-v1.hex"
	if *update {
		if _, err := os.Stat(name); err == nil {
			t.Fatalf("%s exists and stays as it is", name)
		}
		check(t, os.MkdirAll("testdata", 0o750))
		check(t, os.WriteFile(name, []byte(hex.Dump(want.encode())), 0o600))
	}
	golden, err := os.ReadFile(name)
	check(t, err)
	if FormatVersion == 1 && string(golden) != hex.Dump(want.encode()) {
		t.Errorf("the format changed without a new version; it is now\n%s", hex.Dump(want.encode()))
	}
	got, err := decode(undump(t, golden))
	if err != nil || got != want {
		t.Errorf("reads as %+v, %v", got, err)
	}
}

// undump is the reverse of hex.Dump.
func undump(t *testing.T, dump []byte) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(string(dump)) {
		if len(line) < 60 {
			t.Fatalf("a line that is not of a dump: %q", line)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(line[10:58], " ", ""))
		check(t, err)
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
		if fit { // let it pass the length and the CRC
			b = append(bytes.Clone(b), make([]byte, copyBytes)...)[:copyBytes]
			copy(b, magic)
			seal(b)
		}
		sb, err := decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(sb.encode(), b) {
			t.Errorf("%+v was read, and is written in another way", sb)
		}
	})
}
