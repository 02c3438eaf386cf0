package fsck

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// checkBlobs reads all blobs to which entries refer. Other blobs are garbage, which the next load removes.
func (v *verifier) checkBlobs() error {
	type job struct {
		scan *segmentScan // the segment whose entry refers to the blob
		format.HintBlob
	}
	var jobs []job
	known := make(map[uuid.UUID]bool)
	for _, s := range v.scans {
		for _, b := range s.Rows.Blobs {
			if !known[b.Ref.ID] && !s.gone[b.Index] {
				known[b.Ref.ID] = true
				jobs = append(jobs, job{s, b})
			}
		}
	}
	v.report.Blobs = int64(len(jobs))
	v.badBlobs = make(map[uuid.UUID]bool)
	return v.each(len(jobs), func(i int, buffer []byte) error {
		b := jobs[i]
		bad, err := v.checkBlob(b.Ref, buffer)
		if err != nil {
			return err
		}
		if len(bad) > 0 {
			v.mu.Lock()
			v.badBlobs[b.Ref.ID] = true
			v.mu.Unlock()
		}
		for _, d := range bad {
			row := b.scan.rowOf(b.Index)
			d.What += fmt.Sprintf(" (%s offset %d refers to it)", b.scan.name, b.scan.offset(row))
			d.IDs, d.IndexFirst, d.IndexLast = []int64{b.scan.Rows.IDs[row]}, b.Index, b.Index
			v.damage(d)
		}
		return nil
	})
}

// checkBlob reads one blob and returns the damage to it.
func (v *verifier) checkBlob(ref format.BlobRef, buffer []byte) (bad []format.Damage, err error) {
	name := format.BlobName(ref.ID)
	f, err := v.fs.OpenDirect(path.Join(v.dir, name))
	if errors.Is(err, iofs.ErrNotExist) {
		if v.opts.BlobGone != nil && v.opts.BlobGone(ref.ID) {
			return nil, nil
		}
		return []format.Damage{{File: name, Length: format.BlobFileBytes(ref.Size), What: "the blob's file is missing"}}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	ahead := segio.NewReadAhead(countingFile{f, v}, size)
	defer ahead.Close()
	if bad, err = segio.CheckBlob(ahead, size, &ref, buffer); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(v.dir, name), err)
	}
	for i := range bad {
		bad[i].File = name
	}
	return bad, nil
}
