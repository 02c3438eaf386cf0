package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
)

// put is a file that was read and has to be stored.
type put struct {
	job      job
	data     []byte // nil for large files
	options  client.PutOptions
	stamp    fileStamp
	mixed    bool  // the file changed while it was read
	reserved int64 // bytes of importer.memory to release
	attempts int   // number of attempts without a conclusive response
}

// source is an open file for reading.
type source interface {
	io.ReaderAt
	Stat() (fs.FileInfo, error)
}

// fileState is the metadata that import stores with the data of a file.
type fileState struct {
	size  int64
	mode  fs.FileMode
	mtime time.Time
}

func stateOf(info fs.FileInfo) fileState {
	return fileState{size: info.Size(), mode: info.Mode(), mtime: info.ModTime()}
}

// attributes returns the record attributes of a file.
func (im *importer) attributes(rel string, s fileState) map[string][]byte {
	attributes := map[string][]byte{
		attributePath:  []byte(join(im.opts.Prefix, rel)),
		attributeMode:  fmt.Appendf(nil, "%04o", unixMode(s.mode)),
		attributeMtime: []byte(formatMtime(s.mtime)),
	}
	if s.mode.Type() == fs.ModeSymlink {
		attributes[attributeType] = []byte("symlink")
	}
	return attributes
}

func formatMtime(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }

// timestampOf returns the timestamp of the record. If the time does not fit into Unix nanoseconds, the result is zero,
// so that the commit time is used.
func timestampOf(t time.Time) time.Time {
	if !time.Unix(0, t.UnixNano()).Equal(t) {
		return time.Time{}
	}
	return t
}

func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range []struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

// read imports one file. It passes a small file to the senders and uploads a large file itself. An error ends the
// import.
func (im *importer) read(ctx context.Context, j job) error {
	if j.item.Type == fs.ModeSymlink {
		return im.readSymlink(ctx, j)
	}
	// The file may have been replaced since the walk. Therefore read opens it without following a link, and without
	// waiting for the writer of a pipe.
	f, err := im.root.open(j.item.Path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		im.fail(failUnreadable, j.item.Path, err)
		return nil
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	switch {
	case err != nil:
		im.fail(failUnreadable, j.item.Path, err)
		return nil
	case !info.Mode().IsRegular():
		im.fail(failUnreadable, j.item.Path, errors.New("it is no regular file any more"))
		return nil
	}
	im.notKept.look(f, info)
	switch {
	case im.opts.DryRun && !j.same:
		im.countDry(j, info.Size()) // a dry run that has no bytes to compare does not read the file
		return nil
	case info.Size() > dataBytesMax:
		return im.readLarge(ctx, j, f)
	}
	return im.readSmall(ctx, j, f, stateOf(info))
}

// reserve waits until there is memory for a file's data, and returns the number of reserved bytes.
func (im *importer) reserve(ctx context.Context, size int64) (int64, error) {
	n := size + 4096
	return n, im.memory.Acquire(ctx, n)
}

// readSmall reads a whole file. If the file changes at the same time, readSmall reads it again. After the third attempt
// it stores the result in any case, up to the size that the file had before that attempt.
func (im *importer) readSmall(ctx context.Context, j job, f source, s fileState) error {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		reserved, err := im.reserve(ctx, s.size)
		if err != nil {
			return err
		}
		data := make([]byte, s.size)
		n, err := f.ReadAt(data, 0)
		var info fs.FileInfo
		if err == nil || errors.Is(err, io.EOF) {
			info, err = f.Stat()
		}
		if err != nil {
			im.memory.Release(reserved)
			im.fail(failUnreadable, j.item.Path, err)
			return nil
		}
		now := stateOf(info)
		mixed := now != s || int64(n) != s.size
		if s.size == 0 && !mixed {
			im.memory.Release(reserved)
			return im.readUnsized(ctx, j, f, s)
		}
		if !mixed || attempt == attempts {
			s.size = int64(n)
			return im.enqueue(ctx, j, s, data[:n], reserved, mixed)
		}
		im.memory.Release(reserved)
		if s = now; s.size > dataBytesMax {
			return im.readLarge(ctx, j, f)
		}
	}
}

