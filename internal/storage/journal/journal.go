package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// ErrUnused means that the journal did not accept a write. The caller has to sync the group's own file to make the
// write durable.
var ErrUnused = errors.New("the journal does not take it")

const (
	fileBytesFirst = 1 << 20
	fileBytesMax   = 16 << 20
	// If a file has been in use for less than fullSoon when it becomes full, the next file is larger.
	fullSoon = 4 * time.Second
	// The size of a file is at most the number of the volume's spare bytes, divided by spareShare.
	spareShare = 16
	// yields is the number of times that a goroutine yields its processor before it writes a batch. In the meantime,
	// goroutines whose previous write has just finished can answer their callers and add their next write to the batch.
	// When this was measured without yields, a batch contained the writes of less than half of the groups that had bytes
	// to write. See docs/adr/0015-cheaper-rounds.md.
	yields = 4
	// After a failed attempt to create a file, the journal waits for tryAgain before the next attempt.
	tryAgain = time.Minute
)

// Options configures New.
type Options struct {
	FS vfs.FS
	// Dir is the volume's folder. If Read finds a journal in it, the journal must be replayed and removed before New is
	// called.
	Dir string
	// Begin is called before the first file is created. It must durably mark the volume, so that no software without
	// support for journals opens the volume. It may be nil.
	Begin func() error
	// FileBytes is the size of a file, a multiple of 4 KiB. If it is 0, the first file has 1 MiB. Later files are
	// larger, up to 16 MiB, as long as the files become full quickly.
	FileBytes int64
	// Spare returns how many bytes above its reserve the volume has free. A file takes only a small part of them. If
	// Spare is nil, space is unlimited.
	Spare  func() int64
	Logger *slog.Logger // if nil, messages are discarded
	Off    rules.Off    // safety rules that a test has switched off
}

// Stats counts events since New.
type Stats struct {
	Writes  int64 // number of writes that were made durable
	Syncs   int64 // number of syncs that made these writes durable
	Bytes   int64 // number of bytes written, including padding
	Refused int64 // number of writes that were not accepted, because there was no free space or the journal has failed
}

// Journal accepts writes from many groups. It uses two files in turn. When one of them is full, the journal switches to
// the other file and asks each Member with data in the full file to sync the group's own file (MustSync). The full file
// is used again when no group needs its content. A Journal is safe for concurrent use.
type Journal struct {
	opts Options

	mu      longlock.Mutex // guards the fields below
	halves  [2]half
	current int // index of the half to which the next record is written
	pending *batch
	// flushing means that a goroutine is writing a batch. Only that goroutine uses halves (except half.live) and the
	// fields that come after stats.
	flushing bool
	broken   error
	closed   bool
	stats    Stats

	before []Range // ranges in the last record that had any ranges
	made   bool    // whether Begin was called
	uses   uint64  // number of times that a file was put into use, counting reuse
	buffer []byte
	failed time.Time // time of the last failure to make a file
}

// half is one of the journal's two files.
type half struct {
	file  vfs.File // nil if the file does not exist
	size  int64
	epoch uint64
	end   int64     // offset of the next record
	next  uint64    // sequence of the next record
	began time.Time // time at which this use of the file began
	// live holds the members that have written to this file and have not synced their own file since. Guarded by
	// Journal.mu.
	live map[*Member]struct{}
}

// batch holds the writes that one sync makes durable.
type batch struct {
	ranges  []Range
	members []*Member
	lead    chan struct{} // receives a value for one of the waiting goroutines, which then writes the batch
	done    chan struct{}
	err     error // must not be read before done is closed
}

// Member is the log of one group, as the journal sees it: an open log that may write to the journal. Calls to its
// methods must not overlap.
type Member struct {
	journal  *Journal
	group    uuid.UUID
	live     atomic.Bool
	mustSync atomic.Bool
}

// New returns a journal. It creates no file before the first write.
func New(opts Options) *Journal {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	j := &Journal{opts: opts}
	for i := range j.halves {
		j.halves[i].live = make(map[*Member]struct{})
	}
	return j
}

// Join registers a log that is being opened. If the journal holds data of the group that the group's own files lack,
// Join also returns a Remainder with this data. Otherwise the Remainder is nil.
func (j *Journal) Join(group uuid.UUID) (*Member, *Remainder, error) {
	r := &Remainder{journal: j, Where: "the journal"}
	kept := keptPrefix + group.String()
	share, err := readKept(j.opts.FS, path.Join(j.opts.Dir, kept))
	if err == nil {
		r.Share, r.Where, r.kept = share, path.Join(j.opts.Dir, kept), kept
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("what %s holds, which was acknowledged, cannot be read: %w", path.Join(j.opts.Dir, kept),
			err)
	}
	j.mu.Lock()
	for i := range j.halves {
		for m := range j.halves[i].live {
			if m.group == group && !slices.Contains(r.members, m) {
				r.members = append(r.members, m)
			}
		}
	}
	j.mu.Unlock()
	if len(r.members) > 0 {
		found, err := Read(j.opts.FS, j.opts.Dir)
		if err != nil {
			return nil, nil, err
		}
		r.Share = r.followedBy(found.Share(group))
	}
	if r.kept == "" && len(r.members) == 0 {
		r = nil
	}
	return &Member{journal: j, group: group}, r, nil
}

