package pieces

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// blobFile returns a blob's file as a replica writes it.
func blobFile(t *testing.T, data []byte) ([]byte, format.BlobRef) {
	t.Helper()
	disk := vfstest.NewMem()
	if err := disk.MkdirAll("/g"); err != nil {
		t.Fatal(err)
	}
	w, err := format.CreateBlob(disk, "/g")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	ref, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	file, err := format.ReadAll(disk, "/g/"+format.BlobName(ref.ID), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return file, ref
}

func TestTheDataOfABlob(t *testing.T) {
	for _, n := range []int{0, 1, 1 << 20, 1<<20 + 1, 3 << 20} {
		data := make([]byte, n)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
		file, ref := blobFile(t, data)
		got, err := io.ReadAll(NewBlobReader(iotest.HalfReader(bytes.NewReader(file)), ref))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: %v, %d bytes came", n, err, len(got))
		}
	}
}

func TestDamagedBlobIsNeverReadToItsEnd(t *testing.T) {
	data := bytes.Repeat([]byte("data"), 300_000)
	file, ref := blobFile(t, data)
	refused := func(name string, file []byte, ref format.BlobRef) {
		t.Helper()
		if _, err := io.ReadAll(NewBlobReader(bytes.NewReader(file), ref)); !errors.Is(err, object.ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for _, at := range []int{3, 20, 41, 127, 128, 1000, 1<<20 + 130, len(file) - 1} {
		changed := bytes.Clone(file)
		changed[at] ^= 1
		refused("a flipped bit", changed, ref)
		refused("cut", file[:at], ref)
	}
	refused("longer", append(bytes.Clone(file), 0), ref)
	other := ref
	other.CRC32C++
	refused("another blob", file, other)
	broken := errors.New("broken")
	src := io.MultiReader(bytes.NewReader(file[:500]), iotest.ErrReader(broken))
	if _, err := io.ReadAll(NewBlobReader(src, ref)); !errors.Is(err, broken) || errors.Is(err, object.ErrCorrupt) {
		t.Errorf("error of the source: %v", err)
	}
}