// readUnsized reads a file with a reported size of 0 to its end. On /proc and on file systems without sizes, such a
// file may have content.
func (im *importer) readUnsized(ctx context.Context, j job, f source, s fileState) error {
	var first [512]byte
	n, err := f.ReadAt(first[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		im.fail(failUnreadable, j.item.Path, err)
		return nil
	}
	most := int64(len(first))
	if err == nil {
		most = dataBytesMax + 1 // the buffer is full, so the file may have more bytes
	}
	reserved, err := im.reserve(ctx, most)
	if err != nil {
		return err
	}
	data, err := first[:n], nil
	if most > dataBytesMax {
		data, err = io.ReadAll(io.NewSectionReader(f, 0, most))
	}
	switch {
	case err != nil:
		im.memory.Release(reserved)
		im.fail(failUnreadable, j.item.Path, err)
		return nil
	case len(data) > dataBytesMax:
		im.memory.Release(reserved)
		return im.readLarge(ctx, j, f)
	}
	s.size = int64(len(data))
	return im.enqueue(ctx, j, s, data, reserved, false)
}

func (im *importer) readSymlink(ctx context.Context, j job) error {
	info, target, err := im.root.readlink(j.item.Path)
	if err != nil {
		im.fail(failUnreadable, j.item.Path, err)
		return nil
	}
	reserved, err := im.reserve(ctx, int64(len(target)))
	if err != nil {
		return err
	}
	s := stateOf(info)
	s.size = int64(len(target))
	return im.enqueue(ctx, j, s, []byte(target), reserved, false)
}

// stampOf returns the properties by which a file in this state is recognised later.
func (im *importer) stampOf(j job, s fileState) fileStamp {
	return fileStamp{name: join(im.opts.Prefix, j.item.Path), size: s.size, mtime: formatMtime(s.mtime),
		mode: unixMode(s.mode), link: s.mode.Type() == fs.ModeSymlink}
}

// optionsOf returns the options with which a file is put. If the lookup found no record, the put succeeds only if the
// record still does not exist, so that two files with the same id are detected. Otherwise the put replaces only the
// version that was found.
func (im *importer) optionsOf(j job, s fileState) client.PutOptions {
	var version string
	if j.there != nil {
		version = j.there.Version
	}
	return client.PutOptions{
		IfVersion: version, IfAbsent: j.there == nil, Timestamp: timestampOf(s.mtime),
		Attributes: im.attributes(j.item.Path, s), RequestID: im.requestID(im.stampOf(j, s), version),
	}
}

// enqueue passes a file to the senders after it was read, unless its record already has the same bytes.
func (im *importer) enqueue(ctx context.Context, j job, s fileState, data []byte, reserved int64, mixed bool) error {
	if j.same {
		equal, err := im.equal(ctx, j, s, bytes.NewReader(data))
		if err != nil || equal {
			im.memory.Release(reserved)
			return err
		}
	}
	if im.opts.DryRun {
		im.memory.Release(reserved)
		im.countDry(j, s.size)
		return nil
	}
	p := &put{job: j, stamp: im.stampOf(j, s), mixed: mixed, reserved: reserved, data: data, options: im.optionsOf(j, s)}
	return pass(ctx, im.puts, p)
}

// equal compares a file in state s with the bytes of its record. It returns true if the file needs no put, for one of
// two reasons. If the bytes are the same, equal counts the file as already stored. If the file cannot be read, equal
// reports a failure. A record that is damaged or no longer exists is not equal.
func (im *importer) equal(ctx context.Context, j job, s fileState, file io.Reader) (bool, error) {
	if changed := im.compare(j, im.stampOf(j, s), *j.there); changed != nil {
		return false, nil //nolint:nilerr // the file has changed since the lookup, so it is stored
	}
	var same bool
	record, err := im.conn.Open(ctx, j.key, &client.DownloadOptions{Version: j.there.Version})
	if err == nil {
		same, err = sameBytes(file, record)
		_ = record.Close() // an error of Close does not matter, because the record was only read
	}
	im.lastSuccess.Store(time.Now().UnixNano())
	unreadable, ok := errors.AsType[*fs.PathError](err)
	switch {
	case ok:
		im.fail(failUnreadable, j.item.Path, unreadable)
		return true, nil
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrDataLoss):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("comparing record %d with %s: %w", j.key.ID, displayName(j.item.Path), err)
	case same:
		im.countThere(s.size)
	}
	return same, nil
}

// sameBytes reads a and b up to the first difference, or to their ends.
func sameBytes(a, b io.Reader) (bool, error) {
	const piece = 64 << 10
	var one, other [piece]byte
	for {
		n, err := io.ReadFull(a, one[:])
		m, err2 := io.ReadFull(b, other[:])
		for _, err := range []error{err, err2} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if n < piece || m < piece || !bytes.Equal(one[:], other[:]) {
			return bytes.Equal(one[:n], other[:m]), nil
		}
	}
}

