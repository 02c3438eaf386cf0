package segio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"syscall"
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
		var got []byte
		buffer := make([]byte, 3*format.BlockBytes+2*aheadBytes)
		for at := int64(0); ; {
			n, err := r.ReadAt(buffer[:format.BlockBytes*(1+random.IntN(len(buffer)/format.BlockBytes))], at)
			got = append(got, buffer[:n]...)
			at += int64(n)
			if errors.Is(err, io.EOF) || at%format.BlockBytes != 0 {
				break
			}
			grouptest.Must(t, err)
			if random.IntN(4) == 0 { // the rest of a read, without a copy
				piece, begin := r.next(at)
				if piece == nil {
					break
				}
				got = append(got, piece[begin:]...)
				at += int64(len(piece) - begin)
				clear(piece) // the piece belongs to the caller until release
				r.release()
				if at%format.BlockBytes != 0 {
					break
				}
			}
			if random.IntN(4) == 0 { // a jump to a different place, and back
				other := random.Int64N(int64(size)) &^ (format.BlockBytes - 1)
				n, err := r.ReadAt(buffer[:format.BlockBytes], other)
				if want := image[other:min(other+format.BlockBytes, int64(size))]; !bytes.Equal(buffer[:n], want) || err != nil &&
					!errors.Is(err, io.EOF) {
					t.Fatalf("read at %d: %d bytes, %v", other, n, err)
				}
			}
		}
		r.Close()
		if !bytes.Equal(got, image) {
			t.Errorf("size %d: %d bytes, not those of the file", size, len(got))
		}
	}
}

func TestReadAheadAnswersTheErrorOfABadSectorOnce(t *testing.T) {
	image := grouptest.RandomBytes(1, 8<<20)
	r := NewReadAhead(grouptest.AlignedReader{Image: image, Bad: map[int64]bool{600: true}}, int64(len(image)))
	defer r.Close()
	buffer := make([]byte, aheadBytes)
	for at := int64(0); at < 600*format.BlockBytes&^(aheadBytes-1); at += aheadBytes {
		if n, err := r.ReadAt(buffer, at); n != aheadBytes || err != nil {
			t.Fatalf("at %d: %d, %v", at, n, err)
		}
	}
	if _, err := r.ReadAt(buffer, 2<<20); !errors.Is(err, syscall.EIO) {
		t.Errorf("the bad sector: %v", err)
	}
	if n, err := r.ReadAt(buffer, 3<<20); n != aheadBytes || err != nil || !bytes.Equal(buffer, image[3<<20:4<<20]) {
		t.Errorf("behind it: %d, %v", n, err)
	}
}
