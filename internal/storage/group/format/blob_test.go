package format

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func openBlob(t *testing.T, fs vfs.FS, dir string, ref BlobRef) BlobReader {
	t.Helper()
	r, err := OpenBlob(fs, dir, "g", ref)
	ok(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestBlobRoundTripsAtEveryEdgeOfAChunk(t *testing.T) {
	random := rand.New(rand.NewPCG(soaktest.Seed(t, 1), 0))
	fs, dir := vfs.OS{}, t.TempDir()
	for _, size := range []int{0, 1, BlobChunkBytes - 1, BlobChunkBytes, BlobChunkBytes + 1, 3*BlobChunkBytes + 5} {
		data := grouptest.RandomBytes(uint64(size), size)
		ref := writeBlob(t, fs, dir, data, 700_001)
		if ref.Size != int64(size) || ref.CRC32C != Checksum(data) {
			t.Errorf("size %d: %+v", size, ref)
		}
		info, err := fs.Stat(path.Join(dir, BlobName(ref.ID)))
		if err != nil || info.Size() != BlobFileBytes(int64(size)) {
			t.Errorf("size %d: file %v, %v", size, info, err)
		}
		r := openBlob(t, fs, dir, ref)
		got, err := io.ReadAll(io.NewSectionReader(r, 0, ref.Size))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("size %d: %d bytes, %v", size, len(got), err)
		}
		for range 20 {
			offset, length := random.IntN(size+2), random.IntN(2*BlobChunkBytes)
			p := make([]byte, length)
			n, err := r.ReadAt(p, int64(offset))
			want := data[min(offset, size):min(offset+length, size)]
			if !bytes.Equal(p[:n], want) || (err != nil) != (len(want) < length) || err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("size %d: read %d at %d: %d bytes, %v", size, length, offset, n, err)
			}
		}
	}
}