// readLarge uploads a file above 1 MiB. It starts again from the beginning if the server asks for a new attempt, or if
// the file became shorter during the upload. A file whose reported size is 0 is read to its end.
func (im *importer) readLarge(ctx context.Context, j job, f source) error {
	if err := im.uploads.Acquire(ctx, 1); err != nil {
		return err
	}
	defer im.uploads.Release(1)
	p := &put{job: j}
	for shorter := 0; ; {
		info, err := f.Stat()
		if err != nil {
			im.fail(failUnreadable, j.item.Path, err)
			return nil
		}
		s := stateOf(info)
		most, unsized := s.size, s.size == 0
		if unsized {
			most = math.MaxInt64
		}
		if j.same {
			looked := s
			if unsized {
				looked.size = j.there.Size
			}
			if equal, err := im.equal(ctx, j, looked, io.NewSectionReader(f, 0, most)); err != nil || equal {
				return err
			}
		}
		if im.opts.DryRun {
			im.countDry(j, s.size)
			return nil
		}
		p.options = im.optionsOf(j, s)
		counter := &countingReader{ReadSeeker: io.NewSectionReader(f, 0, most), n: &im.seenBytes}
		var from io.Reader = counter
		if unsized {
			from = struct{ io.Reader }{counter} // hides Seek, so that the upload does not declare a size first
		}
		result, err := im.conn.Upload(ctx, j.key, from, &p.options)
		now, statErr := f.Stat()
		if err == nil {
			p.mixed = statErr != nil || stateOf(now) != s
			s.size = result.Size
			p.stamp = im.stampOf(j, s)
			im.large.Add(1)
			return im.complete(ctx, p, result.Size, result.Repeated, nil)
		}
		p.stamp = im.stampOf(j, s)
		im.seenBytes.Add(-counter.counted)
		switch {
		case counter.err != nil:
			im.fail(failUnreadable, j.item.Path, counter.err)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case counter.at < most && !unsized && statErr == nil && now.Size() < s.size && shorter < 2:
			shorter++ // the file has shrunk, so the server has refused data that was shorter than declared
			continue
		case !Retryable(err):
			return im.complete(ctx, p, s.size, false, err)
		}
		p.attempts++
		if err := im.waitRetry(ctx, p, err); err != nil {
			return err
		}
	}
}

// countingReader counts the bytes read for the progress display. Bytes that are read a second time are not counted
// again. It keeps the source's errors, so that they can be distinguished from the server's errors.
type countingReader struct {
	io.ReadSeeker
	n           interface{ Add(int64) int64 }
	at, counted int64
	err         error
}

// Read implements io.Reader.
func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.ReadSeeker.Read(b)
	c.at += int64(n)
	if more := c.at - c.counted; more > 0 {
		c.n.Add(more)
		c.counted = c.at
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// Seek implements io.Seeker.
func (c *countingReader) Seek(offset int64, whence int) (at int64, err error) {
	at, err = c.ReadSeeker.Seek(offset, whence)
	c.at = at
	return at, err
}

// countDry counts a file that would be stored, and detects collisions within the tree.
func (im *importer) countDry(j job, size int64) {
	im.takenMu.Lock()
	other, taken := im.taken[j.key]
	if !taken {
		im.taken[j.key] = j.item.Path
	}
	im.takenMu.Unlock()
	if taken {
		im.fail(failCollision, j.item.Path, fmt.Errorf("id %d is that of %s too", j.key.ID, displayName(other)))
		return
	}
	im.countStored(&put{job: j}, size)
	if size > dataBytesMax {
		im.large.Add(1)
	}
	im.seenBytes.Add(size)
}

// countStored counts a file that was stored.
func (im *importer) countStored(p *put, size int64) {
	im.stored.Add(1)
	im.storedBytes.Add(size)
	im.seenFiles.Add(1)
	if p.job.there != nil {
		im.updated.Add(1)
	}
	if size == 0 {
		im.empty.Add(1)
	}
	if p.job.item.Type == fs.ModeSymlink {
		im.symlinks.Add(1)
	}
	if p.mixed {
		im.failed.add(failure{failMixed, p.job.item.Path,
			"it is stored, perhaps as a mixture of old and new bytes; run again with --update"}, im.out)
	}
}
