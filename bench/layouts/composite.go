package layouts

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// flags determines how a composite file marks superseded versions.
type flags int

const (
	noFlags     flags = iota // no marks, so a reader parses all versions and keeps the last one of each record
	flagInPlace              // a byte in each header, overwritten when a newer version is written (the text's "used" flag)
	flagBitmap               // one bit for each version in a separate file, written at the end
)

// composite is the composite file that Vorontsov's text describes. It is a sequence of entries, each with id, length
// and data. It has no checksum and no index.
type composite struct{ flags flags }

const (
	compositeFile   = "records"
	bitmapFile      = "used"
	compositeHeader = 8 // int id, int length
	flaggedHeader   = 9 // int id, the byte of the "used" flag, int length
	compositeChunk  = 1 << 20
)

func (c *composite) name() string {
	return [...]string{"composite file", "composite file, flag in place", "composite file, bitmap"}[c.flags]
}

func (c *composite) headerBytes() int {
	if c.flags == flagInPlace {
		return flaggedHeader
	}
	return compositeHeader
}

func (c *composite) header(b []byte, id int64, size int) []byte {
	b = binary.LittleEndian.AppendUint32(b[:0], uint32(id))
	if c.flags == flagInPlace {
		b = append(b, 1)
	}
	return binary.LittleEndian.AppendUint32(b, uint32(size))
}

func (c *composite) fill(ctx context.Context, dir string, set *recordSet, syncEach bool) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, compositeFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, compositeChunk)
	header := make([]byte, 0, flaggedHeader)
	entry := int64(c.headerBytes() + set.size)
	for k := range set.total {
		if err := stopped(ctx, k); err != nil {
			return err
		}
		if c.flags == flagInPlace && k >= set.live {
			// The older version must be written to the file before its flag is cleared in the file.
			if older := int64(k-set.live) * entry; older+entry > int64(k)*entry-int64(w.Buffered()) {
				if err := w.Flush(); err != nil {
					return err
				}
			}
			if _, err := f.WriteAt([]byte{0}, int64(k-set.live)*entry+4); err != nil {
				return fmt.Errorf("clearing a used flag: %w", err)
			}
		}
		if _, err := w.Write(c.header(header, set.id(k), set.size)); err != nil {
			return err
		}
		if _, err := w.Write(set.data(k)); err != nil {
			return err
		}
		if syncEach {
			if err := errors.Join(w.Flush(), f.Sync()); err != nil {
				return err
			}
		}
	}
	if err := w.Flush(); err != nil || c.flags != flagBitmap {
		return err
	}
	return os.WriteFile(filepath.Join(dir, bitmapFile), bitmapOf(set), 0o644)
}

func bitmapOf(set *recordSet) []byte {
	used := make([]byte, (set.total+7)/8)
	for k := set.total - set.live; k < set.total; k++ {
		used[k/8] |= 1 << (k % 8)
	}
	return used
}

// read reads the file from start to end into memory, and parses each entry as soon as it is read. There is only one
// reader, because the position of an entry is known only after the previous entry was read.
func (c *composite) read(ctx context.Context, dir string, set *recordSet, _ int, visit visitor) (_ int64, err error) {
	f, err := os.Open(filepath.Join(dir, compositeFile))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var used []byte
	if c.flags == flagBitmap {
		if used, err = os.ReadFile(filepath.Join(dir, bitmapFile)); err != nil {
			return 0, err
		}
	}
	memory, err := newArena(info.Size())
	if err != nil {
		return 0, err
	}
	defer memory.release()
	p := &compositeParser{composite: c, used: used, visit: visit}
	if c.flags == noFlags && set.total > set.live {
		p.newest = make(map[int64][]byte, set.live)
	}
	all := memory.memory[:info.Size()]
	for have := 0; have < len(all); {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		n, err := f.Read(all[have:min(have+compositeChunk, len(all))])
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		have += n
		if err := p.parse(all[:have]); err != nil {
			return 0, err
		}
	}
	if p.at != len(all) {
		return 0, fmt.Errorf("%s: its last entry is not whole", f.Name())
	}
	if p.newest != nil {
		return int64(len(p.newest)), nil
	}
	return p.records, nil
}

// compositeParser parses the entries of a composite file one after another.
type compositeParser struct {
	*composite
	used  []byte // the bitmap; nil if there is none
	visit visitor
	// newest maps each id to its newest data. It is used if the file has several versions of a record and no marks, and
	// is nil otherwise.
	newest  map[int64][]byte
	at      int
	entry   int
	records int64
}

// parse parses the complete entries in b. Without flags it has to parse every version, because a newer version may
// follow.
func (p *compositeParser) parse(b []byte) error {
	header := p.headerBytes()
	for p.at+header <= len(b) {
		h := b[p.at:]
		id, size := int64(int32(binary.LittleEndian.Uint32(h))), int(binary.LittleEndian.Uint32(h[header-4:]))
		end := p.at + header + size
		if end > len(b) {
			return nil
		}
		data := b[p.at+header : end : end]
		skip := p.flags == flagInPlace && h[4] == 0 || p.used != nil && p.used[p.entry/8]&(1<<(p.entry%8)) == 0
		p.at = end
		p.entry++
		if skip {
			continue
		}
		p.records++
		if p.newest != nil {
			p.newest[id] = data
		}
		if p.visit != nil {
			if err := p.visit(id, data); err != nil {
				return err
			}
		}
	}
	return nil
}
