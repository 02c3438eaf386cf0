package cli

import (
	"bytes"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
)

// growing is a file that has one more byte after each read. After reads of them it rests.
type growing struct {
	data  []byte
	reads int
}

func (g *growing) ReadAt(b []byte, off int64) (int, error) {
	n, err := bytes.NewReader(g.data).ReadAt(b, off)
	if g.reads--; g.reads >= 0 {
		g.data = append(g.data, 'x')
	}
	return n, err
}

func (g *growing) Stat() (fs.FileInfo, error) { return sizeOf(len(g.data)), nil }

// sizeOf is what a file of this size is.
type sizeOf int64

func (s sizeOf) Name() string     { return "log" }
func (s sizeOf) Size() int64      { return int64(s) }
func (sizeOf) Mode() fs.FileMode  { return 0o644 }
func (sizeOf) ModTime() time.Time { return time.Unix(1, 2) }
func (sizeOf) IsDir() bool        { return false }
func (sizeOf) Sys() any           { return nil }

// A file that grows all the time is stored as far as it was seen, and told; one that comes to rest is stored whole.
func TestAFileThatGrowsIsStoredAsFarAsItWasSeen(t *testing.T) {
	for _, c := range []struct {
		reads int
		size  int64
		mixed bool
	}{{0, 100, false}, {1, 101, false}, {2, 102, false}, {3, 102, true}, {1000, 102, true}} {
		im := &importer{out: &Output{Out: io.Discard, Err: io.Discard}, puts: make(chan *put, 1),
			memory: semaphore.NewWeighted(importBytesMax)}
		must(t, im.failed.open(""))
		f := &growing{data: []byte(strings.Repeat("x", 100)), reads: c.reads}
		info, err := f.Stat()
		must(t, err)
		must(t, im.readSmall(t.Context(), job{item: Item{Path: "log"}}, f, stateOf(info)))
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
