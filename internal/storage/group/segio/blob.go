package segio

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// CheckBlob reads a blob's file, one buffer at a time, and returns the damage in the order of offsets. The argument
// want is the expected blob. If it is nil, the header determines the blob. CheckBlob returns an error if the file could
// not be read.
func CheckBlob(src io.ReaderAt, size int64, want *format.BlobRef, buffer []byte) (bad []format.Damage, err error) {
	add := func(offset, length int64, what string) {
		bad = append(bad, format.Damage{Offset: offset, Length: length, What: what})
	}
	w := OpenWindow(src, 0, size)
	w.UseBuffer(buffer)
	header := w.Fill(0, min(format.BlobHeaderBytes, size))
	if w.Err() != nil {
		return nil, w.Err()
	}
	ref, err := format.DecodeBlobHeader(header[:min(format.BlobHeaderBytes, size)])
	switch {
	case errors.Is(err, format.ErrFormatVersion):
		return nil, err
	case err != nil:
		add(0, format.BlobHeaderBytes, err.Error())
		return bad, nil
	case want != nil && *want != ref:
		add(0, format.BlobHeaderBytes, "the file is another blob than the entry refers to")
		return bad, nil
	}
	crc := uint32(0)
	for number := int64(0); number*format.BlobChunkBytes < ref.Size; number++ {
		at, length := format.BlobChunk(ref.Size, number)
		if at+length > size {
			break
		}
		b := w.Fill(at, length)[:length]
		if w.Err() != nil {
			return nil, w.Err()
		}
		switch {
		case format.IsBlobChunk(b, ref.ID, number):
		case w.isUnreadable(at, length):
			add(at, length, fmt.Sprintf("chunk %d: the device cannot read it", number))
		default:
			add(at, length, fmt.Sprintf("chunk %d: checksum", number))
		}
		crc = crc32.Update(crc, crc32c.Table, b[:length-format.BlobCRCBytes])
	}
	if is := format.BlobFileBytes(ref.Size); size != is {
		add(min(size, is), max(size, is)-min(size, is), fmt.Sprintf("the file has %d bytes, not %d", size, is))
	}
	if len(bad) == 0 && crc != ref.CRC32C {
		add(0, size, "the chunks are right, but the checksum of the whole data is not")
	}
	return bad, nil
}

// WholeBlob returns the offset of the first damaged chunk in a blob's file. It returns the file's size if nothing is
// damaged, and 0 if the header or the checksum of the whole data is wrong. The argument bad is the damage that
// CheckBlob found.
func WholeBlob(size int64, bad []format.Damage) int64 {
	if len(bad) == 0 {
		return size
	}
	const chunk = format.BlobChunkBytes + format.BlobCRCBytes
	if at := bad[0].Offset - format.BlobHeaderBytes; at >= 0 {
		return format.BlobHeaderBytes + at/chunk*chunk
	}
	return 0
}
