package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"
	"path"

	"github.com/google/uuid"
)

// checkBlobs reads all blobs that entries refer to. Others are garbage, which the next load removes.
func (v *verifier) checkBlobs() error {
	type job struct {
		file string // the segment that refers to it
		scanBlob
	}
	var jobs []job
	known := make(map[uuid.UUID]bool)
	for _, s := range v.scans {
		for _, b := range s.blobs {
			if !b.bad && !known[b.ref.ID] {
				known[b.ref.ID] = true
				jobs = append(jobs, job{s.name, b})
			}
		}
	}
	v.report.Blobs = int64(len(jobs))
	v.badBlobs = make(map[uuid.UUID]bool)
	return v.each(len(jobs), func(i int, buffer []byte) error {
		b := jobs[i]
		bad, err := v.checkBlob(b.ref, buffer)
		if err != nil {
			return err
		}
		if len(bad) > 0 {
			v.mu.Lock()
			v.badBlobs[b.ref.ID] = true
			v.mu.Unlock()
		}
		for _, d := range bad {
			d.What += fmt.Sprintf(" (%s offset %d refers to it)", b.file, b.offset)
			d.IDs, d.IndexFirst, d.IndexLast = []int64{b.id}, b.index, b.index
			v.damage(d)
		}
		return nil
	})
}

// checkBlob reads one blob; bad is what is not right with it.
func (v *verifier) checkBlob(ref BlobRef, buffer []byte) (bad []Damage, err error) {
	name := BlobName(ref.ID)
	f, err := v.fs.OpenDirect(path.Join(v.dir, name))
	if errors.Is(err, iofs.ErrNotExist) {
		if v.opts.BlobGone != nil && v.opts.BlobGone(ref.ID) {
			return nil, nil
		}
		return []Damage{{File: name, Length: BlobFileBytes(ref.Size), What: "the blob's file is missing"}}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	ahead := newReadAhead(countingFile{f, v}, size)
	defer ahead.close()
	bad, err = scanBlobFile(ahead, size, buffer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(v.dir, name), err)
	}
	if len(bad) == 0 {
		w := openWindow(f, 0, size)
		w.space = buffer
		if got, err := decodeBlobHeader(w.fill(0, blobHeaderBytes)); err != nil || got != ref {
			bad = append(bad, Damage{Length: blobHeaderBytes, What: "the file is another blob than the entry refers to"})
		}
	}
	for i := range bad {
		bad[i].File = name
	}
	return bad, nil
}

// scanBlobFile checks a blob file by itself, in windows of the buffer.
func scanBlobFile(src io.ReaderAt, size int64, buffer []byte) ([]Damage, error) {
	w := openWindow(src, 0, size)
	w.space = buffer
	header := w.fill(0, min(blobHeaderBytes, size))
	if w.err != nil {
		return nil, w.err
	}
	ref, err := decodeBlobHeader(header[:min(blobHeaderBytes, size)])
	if errors.Is(err, ErrFormatVersion) {
		return nil, err
	}
	if err != nil {
		return []Damage{{Length: blobHeaderBytes, What: err.Error()}}, nil //nolint:nilerr // the damage says it
	}
	if want := BlobFileBytes(ref.Size); size != want {
		return []Damage{{Offset: min(size, want), Length: max(size, want) - min(size, want),
			What: fmt.Sprintf("the file has %d bytes, not %d", size, want)}}, nil
	}
	var bad []Damage
	crc := uint32(0)
	for number := int64(0); number*BlobChunkBytes < ref.Size; number++ {
		at := blobHeaderBytes + number*(BlobChunkBytes+blobCRCBytes)
		length := min(BlobChunkBytes, ref.Size-number*BlobChunkBytes)
		b := w.fill(at, length+blobCRCBytes)
		if w.err != nil {
			return nil, w.err
		}
		if binary.LittleEndian.Uint32(b[length:]) != blobChunkChecksum(b[:length], ref.ID, number) {
			what := fmt.Sprintf("chunk %d: checksum", number)
			if w.isUnreadable(at, length+blobCRCBytes) {
				what = fmt.Sprintf("chunk %d: the device cannot read it", number)
			}
			bad = append(bad, Damage{Offset: at, Length: length + blobCRCBytes, What: what})
		}
		crc = crc32.Update(crc, castagnoli, b[:length])
	}
	if len(bad) == 0 && crc != ref.CRC32C {
		bad = append(bad, Damage{Length: size, What: "the chunks are right, but the checksum of the whole data is not"})
	}
	return bad, nil
}
