package group

import (
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// MissingBlobs returns the blobs that entries refer to and that do not exist here, each once. A member fetches them
// before it appends the entries (BlobWriter). The call is cheap if no entry refers to a blob.
func (l *Log) MissingBlobs(entries []*raftpb.Entry) ([]format.BlobRef, error) {
	var out []format.BlobRef
	var seen map[uuid.UUID]bool
	for _, r := range entries {
		if r.GetType() != raftpb.EntryNormal || len(r.Data) < format.PayloadHeaderBytes ||
			format.Codec(r.Data[1]) != format.CodecBlob {
			continue
		}
		e, err := format.DecodePayload(r)
		if err != nil {
			return nil, fmt.Errorf("group %s: %w", l.opts.Identity.Name, err)
		}
		ref, err := format.DecodeBlobRef(e.Data)
		if err != nil {
			return nil, fmt.Errorf("group %s: index %d: %w", l.opts.Identity.Name, r.GetIndex(), err)
		}
		if seen[ref.ID] {
			continue
		}
		if seen == nil {
			seen = make(map[uuid.UUID]bool)
		}
		seen[ref.ID] = true
		if err := l.enter(); err != nil {
			return nil, fmt.Errorf("group %s: blob %s: %w", l.opts.Identity.Name, ref.ID, err)
		}
		has, err := l.blobs.has(ref)
		l.leave()
		if err != nil {
			return nil, fmt.Errorf("group %s: blob %s: %w", l.opts.Identity.Name, ref.ID, err)
		}
		if !has {
			out = append(out, ref)
		}
	}
	return out, nil
}

// BlobWriter receives the data of a blob that an entry of another member refers to. Commit checks size and checksum
// against the reference (ErrCorrupt), and makes the blob durable; damage of that blob is then repaired. Close without
// Commit removes it. The blob stays until the log is loaded again without an entry that refers to it.
func (l *Log) BlobWriter(ref format.BlobRef) (format.BlobWriter, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	// Two callers may receive the same blob: each writes a separate file, and either file may become the blob.
	suffix := "." + strconv.FormatUint(l.received.Add(1), 10) + format.TmpSuffix
	w, err := format.ReceiveBlob(l.folder.fs, l.folder.dir, ref, suffix)
	if err != nil {
		return nil, err
	}
	return &blobReceiver{BlobWriter: w, damages: &l.damages}, nil
}

// blobReceiver receives a blob. Once the blob is complete, it is no longer listed as damaged.
type blobReceiver struct {
	format.BlobWriter
	damages *damages
}

func (w *blobReceiver) Commit() (format.BlobRef, error) {
	ref, err := w.BlobWriter.Commit()
	if err == nil {
		w.damages.forget(func(d *format.Damage) bool { return d.File == format.BlobName(ref.ID) })
	}
	return ref, err
}
