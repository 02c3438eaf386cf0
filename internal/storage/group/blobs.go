package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// blobSet records which blobs entries refer to, and which blobs are being read. A blob to which no entry refers is
// removed when its last reader has closed it.
type blobSet struct {
	folder *folder

	stored atomic.Int64 // bytes of all stored blobs to which entries refer
	// added is the number of bytes of all blobs to which entries have ever referred, including removed ones. It never
	// decreases.
	added atomic.Int64

	mu     sync.Mutex // guards the fields below
	states map[uuid.UUID]*blobState
	holds  int // number of holds; while it is above 0, no file is removed
}

type blobState struct {
	referred bool
	dropped  bool // whether the blob's file must be removed, because no entry refers to the blob
	readers  int
	size     int64
}

func (b *blobSet) state(id uuid.UUID) *blobState {
	s := b.states[id]
	if s == nil {
		if b.states == nil {
			b.states = make(map[uuid.UUID]*blobState)
		}
		s = new(blobState)
		b.states[id] = s
	}
	return s
}

// refer records that an entry refers to a blob.
func (b *blobSet) refer(ref format.BlobRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state(ref.ID)
	if !s.referred {
		s.referred, s.size = true, ref.Size
		b.stored.Add(ref.Size)
		b.added.Add(ref.Size)
	}
}

func (b *blobSet) isReferred(id uuid.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.states[id]
	return s != nil && s.referred
}

// open records a reader of a blob. It returns false if the blob is dropped.
func (b *blobSet) open(id uuid.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state(id)
	if s.dropped {
		return false
	}
	s.readers++
	return true
}

// close records that a reader of a blob has closed it.
func (b *blobSet) close(id uuid.UUID) {
	b.change(id, func(s *blobState) { s.readers-- })
}

// drop records that no entry refers to a blob. Its file is removed as soon as it has no readers.
func (b *blobSet) drop(id uuid.UUID) {
	b.change(id, func(s *blobState) { s.dropped = true })
}

// change changes the state of a blob, and removes the blob's file if the file is no longer needed.
func (b *blobSet) change(id uuid.UUID, change func(s *blobState)) {
	b.mu.Lock()
	s := b.state(id)
	change(s)
	remove := b.forget(id, s)
	b.mu.Unlock()
	if remove {
		b.folder.remove(format.BlobName(id))
	}
}

// hold keeps the files of all blobs until release is called, including the files of blobs that are dropped in the
// meantime.
func (b *blobSet) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds++
}

// release undoes one call of hold. After the last one, it removes the files of the blobs that are no longer needed.
func (b *blobSet) release() {
	var remove []uuid.UUID
	b.mu.Lock()
	b.holds--
	for id, s := range b.states {
		if s.dropped && b.forget(id, s) {
			remove = append(remove, id)
		}
	}
	b.mu.Unlock()
	for _, id := range remove {
		b.folder.remove(format.BlobName(id))
	}
}

// pin records a reader of a blob, even if the blob was dropped. It may be called only between hold and release. Like a
// call of open, it is undone with close.
func (b *blobSet) pin(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state(id).readers++
}

// forget deletes the state of a blob that is no longer needed, and reports whether the blob's file has to be removed
// now. The caller holds mu.
func (b *blobSet) forget(id uuid.UUID, s *blobState) bool {
	if s.dropped && b.holds > 0 {
		return false
	}
	if s.readers > 0 || !s.dropped && s.referred {
		return false
	}
	delete(b.states, id)
	if s.referred {
		b.stored.Add(-s.size)
	}
	return s.dropped
}

// isGone reports whether this replica has no file for a blob and needs none. Another member may still request such a
// blob, because its log still has an entry that compaction has dropped from this log.
func (b *blobSet) isGone(id uuid.UUID) bool {
	if b.isReferred(id) {
		return false
	}
	_, err := b.folder.fs.Stat(path.Join(b.folder.dir, format.BlobName(id)))
	return errors.Is(err, iofs.ErrNotExist)
}

