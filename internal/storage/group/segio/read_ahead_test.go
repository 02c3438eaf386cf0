package segio

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

func TestReadAheadReadsWhatTheFileHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(soaktest.Seed(t, 1), 0))
	for _, size := range []int{1, format.BlockBytes, aheadBytes - 1, aheadBytes, aheadBytes + 1, 7*aheadBytes + 12345} {
		image := grouptest.RandomBytes(uint64(size), size)
		r := NewReadAhead(grouptest.AlignedReader{Image: image}, int64(size))
		read := func(at int64) int64 {
			piece, begin := r.next(at)
			if piece == nil {
				return 0
			}
			n := len(piece) - begin
			if !bytes.Equal(piece[begin:], image[at:at+int64(n)]) {
				t.Fatalf("size %d: %d bytes at %d are not those of the file", size, n, at)
			}
			// The piece belongs to the caller until release, so the caller may overwrite it.
			clear(piece)
			r.release()
			return int64(n)
		}
		at := int64(0)
		for n := read(at); n > 0; n = read(at) {
			at += n
			if random.IntN(4) == 0 { // jumps to a different offset, and back
				other := random.Int64N(int64(size)) &^ (format.BlockBytes - 1)
				if read(other) == 0 {
					t.Fatalf("size %d: nothing at %d", size, other)
				}
			}
		}
		r.Close()
		if at != int64(size) {
			t.Errorf("size %d: %d bytes", size, at)
		}
	}
}

func TestReadAheadContinuesBehindABadSector(t *testing.T) {
	image := grouptest.RandomBytes(1, 8<<20)
	r := NewReadAhead(grouptest.AlignedReader{Image: image, Bad: map[int64]bool{600: true}}, int64(len(image)))
	defer r.Close()
	for at := int64(0); at < 4<<20; at += aheadBytes {
		piece, begin := r.next(at)
		if bad := at == 2<<20; bad != (piece == nil) || !bad && !bytes.Equal(piece[begin:], image[at:at+aheadBytes]) {
			t.Errorf("at %d: %d bytes", at, len(piece)-begin)
		}
	}
}

// TestReadAheadEndsWithAFileThatIsShorterThanItWas truncates a file after its size was read. Reading must stop at the
// new end of the file, wherever that is.
func TestReadAheadEndsWithAFileThatIsShorterThanItWas(t *testing.T) {
	for _, size := range []int64{format.BlockBytes, aheadBytes, aheadBytes + format.BlockBytes} {
		image := grouptest.RandomBytes(1, int(size))
		r := NewReadAhead(grouptest.AlignedReader{Image: image}, 4*aheadBytes)
		at := int64(0)
		for piece, begin := r.next(at); piece != nil; piece, begin = r.next(at) {
			at += int64(len(piece) - begin)
		}
		r.Close()
		if at != size {
			t.Errorf("%d bytes of %d", at, size)
		}
	}
}
