package group

import (
	"errors"
	iofs "io/fs"
	"path"
	"sync"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// blobSet knows which blobs entries refer to, and which are being read. A blob without references is removed when its
// last reader has closed it.
type blobSet struct {
	folder *folder

	mu     sync.Mutex
	states map[uuid.UUID]*blobState
	stored int64
	added  int64 // bytes of all blobs that were ever referred to, those that are gone included; it only grows
	holds  int   // while it is above 0, no file is removed
}

type blobState struct {
	referred bool
	dropped  bool // no entry refers to it any more: remove it
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
		b.stored += ref.Size
		b.added += ref.Size
	}
}

func (b *blobSet) isReferred(id uuid.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.states[id]
	return s != nil && s.referred
}

func (b *blobSet) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stored
}

// sizes returns the bytes of all blobs, and of all that were ever referred to.
func (b *blobSet) sizes() (stored, added int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stored, b.added
}

// open records a reader. It returns false if the blob is dropped.
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

// close records that a reader has finished.
func (b *blobSet) close(id uuid.UUID) {
	b.change(id, func(s *blobState) { s.readers-- })
}

// drop records that no entry refers to a blob any more. Its file is removed as soon as it has no readers.
func (b *blobSet) drop(id uuid.UUID) {
	b.change(id, func(s *blobState) { s.dropped = true })
}

// change updates the state of a blob, and removes its file if nothing keeps it any more.
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

// hold keeps the files of all blobs until release, including those that are dropped meanwhile.
func (b *blobSet) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds++
}

// release ends a hold, and removes the files of blobs that nothing keeps any more.
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

// pin records a reader during a hold, also of a dropped blob. close ends it.
func (b *blobSet) pin(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state(id).readers++
}

// forget deletes the state of a blob that is not needed any more, and reports whether its file has to be removed now.
// The caller holds mu.
func (b *blobSet) forget(id uuid.UUID, s *blobState) bool {
	if s.dropped && b.holds > 0 {
		return false
	}
	if s.readers > 0 || !s.dropped && s.referred {
		return false
	}
	delete(b.states, id)
	if s.referred {
		b.stored -= s.size
	}
	return s.dropped
}

// isGone reports whether a blob is absent and need not exist: other members ask because of entries of theirs that may
// be dropped here.
func (b *blobSet) isGone(id uuid.UUID) bool {
	if b.isReferred(id) {
		return false
	}
	_, err := b.folder.fs.Stat(path.Join(b.folder.dir, format.BlobName(id)))
	return errors.Is(err, iofs.ErrNotExist)
}

// has reports whether a blob exists here: it gets its name only when all of it is written and synced.
func (b *blobSet) has(ref format.BlobRef) (bool, error) {
	info, err := b.folder.fs.Stat(path.Join(b.folder.dir, format.BlobName(ref.ID)))
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size() == format.BlobFileBytes(ref.Size), err
}

// OpenBlob opens the data of a blob record for reading; each chunk is checked. The file stays until the reader is
// closed, even if compaction drops the version. Errors: ErrVersionNotFound if no entry refers to the blob and it does
// not exist: it was compacted away. *DamageError, which is also recorded.
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

// CreateBlob creates a blob file. The blob is invisible until an entry refers to it; Commit makes it durable. A blob
// without references is garbage, and the next load removes it.
func (l *Log) CreateBlob() (format.BlobWriter, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	return format.CreateBlob(l.folder.fs, l.folder.dir)
}

// DiscardBlob removes a committed blob to which no entry refers and no pending entry will refer: its put was definitely
// refused, or an earlier put was effective. A failure is logged: the file is garbage for the next load.
func (l *Log) DiscardBlob(ref format.BlobRef) {
	if !l.blobs.isReferred(ref.ID) {
		l.blobs.drop(ref.ID)
	}
}