// has reports whether this replica has the blob. A blob gets its name once it is completely written and synced, so a
// file with that name is complete.
func (b *blobSet) has(ref format.BlobRef) (bool, error) {
	info, err := b.folder.fs.Stat(path.Join(b.folder.dir, format.BlobName(ref.ID)))
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size() == format.BlobFileBytes(ref.Size), err
}

// OpenBlob opens the data of a blob record for reading. The reader checks each chunk. The file is kept until the reader
// is closed, even if compaction drops the version. OpenBlob returns ErrVersionNotFound if compaction has removed the
// blob together with the entry that referred to it. If the file is damaged or missing for another reason, OpenBlob
// records the damage and returns *DamageError.
func (l *Log) OpenBlob(ref format.BlobRef) (format.BlobReader, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	if !l.blobs.open(ref.ID) {
		return nil, ErrVersionNotFound
	}
	r, err := format.OpenBlob(l.folder.fs, l.folder.dir, l.opts.Identity.Name, ref)
	if err != nil {
		gone := l.blobs.isGone(ref.ID)
		l.blobs.close(ref.ID)
		if gone {
			return nil, ErrVersionNotFound
		}
		l.damages.noteOf(err)
		return nil, err
	}
	return &sharedBlob{BlobReader: r, blobs: &l.blobs, damages: &l.damages, id: ref.ID}, nil
}

// sharedBlob is a blob reader that counts as a reader of the blobSet until it is closed.
type sharedBlob struct {
	format.BlobReader
	blobs   *blobSet
	damages *damages
	id      uuid.UUID
	closed  sync.Once
}

// ReadAt reads data, and records the damage that it finds.
func (b *sharedBlob) ReadAt(p []byte, offset int64) (int, error) {
	n, err := b.BlobReader.ReadAt(p, offset)
	b.damages.noteOf(err)
	return n, err
}

// Close stops using the file, so that it can be removed.
func (b *sharedBlob) Close() error {
	err := b.BlobReader.Close()
	b.closed.Do(func() { b.blobs.close(b.id) })
	return err
}

// CreateBlob creates a blob file. The result's Commit makes the file durable. The blob is invisible until an entry
// refers to it. If no entry ever does, the next load removes the blob.
func (l *Log) CreateBlob() (format.BlobWriter, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	return format.CreateBlob(l.folder.fs, l.folder.dir)
}

// DiscardBlob removes a blob after its Commit. The caller must know that no entry refers to the blob or ever will,
// because the put was definitely refused, or because an earlier put with the same request id took effect. A failure is
// only logged, because the next load removes the file as garbage.
func (l *Log) DiscardBlob(ref format.BlobRef) {
	if !l.blobs.isReferred(ref.ID) {
		l.blobs.drop(ref.ID)
	}
}

// MissingBlobs returns the blobs to which the given entries refer and which this replica does not have. Each blob is
// listed once. A member must fetch these blobs (BlobWriter) before it appends the entries. The call is cheap if no
// entry refers to a blob.
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
// returns ErrCorrupt unless the data has the size and the checksum in the reference. It makes the blob durable, which
// also repairs a damaged blob. Close without Commit removes the file. A load removes the blob if no entry refers to it.
func (l *Log) BlobWriter(ref format.BlobRef) (format.BlobWriter, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	// Two callers may receive the same blob at the same time. Each of them writes a separate file, and either file may
	// become the blob.
	suffix := "." + strconv.FormatUint(l.received.Add(1), 10) + format.TmpSuffix
	w, err := format.ReceiveBlob(l.folder.fs, l.folder.dir, ref, suffix)
	if err != nil {
		return nil, err
	}
	return &blobReceiver{BlobWriter: w, damages: &l.damages}, nil
}

// blobReceiver receives a blob. When the blob is complete, the log no longer reports the blob as damaged.
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
