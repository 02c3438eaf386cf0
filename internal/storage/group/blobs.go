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

// blobSet tracks which blobs entries refer to, and which blobs are being read. A blob without references is removed
// when its last reader has closed it.
type blobSet struct {
	folder *folder

	stored atomic.Int64 // bytes of all stored blobs that entries refer to
	added  atomic.Int64 // bytes of all blobs that entries ever referred to, even if they are gone; it never decreases

	mu     sync.Mutex // guards the fields below
	states map[uuid.UUID]*blobState
	holds  int // while it is above 0, no file is removed
}

type blobState struct {
	referred bool
	dropped  bool // no entry refers to the blob any more, so its file must be removed
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

// drop records that no entry refers to a blob any more. Its file is removed as soon as it has no readers.
func (b *blobSet) drop(id uuid.UUID) {
	b.change(id, func(s *blobState) { s.dropped = true })
}

// change updates the state of a blob, and removes the file if nothing needs it any more.
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

// hold keeps the files of all blobs until release, even of blobs that are dropped meanwhile.
func (b *blobSet) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds++
}

// release ends a hold, and removes the files of blobs that nothing needs any more.
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

// pin records a reader of a blob during a hold, even if the blob is dropped. close() removes the reader.
func (b *blobSet) pin(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state(id).readers++
}

// forget deletes the state of a blob that nothing needs any more, and reports whether the blob's file has to be
// removed now. The caller holds mu.
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

// isGone reports whether a blob does not exist here and is not needed here. Another member may request such a blob
// because that member still has an entry that was dropped here.
func (b *blobSet) isGone(id uuid.UUID) bool {
	if b.isReferred(id) {
		return false
	}
	_, err := b.folder.fs.Stat(path.Join(b.folder.dir, format.BlobName(id)))
	return errors.Is(err, iofs.ErrNotExist)
}

// has reports whether a blob exists here. A blob gets its name only when all of it is written and synced.
func (b *blobSet) has(ref format.BlobRef) (bool, error) {
	info, err := b.folder.fs.Stat(path.Join(b.folder.dir, format.BlobName(ref.ID)))
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size() == format.BlobFileBytes(ref.Size), err
}

// OpenBlob opens the data of a blob record for reading; each chunk is checked. The file is kept until the reader is
// closed, even if compaction drops the version. OpenBlob returns ErrVersionNotFound if no entry refers to the blob
// and the blob does not exist, because it was compacted away. It returns *DamageError, and records the damage, if the
// file is bad or missing.
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

// ReadAt reads, and records damage that it finds.
func (b *sharedBlob) ReadAt(p []byte, offset int64) (int, error) {
	n, err := b.BlobReader.ReadAt(p, offset)
	b.damages.noteOf(err)
	return n, err
}

// Close releases the file.
func (b *sharedBlob) Close() error {
	err := b.BlobReader.Close()
	b.closed.Do(func() { b.blobs.close(b.id) })
	return err
}

// CreateBlob creates a blob file. The blob is invisible until an entry refers to it; Commit makes the file durable.
// The next load removes a blob without references as garbage.
func (l *Log) CreateBlob() (format.BlobWriter, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	return format.CreateBlob(l.folder.fs, l.folder.dir)
}

// DiscardBlob removes a committed blob to which no entry refers and no pending entry will refer, because its put was
// definitely refused, or an earlier put with the same request id took effect. A failure is only logged, because the
// next load removes the file as garbage.
func (l *Log) DiscardBlob(ref format.BlobRef) {
	if !l.blobs.isReferred(ref.ID) {
		l.blobs.drop(ref.ID)
	}
}

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