// Remainder is the data of a group that only the journal holds, and that the group's own files lack. Such data exists
// if an earlier log of the group was closed before it could sync its file, or if the group's files could not be
// written when the journal was replayed.
type Remainder struct {
	Share
	Where   string // the journal, or the name of the file that holds the data; for use in messages
	journal *Journal
	kept    string    // name of the file with data that an earlier replay could not write; empty if there is no such file
	members []*Member // earlier logs of the group with data in the journal
}

// Done tells the journal that the data is durable in the group's own files.
func (r *Remainder) Done() error {
	if r.kept != "" {
		if err := remove(r.journal.opts.FS, r.journal.opts.Dir, r.kept); err != nil {
			return err
		}
	}
	for _, m := range r.members {
		m.Durable()
	}
	return nil
}

// MustSync reports whether the log must now sync its own file instead of writing to the journal, because the journal
// needs the space.
func (m *Member) MustSync() bool { return m.mustSync.Load() }

// Ended reports whether the journal was closed. A closed journal no longer changes its files. So if they still hold
// data of this log, that data stays in them.
func (m *Member) Ended() bool {
	m.journal.mu.Lock()
	defer m.journal.mu.Unlock()
	return m.journal.closed
}

// Durable tells the journal that the log no longer needs any of the data that the member has written to the journal,
// because the data is now durable in the log's own files, or because the log has discarded it.
func (m *Member) Durable() {
	if !m.live.Load() {
		return
	}
	j := m.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.halves {
		delete(j.halves[i].live, m)
	}
	m.live.Store(false)
	m.mustSync.Store(false)
}

// Write makes bytes of a segment durable. The caller must already have written them to the segment's file, without a
// sync. The argument b must not change before Write returns. If Write returns ErrUnused, the bytes are not durable, and
// the caller must sync the file.
func (m *Member) Write(number uint64, segment [8]byte, offset int64, b []byte) error {
	j := m.journal
	j.mu.Lock()
	if j.broken != nil || j.closed || m.mustSync.Load() {
		j.stats.Refused++
		j.mu.Unlock()
		return ErrUnused
	}
	p := j.pending
	if p == nil {
		p = &batch{lead: make(chan struct{}, 1), done: make(chan struct{})}
		j.pending = p
	}
	p.ranges = append(p.ranges, Range{Group: m.group, Number: number, Segment: segment, Offset: offset, Bytes: b})
	p.members = append(p.members, m)
	lead := !j.flushing
	j.flushing = true
	j.mu.Unlock()
	if !lead {
		select {
		case <-p.done:
			return p.err
		case <-p.lead:
		}
	}
	for range yields {
		runtime.Gosched()
	}
	j.flush()
	return p.err
}

// flush writes the pending batch for all goroutines that wait for it. The caller has set flushing, or has received from
// batch.lead.
func (j *Journal) flush() {
	j.mu.Lock()
	p := j.pending
	j.pending = nil
	j.mu.Unlock()
	err := j.write(p)
	j.mu.Lock()
	if err != nil {
		j.stats.Refused += int64(len(p.ranges))
	} else {
		j.stats.Writes += int64(len(p.ranges))
		j.stats.Syncs++
	}
	if next := j.pending; next != nil {
		next.lead <- struct{}{}
	} else {
		j.flushing = false
	}
	j.mu.Unlock()
	p.err = err
	close(p.done)
}

// write makes a batch durable. It returns ErrUnused if that was not possible.
func (j *Journal) write(p *batch) error {
	n := int64(bytesOf(j.before, p.ranges))
	h := j.halfFor(n)
	if h == nil {
		return ErrUnused
	}
	j.mu.Lock()
	for _, m := range p.members {
		h.live[m] = struct{}{}
		m.live.Store(true)
	}
	j.stats.Bytes += n
	j.mu.Unlock()
	j.buffer = encode(j.buffer, h.epoch, h.next, j.before, p.ranges)
	_, err := h.file.WriteAt(j.buffer, h.end)
	if err == nil {
		err = h.file.Sync()
	}
	if err != nil {
		// It is unknown whether the batch is on disk, so the journal is no longer used (rule 5). Its existing records
		// remain until the groups have synced their own files.
		j.opts.Logger.Error("the journal cannot be written: each group syncs its own file from now on", "file", h.file.Name(),
			"error", err)
		j.giveUp(err)
		return ErrUnused
	}
	h.end += n
	h.next++
	j.before = j.before[:0]
	for i := range p.ranges {
		j.before = append(j.before, named(&p.ranges[i]))
	}
	return nil
}

// giveUp makes the journal refuse all further writes, and asks the groups with data in it to sync their own files.
func (j *Journal) giveUp(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken = err
	for i := range j.halves {
		j.release(&j.halves[i])
	}
}