func TestBlobIsNotThereBeforeCommit(t *testing.T) {
	fs, dir := vfs.OS{}, t.TempDir()
	w, err := CreateBlob(fs, dir)
	ok(t, err)
	if _, err := w.Write(grouptest.RandomBytes(1, 2<<20)); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List(dir)
	if err != nil || len(names) != 1 || !strings.HasSuffix(names[0], TmpSuffix) {
		t.Errorf("%v, %v", names, err)
	}
	ok(t, w.Close())
	if names, err := fs.List(dir); err != nil || len(names) != 0 {
		t.Errorf("after Close: %v, %v", names, err)
	}
	if _, err := w.Write([]byte{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
	if _, err := w.Commit(); !errors.Is(err, ErrClosed) {
		t.Errorf("commit after Close: %v", err)
	}
}

func TestEveryPartOfABlobIsChecked(t *testing.T) {
	fs, dir := vfs.OS{}, t.TempDir()
	data := grouptest.RandomBytes(7, 2*BlobChunkBytes+100)
	ref := writeBlob(t, fs, dir, data, len(data))
	name := path.Join(dir, BlobName(ref.ID))
	f, err := fs.OpenWrite(name)
	ok(t, err)
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	size := BlobFileBytes(ref.Size)
	// bits holds the positions of all bits in the header and the checksums, and of a sample of the data bits.
	var bits []int64
	for at := range size {
		inChunk := (at - BlobHeaderBytes) % (BlobChunkBytes + BlobCRCBytes)
		if at < BlobHeaderBytes || at >= size-104 || inChunk < 2 || inChunk >= BlobChunkBytes-2 || at%50_021 == 0 {
			for bit := range int64(8) {
				bits = append(bits, at*8+bit)
			}
		}
	}
	for _, bit := range bits {
		one := make([]byte, 1)
		ok(t, ReadFull(f, one, bit/8))
		good := one[0]
		if _, err := f.WriteAt([]byte{good ^ 1<<(bit%8)}, bit/8); err != nil {
			t.Fatal(err)
		}
		if got, err := readBlobAt(fs, dir, ref, data, bit/8); err == nil {
			t.Fatalf("byte %d of %d: passes with %d bytes", bit/8, size, got)
		}
		if _, err := f.WriteAt([]byte{good}, bit/8); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := readBlobAt(fs, dir, ref, data, 0); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{size + 1, size - 1, BlobHeaderBytes, 5, 0} {
		ok(t, f.Truncate(n))
		var damage *DamageError
		if _, err := OpenBlob(fs, dir, "g", ref); !errors.As(err, &damage) || damage.Damage.File != BlobName(ref.ID) {
			t.Errorf("truncated to %d: %v", n, err)
		}
	}
	ok(t, fs.Remove(name))
	var damage *DamageError
	if _, err := OpenBlob(fs, dir, "g", ref); !errors.As(err, &damage) {
		t.Errorf("missing file: %v", err)
	}
}

// readBlobAt opens the blob and reads the chunk that contains the given byte of the file. It fails the test if it reads
// a wrong byte without an error.
func readBlobAt(fs vfs.FS, dir string, ref BlobRef, data []byte, fileOffset int64) (n int, err error) {
	r, err := OpenBlob(fs, dir, "g", ref)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	chunk := max(0, fileOffset-BlobHeaderBytes) / (BlobChunkBytes + BlobCRCBytes)
	p := make([]byte, min(BlobChunkBytes, ref.Size-chunk*BlobChunkBytes))
	n, err = r.ReadAt(p, chunk*BlobChunkBytes)
	if err == nil && !bytes.Equal(p, data[chunk*BlobChunkBytes:][:len(p)]) {
		return n, nil
	}
	return n, err
}

func TestBlobChunksCannotChangePlaces(t *testing.T) {
	fs, dir := vfs.OS{}, t.TempDir()
	data := grouptest.RandomBytes(8, 3*BlobChunkBytes)
	ref, other := writeBlob(t, fs, dir, data, 1<<20), writeBlob(t, fs, dir, data, 1<<20)
	b, err := ReadAll(fs, path.Join(dir, BlobName(ref.ID)), 1<<30)
	ok(t, err)
	const length = BlobChunkBytes + BlobCRCBytes
	check := func(what string, name string, content []byte, want BlobRef, chunk int64) {
		ok(t, fs.Remove(path.Join(dir, name)))
		ok(t, WriteReplace(fs, dir, name, content))
		var damage *DamageError
		if _, err := readBlobAt(fs, dir, want, data, BlobHeaderBytes+chunk*length); !errors.As(err, &damage) {
			t.Errorf("%s: %v", what, err)
		}
	}
	swapped := bytes.Clone(b)
	copy(swapped[BlobHeaderBytes:], b[BlobHeaderBytes+length:BlobHeaderBytes+2*length])
	check("chunk of another place", BlobName(ref.ID), swapped, ref, 0)
	foreign := bytes.Clone(b)
	copy(foreign, encodeBlobHeader(other))
	check("chunk of another blob", BlobName(other.ID), foreign, other, 1)
}

func TestBlobOnAFullDiskSaysSo(t *testing.T) {
	fs := vfstest.NewMem()
	fs.SetCapacity(BlobChunkBytes / 2)
	w, err := CreateBlob(fs, "/")
	ok(t, err)
	_, err = w.Write(grouptest.RandomBytes(1, BlobChunkBytes))
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if _, err := w.Commit(); !errors.Is(err, ErrNoSpace) {
		t.Errorf("commit: %v", err)
	}
	ok(t, w.Close())
	if names, err := fs.List("/"); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// TestBlobCommitFailsWithEverySyncAndRename checks two safety rules: data whose sync failed is never acknowledged (rule
// 5), and a file is acknowledged only if a sync of its folder has made its name durable (rule 6).
func TestBlobCommitFailsWithEverySyncAndRename(t *testing.T) {
	for _, kind := range []vfstest.OpKind{vfstest.OpWrite, vfstest.OpSync, vfstest.OpRename, vfstest.OpSyncDir} {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		w, err := CreateBlob(faulty, "/")
		ok(t, err)
		if _, err := w.Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == kind }})
		if _, err := w.Commit(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%v: %v", kind, err)
		}
		if fault.Fired() != 1 {
			t.Errorf("%v: fired %d times", kind, fault.Fired())
		}
		fault.Remove()
		if _, err := w.Commit(); err == nil {
			t.Errorf("%v: a second Commit succeeds", kind)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCommittedBlobSurvivesAPowerCut(t *testing.T) {
	fs := vfstest.NewMem()
	data := grouptest.RandomBytes(3, BlobChunkBytes+7)
	ref := writeBlob(t, fs, "/", data, 4096)
	for seed := range uint64(20) {
		for _, kind := range vfstest.SurvivalKinds {
			clone := fs.CrashClone(vfstest.Survival{Kind: kind, Seed: seed})
			r := openBlob(t, clone, "/", ref)
			got := make([]byte, len(data))
			if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%v/%d: %v", kind, seed, err)
			}
		}
	}
}
