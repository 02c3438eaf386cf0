package group

import (
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// MissingBlobs returns the blobs that the given entries refer to and that do not exist here. Each blob is listed once.
// A member fetches these blobs (BlobWriter) before it appends the entries. The call is cheap if no entry refers to a
// blob.
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

// BlobWriter returns a writer that receives the data of a blob to which an entry of another member refers. Commit
// checks size and checksum against the reference (ErrCorrupt), and makes the blob durable; this repairs damage of the
// blob. Close without Commit removes the file. The blob is kept until the log is loaded again and has no entry that
// refers to it.
func (l *Log) BlobWriter(ref format.BlobRef) (format.BlobWriter, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	// Two callers may receive the same blob at the same time. Each writes a separate file, and either file may become
	// the blob.
	suffix := "." + strconv.FormatUint(l.received.Add(1), 10) + format.TmpSuffix
	w, err := format.ReceiveBlob(l.folder.fs, l.folder.dir, ref, suffix)
	if err != nil {
		return nil, err
	}
	return &blobReceiver{BlobWriter: w, damages: &l.damages}, nil
}

// blobReceiver receives a blob. Once the blob is complete, the blobReceiver removes it from the list of damage.
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
