package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/test/must"
)

// growingFile is a file that grows by one byte after each read, for the given number of reads.
type growingFile struct {
	data  []byte
	reads int
}

func (g *growingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := bytes.NewReader(g.data).ReadAt(b, off)
	if g.reads--; g.reads >= 0 {
		g.data = append(g.data, 'x')
	}
	return n, err
}

func (g *growingFile) Stat() (fs.FileInfo, error) { return sizeOf(len(g.data)), nil }

// sizeOf is the FileInfo of a file of this size.
type sizeOf int64

func (s sizeOf) Name() string     { return "log" }
func (s sizeOf) Size() int64      { return int64(s) }
func (sizeOf) Mode() fs.FileMode  { return 0o644 }
func (sizeOf) ModTime() time.Time { return time.Unix(1, 2) }
func (sizeOf) IsDir() bool        { return false }
func (sizeOf) Sys() any           { return nil }

// A file that never stops growing is stored up to its size before the last attempt, and is reported. A file that stops
// growing is stored completely.
func TestGrowingFileIsStoredUpToItsLastSize(t *testing.T) {
	for _, c := range []struct {
		reads int
		size  int64
		mixed bool
	}{{0, 100, false}, {1, 101, false}, {2, 102, false}, {3, 102, true}, {1000, 102, true}} {
		im := &importer{out: &Output{Out: io.Discard, Err: io.Discard}, puts: make(chan *put, 1),
			memory: semaphore.NewWeighted(importBytesMax)}
		must.OK(t, im.failed.open(""))
		f := &growingFile{data: []byte(strings.Repeat("x", 100)), reads: c.reads}
		info, err := f.Stat()
		must.OK(t, err)
		must.OK(t, im.readSmall(t.Context(), job{item: Item{Path: "log"}}, f, stateOf(info)))
		if len(im.puts) != 1 {
			t.Errorf("%d reads: nothing is stored: %v", c.reads, im.failed.counts())
			continue
		}
		p := <-im.puts
		if int64(len(p.data)) != c.size || p.mixed != c.mixed || p.stamp.size != c.size {
			t.Errorf("%d reads: %d bytes, a mixture: %v, %+v", c.reads, len(p.data), p.mixed, p.stamp)
		}
		im.countStored(p, c.size)
		report := im.report()
		if report.Stored != 1 || report.NotImported() != 0 || (report.Mixed() == 1) != c.mixed {
			t.Errorf("%d reads: %+v", c.reads, report)
		}
	}
}

// resizedFile is a large file whose actual size differs from the size that it reports.
type resizedFile struct {
	bytes.Reader
	says  []int64 // the results of successive calls of Stat; the last result is repeated
	asked int
}

func (o *resizedFile) Stat() (fs.FileInfo, error) {
	o.asked++
	return sizeOf(o.says[min(o.asked, len(o.says))-1]), nil
}

// uploads keeps the data of the last upload, and refuses data whose length differs from the declared one.
type uploads struct {
	recordv1.UnimplementedRecordServiceServer
	got []byte
}

func (u *uploads) Upload(stream recordv1.RecordService_UploadServer) error {
	u.got = nil
	var header *recordv1.UploadHeader
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h := part.GetHeader(); h != nil {
			header = h
		}
		u.got = append(u.got, part.GetChunk()...)
	}
	if header.SizeBytes != nil && header.GetSizeBytes() != int64(len(u.got)) {
		return status.Error(codes.InvalidArgument, "the size is another one")
	}
	return stream.SendAndClose(&recordv1.UploadResponse{SizeBytes: int64(len(u.got)),
		Put: &recordv1.PutResponse{Version: "1", DataCrc32C: crc32c.Of(u.got)}})
}

// A large file may have an unknown size, or become shorter while it is read. In both cases it is stored up to its
// actual end.
func TestLargeFileOfUnexpectedSizeIsStored(t *testing.T) {
	const size = dataBytesMax + 7
	data := []byte(strings.Repeat("x", size))
	for name, says := range map[string][]int64{"not known": {0}, "cut": {2 * size, size}} {
		server := &uploads{}
		im := &importer{conn: served(t, server, 0), out: &Output{Out: io.Discard, Err: io.Discard}, fresh: true,
			memory: semaphore.NewWeighted(importBytesMax), uploads: semaphore.NewWeighted(1)}
		must.OK(t, im.failed.open(""))
		f := &resizedFile{Reader: *bytes.NewReader(data), says: says}
		info, err := f.Stat()
		must.OK(t, err)
		f.asked = 0
		j := job{item: Item{Path: "large"}}
		if info.Size() == 0 {
			err = im.readSmall(t.Context(), j, f, stateOf(info))
		} else {
			err = im.readLarge(t.Context(), j, f)
		}
		report := im.report()
		if err != nil || !bytes.Equal(server.got, data) || report.Stored != 1 || report.StoredBytes != size ||
			report.Failed.Total() != 0 {
			t.Errorf("%s: %v, %d bytes uploaded, %+v", name, err, len(server.got), report)
		}
	}
}
