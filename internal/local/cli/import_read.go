package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
)

// put is one file that was read and must be stored.
type put struct {
	job      job
	data     []byte // of small files
	options  client.PutOptions
	mtime    string
	reserved int64 // bytes of importer.memory to give back
	attempts int   // number of attempts without a conclusive answer
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

// timestampOf returns the timestamp of the record; zero, so that the commit time is used, if the time does not fit into
// Unix nanoseconds.
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

// read imports one file: small files go to the senders, large files are uploaded at once. An error ends the import.
func (im *importer) read(ctx context.Context, j job) error {
	if im.opts.DryRun {
		im.dryRun(j)
		return nil
	}
	if j.item.Type == fs.ModeSymlink {
		return im.readSymlink(ctx, j)
	}
	// If the file was replaced since the walk, do not follow links, and do not wait for the writer of a pipe.
	f, err := os.OpenFile(im.fileName(j.item.Path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
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

// readSmall reads a whole file. If the file changes meanwhile, it reads the file again, and gives up after the third
// attempt.
func (im *importer) readSmall(ctx context.Context, j job, f *os.File, s fileState) error {
	const attempts = 3
	for range attempts {
		reserved, err := im.reserve(ctx, s.size)
		if err != nil {
			return err
		}
		data := make([]byte, s.size)
		n, err := f.ReadAt(data, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			im.memory.Release(reserved)
			im.fail(failUnreadable, j.item.Path, err)
			return nil
		}
		info, err := f.Stat()
		if err == nil && stateOf(info) == s && int64(n) == s.size {
			return im.hand(ctx, j, s, data, reserved)
		}
		im.memory.Release(reserved)
		if err != nil {
			im.fail(failUnreadable, j.item.Path, err)
			return nil
		}
		if s = stateOf(info); s.size > dataBytesMax {
			return im.readLarge(ctx, j, f)
		}
	}
	im.fail(failUnreadable, j.item.Path, errors.New("it changes while it is read"))
	return nil
}

func (im *importer) readSymlink(ctx context.Context, j job) error {
	name := im.fileName(j.item.Path)
	info, err := os.Lstat(name)
	if err == nil && info.Mode().Type() != fs.ModeSymlink {
		err = errors.New("it is no symbolic link any more")
	}
	var target string
	if err == nil {
		target, err = os.Readlink(name)
	}
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
	return im.hand(ctx, j, s, []byte(target), reserved)
}

// optionsOf returns the options of the put of a file. The put stores only a record that does not exist, so that two
// files with one id are detected, or replaces only the version that was looked up.
func (im *importer) optionsOf(j job, s fileState) client.PutOptions {
	return client.PutOptions{
		IfVersion: j.ifVersion, IfAbsent: j.ifVersion == "", Timestamp: timestampOf(s.mtime),
		Attributes: im.attributes(j.item.Path, s),
		RequestID:  im.requestID(join(im.opts.Prefix, j.item.Path), s.size, formatMtime(s.mtime)),
	}
}

// hand passes a file that was read to the senders.
func (im *importer) hand(ctx context.Context, j job, s fileState, data []byte, reserved int64) error {
	p := &put{job: j, mtime: formatMtime(s.mtime), reserved: reserved, data: data, options: im.optionsOf(j, s)}
	select {
	case im.puts <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readLarge uploads a file above 1 MiB, and starts again from the beginning when the server asks for it.
func (im *importer) readLarge(ctx context.Context, j job, f *os.File) error {
	if err := im.uploads.Acquire(ctx, 1); err != nil {
		return err
	}
	defer im.uploads.Release(1)
	p := &put{job: j}
	for {
		info, err := f.Stat()
		if err != nil {
			im.fail(failUnreadable, j.item.Path, err)
			return nil
		}
		s := stateOf(info)
		p.mtime, p.options = formatMtime(s.mtime), im.optionsOf(j, s)
		counter := &countingReader{ReadSeeker: io.NewSectionReader(f, 0, s.size), n: &im.seenBytes}
		result, err := im.conn.Upload(ctx, j.key, counter, &p.options)
		if err == nil {
			if now, statErr := f.Stat(); statErr != nil || stateOf(now) != s {
				im.fail(failChanged, j.item.Path, errors.New(
					"it changed while it was read: what is stored may be a mixture; run again with --update"))
				return nil
			}
			im.large.Add(1)
			return im.settle(ctx, p, result.Size, result.Repeated, nil)
		}
		im.seenBytes.Add(-counter.counted)
		switch {
		case counter.err != nil:
			im.fail(failUnreadable, j.item.Path, counter.err)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !retryable(err):
			return im.settle(ctx, p, s.size, false, err)
		}
		p.attempts++
		if err := im.waitRetry(ctx, p.attempts, err); err != nil {
			return err
		}
	}
}

// countingReader counts the bytes read for the progress display, and counts bytes that are read again only once. It
// keeps the source's error apart from the server's.
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

// dryRun counts the files that would be stored, and finds collisions within the tree.
func (im *importer) dryRun(j job) {
	name := im.fileName(j.item.Path)
	info, err := os.Lstat(name)
	if err == nil && info.Mode().IsRegular() {
		var f *os.File
		if f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		im.fail(failUnreadable, j.item.Path, err)
		return
	}
	if other, taken := im.taken.take(j.key, j.item.Path); taken {
		im.fail(failCollision, j.item.Path, fmt.Errorf("id %d is that of %s too", j.key.ID, displayName(other)))
		return
	}
	im.countStored(j, info.Size())
	if info.Size() > dataBytesMax {
		im.large.Add(1)
	}
	im.seenBytes.Add(info.Size())
}

// countStored counts a file that was stored.
func (im *importer) countStored(j job, size int64) {
	im.stored.Add(1)
	im.storedBytes.Add(size)
	im.seenFiles.Add(1)
	if size == 0 {
		im.empty.Add(1)
	}
	if j.item.Type == fs.ModeSymlink {
		im.symlinks.Add(1)
	}
}
