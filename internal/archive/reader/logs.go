package reader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// logs are the log objects that count: those before the first gap in their numbers.
type logs struct {
	first  uint64 // number of the first one; 0: there is none
	bytes  []int64
	loaded []*logObject // nil: not read yet
	behind []uint64     // numbers of the objects behind the first gap, which do not count
}

// logObject is the header of a log object.
type logObject struct {
	number   uint64
	name     string
	bytes    int64
	header   object.Log
	chunks   *object.Chunks
	envelope uint32 // CRC of the envelope
}

func (l *logs) last() uint64 {
	if l.first == 0 {
		return 0
	}
	return l.first + uint64(len(l.bytes)) - 1
}

// listLogs lists the log objects. A listing may be out of date, so an object that is missing before others is asked for
// by its name.
func (f *folder) listLogs(ctx context.Context) (l logs, err error) {
	for info, err := range f.bucket.List(ctx, object.LogPrefix, "") {
		if err != nil {
			return logs{}, fmt.Errorf("listing %s: %w", object.LogPrefix, err)
		}
		number, ok := object.ParseLogName(info.Name)
		if !ok {
			continue // no object of an archive
		}
		if l.first == 0 {
			l.first = number
		}
		for len(l.behind) == 0 && number > l.last()+1 && len(l.bytes) > 0 {
			missing, err := f.stat(ctx, object.LogName(l.last()+1))
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return logs{}, err
			}
			l.bytes = append(l.bytes, missing.Bytes)
		}
		if len(l.bytes) > 0 && number != l.last()+1 {
			l.behind = append(l.behind, number)
			continue
		}
		l.bytes = append(l.bytes, info.Bytes)
	}
	l.loaded = make([]*logObject, len(l.bytes))
	return l, nil
}

// read returns the log objects from a number on. They are kept, because groups share them.
func (l *logs) read(ctx context.Context, f *folder, from uint64) ([]*logObject, error) {
	if l.first == 0 || from > l.last() {
		return nil, nil
	}
	from = max(from, l.first)
	for number := from; number <= l.last(); number++ {
		if err := l.load(ctx, f, number); err != nil {
			return nil, err
		}
	}
	return l.loaded[from-l.first:], nil
}

// load reads the header of one log object, and of the one before it, which says whether this one is the next.
func (l *logs) load(ctx context.Context, f *folder, number uint64) error {
	at := number - l.first
	if l.loaded[at] != nil {
		return nil
	}
	var before *uint32 // CRC of the envelope before; nil: not known
	switch {
	case number == 1:
		before = new(uint32)
	case at > 0 && l.loaded[at-1] != nil:
		before = &l.loaded[at-1].envelope
	case at > 0:
		crc, err := f.envelopeCRC(ctx, object.LogName(number-1))
		if err != nil {
			return err
		}
		before = &crc
	}
	o := &logObject{number: number, name: object.LogName(number), bytes: l.bytes[at]}
	c, err := f.openContent(ctx, o.name, object.KindLog, o.bytes, &o.header, func() error {
		if before != nil && o.header.Previous != *before {
			return fmt.Errorf("%w: it does not follow %s, as the checksum of that one's envelope says", object.ErrForeign,
				object.LogName(number-1))
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.close()
	e := c.chunks.Envelope()
	o.chunks, o.envelope = c.chunks, format.Checksum(e.Encode())
	l.loaded[at] = o
	return nil
}

// envelopeCRC returns the CRC of the envelope of a log object.
func (f *folder) envelopeCRC(ctx context.Context, name string) (uint32, error) {
	info, err := f.stat(ctx, name)
	if err != nil {
		return 0, err
	}
	var h object.Log
	c, err := f.openContent(ctx, name, object.KindLog, info.Bytes, &h, nil)
	if err != nil {
		return 0, err
	}
	c.close()
	e := c.chunks.Envelope()
	return format.Checksum(e.Encode()), nil
}

// firstName returns the first name of a listing; empty if there is none.
func firstName(list iter.Seq2[bucket.Info, error]) (string, error) {
	for info, err := range list {
		return info.Name, err
	}
	return "", nil
}