// release asks the members whose data is in one of the two files to sync their own files. The caller holds mu.
func (j *Journal) release(h *half) {
	for m := range h.live {
		m.mustSync.Store(j.opts.Off.Keeps(rules.JournalSpace))
	}
}

// halfFor returns the file to which a record of n bytes can be written. If the current file is full, halfFor switches
// to the other one. It returns nil if neither file has space now.
func (j *Journal) halfFor(n int64) *half {
	h := &j.halves[j.current]
	if h.file != nil && h.end+n <= h.size {
		return h
	}
	now := time.Now()
	if now.Sub(j.failed) < tryAgain {
		return nil
	}
	j.mu.Lock()
	other := &j.halves[1-j.current]
	waits := len(other.live) > 0 && j.opts.Off.Keeps(rules.JournalSpace)
	if waits {
		j.release(other)
	}
	j.mu.Unlock()
	if waits {
		return nil
	}
	size := j.sizeAfter(h, other, now)
	if size == 0 {
		j.failed = now
	}
	if n+blockBytes > size { // n plus one block, for the record that begins each use of a file
		return nil
	}
	if err := j.begin(1-j.current, size); err != nil {
		j.opts.Logger.Warn("no file for the journal: each group syncs its own file", "error", err)
		j.failed = now
		return nil
	}
	other.began = now
	j.mu.Lock()
	j.release(h)
	j.current = 1 - j.current
	j.mu.Unlock()
	return other
}

// sizeAfter returns the size that the file `other` should have when it replaces the file h, which is full. If the
// volume has no space for a larger file, this is the current size of `other`, or 0 if it does not exist.
func (j *Journal) sizeAfter(h, other *half, now time.Time) int64 {
	size := j.opts.FileBytes
	switch {
	case size > 0:
	case h.file == nil:
		size = fileBytesFirst
	case now.Sub(h.began) < fullSoon:
		size = min(4*h.size, fileBytesMax)
	default:
		size = h.size
	}
	if other.file != nil && other.size >= size || j.opts.Spare == nil {
		return max(size, other.size)
	}
	for limit := j.opts.Spare() / spareShare; size > limit; size /= 4 {
		if size <= max(other.size, fileBytesFirst) {
			return other.size // the size of the existing file, or 0 if there is none
		}
	}
	return size
}

// begin puts file i into use again. It creates the file if it is missing or smaller than size. The caller ensures that
// no group needs the file's current content.
func (j *Journal) begin(i int, size int64) error {
	h := &j.halves[i]
	if h.file == nil || h.size < size {
		if h.file != nil {
			_ = h.file.Close() // an error does not matter, because no group needs the content of the file
		}
		h.file, h.size = nil, 0 // if no new file can be created, the old one must not be used either
		file, err := j.make(names[i], size)
		if err != nil {
			return err
		}
		h.file, h.size = file, size
	}
	j.uses++
	h.epoch, h.end, h.next = j.uses<<32|uint64(rand.Uint32()), blockBytes, 1
	_, err := h.file.WriteAt(encode(nil, h.epoch, 0, nil, nil), 0)
	if err == nil {
		err = h.file.Sync()
	}
	if err != nil { // the content on disk is not known, so the next use creates a new file
		err = errors.Join(err, h.file.Close())
		h.file, h.size = nil, 0
	}
	return err
}

// make creates a file of zeros. It first removes an existing file with that name.
func (j *Journal) make(name string, size int64) (vfs.File, error) {
	if !j.made && j.opts.Begin != nil {
		if err := j.opts.Begin(); err != nil {
			return nil, err
		}
	}
	j.made = true
	name = path.Join(j.opts.Dir, name)
	file, err := vfs.CreateReplacing(j.opts.FS, name)
	if err != nil {
		return nil, err
	}
	err = zero(file, size)
	if err == nil {
		err = j.opts.FS.SyncDir(j.opts.Dir)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// zero durably extends a new file to the given size in bytes. On some file systems it also writes the zeros, because
// later syncs then write no metadata and are cheaper.
func zero(file vfs.File, size int64) error {
	if err := file.Allocate(0, size); err != nil {
		return err
	}
	if file.CheapOverwrite() {
		zeros := make([]byte, min(size, fileBytesFirst))
		for at := int64(0); at < size; at += int64(len(zeros)) {
			if _, err := file.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
				return err
			}
		}
	}
	return file.Sync()
}

// Stats returns the counters.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.stats
}

// Close closes the journal. No Write may be in progress. If no log needs the journal's content any more, Close
// removes the files and returns true.
func (j *Journal) Close() (clean bool, err error) {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return false, nil
	}
	j.closed = true
	clean = true
	for i := range j.halves {
		h := &j.halves[i]
		clean = clean && len(h.live) == 0
		if h.file != nil {
			err = errors.Join(err, h.file.Close())
		}
	}
	j.mu.Unlock()
	if !clean {
		return false, err
	}
	failed := Remove(j.opts.FS, j.opts.Dir)
	return failed == nil, errors.Join(err, failed)
}
