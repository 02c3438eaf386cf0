package format

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/uuid"
)

func TestABlobFileIsMadeFromItsData(t *testing.T) {
	for _, size := range []int{0, 1, BlobChunkBytes - 1, BlobChunkBytes, 2*BlobChunkBytes + 7} {
		data := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
		ref := BlobRef{ID: uuid.New(), Size: int64(size), CRC32C: Checksum(data)}
		file, err := io.ReadAll(BlobFileReader(ref, bytes.NewReader(data)))
		if err != nil || int64(len(file)) != BlobFileBytes(int64(size)) {
			t.Fatalf("%d bytes of data: %d bytes of the file, %v", size, len(file), err)
		}
		if back, err := DecodeBlobHeader(file); err != nil || back != ref {
			t.Errorf("%d bytes of data: the header is of %+v, %v", size, back, err)
		}
		var got []byte
		for n := int64(0); int64(len(got)) < ref.Size; n++ {
			at, length := BlobChunk(ref.Size, n)
			chunk := file[at : at+length]
			if !IsBlobChunk(chunk, ref.ID, n) {
				t.Fatalf("%d bytes of data: chunk %d does not pass", size, n)
			}
			got = append(got, chunk[:length-BlobCRCBytes]...)
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes of data: the file has other ones", size)
		}
		if size == 0 {
			continue
		}
		if _, err := io.ReadAll(BlobFileReader(ref, bytes.NewReader(data[1:]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of data, one of which is missing: %v", size, err)
		}
	}
}
