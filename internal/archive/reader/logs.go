package reader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// logs holds the log objects of an archive. A group needs those from the first one that its catalogue does not cover,
// up to the first gap in the numbers.
type logs struct {
	first, last uint64           // numbers; 0 if there are no log objects
	bytes       map[uint64]int64 // sizes of the existing log objects, by number
	loaded      map[uint64]*logObject
	bodiesRoom  int64                // how many more bytes of bodies may be kept in memory
	ahead       map[uint64]*logAhead // log objects that are opened before read needs them, by number
}

// logsAhead is the number of log objects for which the bucket is asked at the same time. Each holds up to one chunk,
// which is 1 MiB, in memory.
const logsAhead = 8

// bodiesBytesMax bounds the memory for the bodies of log objects. Without these bodies, each group would read its
// piece of each log object by a request of its own, twice in a restore: an hour of 10 s in 256 groups is 92,160 pieces.
const bodiesBytesMax = 64 << 20

// logObject is the header of a log object.
type logObject struct {
	number   uint64
	name     string
	bytes    int64
	header   object.Log
	chunks   *object.Chunks
	envelope uint32 // CRC of the object's envelope
	body     []byte // the pieces; nil if they are read from the bucket when they are needed
}

// listLogs lists the log objects. A listing may be out of date. If a number is missing between two listed objects,
// listLogs therefore looks for the object by its name.
func (f *folder) listLogs(ctx context.Context) (*logs, error) {
	l := &logs{bytes: map[uint64]int64{}, loaded: map[uint64]*logObject{}, bodiesRoom: bodiesBytesMax,
		ahead: map[uint64]*logAhead{}}
	for info, err := range f.bucket.List(ctx, object.LogPrefix, "") {
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", object.LogPrefix, err)
		}
		number, ok := object.ParseLogName(info.Name)
		if !ok {
			continue // this is not an object of an archive
		}
		if l.first == 0 {
			l.first, l.last = number, number-1
		}
		for ; l.last+1 < number; l.last++ {
			missing, err := f.stat(ctx, object.LogName(l.last+1))
			if errors.Is(err, fs.ErrNotExist) {
				break // the gap starts here, so it does not matter whether the objects after it exist
			}
			if err != nil {
				return nil, err
			}
			l.bytes[l.last+1] = missing.Bytes
		}
		l.bytes[number], l.last = info.Bytes, number
	}
	return l, nil
}

// has reports whether a log object exists.
func (l *logs) has(number uint64) bool {
	_, ok := l.bytes[number]
	return ok
}

// gap returns the first missing number, starting at from, if later log objects exist. It returns 0 if no number is
// missing.
func (l *logs) gap(from uint64) uint64 {
	for number := from; number <= l.last; number++ {
		if !l.has(number) {
			return number
		}
	}
	return 0
}

// read returns the log objects from a number on, up to the first gap. It keeps them in memory, because the groups
// share them. While it checks one, it asks the bucket for the next ones.
func (l *logs) read(ctx context.Context, f *folder, from uint64) (read []*logObject, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, a := range l.ahead {
			<-a.over
		}
		clear(l.ahead)
	}()
	next := from
	for number := from; l.has(number); number++ {
		for ; l.has(next) && next < number+logsAhead; next++ {
			l.openAhead(ctx, f, next)
		}
		o, err := l.load(ctx, f, number)
		if err != nil {
			return nil, err
		}
		read = append(read, o)
	}
	return read, nil
}

// logAhead is a log object that is opened before it is needed.
type logAhead struct {
	object  *logObject
	over    chan struct{} // closed when the attempt to open the object has ended
	content *content      // nil if the object could not be opened; set before over is closed
}

// openAhead begins to open a log object.
func (l *logs) openAhead(ctx context.Context, f *folder, number uint64) {
	if l.loaded[number] != nil {
		return
	}
	a := &logAhead{object: l.object(number), over: make(chan struct{})}
	l.ahead[number] = a
	go func() {
		defer close(a.over)
		// An error does not matter: load opens the object again, and returns the error of that attempt.
		a.content, _ = a.object.open(ctx, f, nil)
	}()
}

// opened returns the log object that openAhead has opened, unless there is none that follows the object with the given
// CRC of the envelope.
func (l *logs) opened(number uint64, before *uint32) (*logObject, *content) {
	a := l.ahead[number]
	if a == nil {
		return nil, nil
	}
	delete(l.ahead, number)
	if <-a.over; a.content == nil || a.object.follows(before) != nil {
		return nil, nil
	}
	return a.object, a.content
}

func (l *logs) object(number uint64) *logObject {
	return &logObject{number: number, name: object.LogName(number), bytes: l.bytes[number]}
}

// open reads the header, and checks that the object follows the one with the given CRC of the envelope.
func (o *logObject) open(ctx context.Context, f *folder, before *uint32) (*content, error) {
	c, err := f.openContent(ctx, o.name, object.KindLog, o.bytes, &o.header, func() error { return o.follows(before) })
	if err == nil {
		c.close()
	}
	return c, err
}

// follows returns an error unless the object follows the one with the given CRC of the envelope. If before is nil, the
// preceding object does not exist.
func (o *logObject) follows(before *uint32) error {
	if before == nil || o.header.Previous == *before {
		return nil
	}
	return fmt.Errorf("%w: it does not follow %s: the checksum of that one's envelope is another", object.ErrForeign,
		object.LogName(o.number-1))
}

// load reads the header of one log object, and checks that the object continues the preceding one.
func (l *logs) load(ctx context.Context, f *folder, number uint64) (*logObject, error) {
	if o := l.loaded[number]; o != nil {
		return o, nil
	}
	before, err := l.envelopeBefore(ctx, f, number)
	if err != nil {
		return nil, err
	}
	o, c := l.opened(number, before)
	if o == nil {
		o = l.object(number)
		if c, err = o.open(ctx, f, before); err != nil {
			return nil, err
		}
	}
	e := c.chunks.Envelope()
	o.chunks, o.envelope = c.chunks, e.CRC()
	l.keepBody(o, c, &e)
	l.loaded[number] = o
	return o, nil
}

// keepBody keeps the body of a log object of one chunk, which was read together with the header, while there is room.
// It drops no other body for it: the groups read the log objects in the same order, one group after another, so the
// body that was dropped would be needed before this one.
func (l *logs) keepBody(o *logObject, c *content, e *object.Envelope) {
	body := e.ContentBytes - e.HeaderBytes
	if e.ContentBytes > object.ChunkBytes || c.data == nil || body > l.bodiesRoom {
		return
	}
	l.bodiesRoom -= body
	o.body = slices.Clone(c.data[e.HeaderBytes:])
}

// envelopeBefore returns the CRC of the envelope of the log object that precedes the one with the given number. It
// returns nil if that object does not exist.
func (l *logs) envelopeBefore(ctx context.Context, f *folder, number uint64) (*uint32, error) {
	if number == 1 {
		return new(uint32), nil
	}
	if o := l.loaded[number-1]; o != nil {
		return &o.envelope, nil
	}
	if !l.has(number - 1) {
		return nil, nil
	}
	var h object.Log
	c, err := f.openContent(ctx, object.LogName(number-1), object.KindLog, l.bytes[number-1], &h, nil)
	if err != nil {
		return nil, err
	}
	c.close()
	e := c.chunks.Envelope()
	crc := e.CRC()
	return &crc, nil
}

// firstName returns the first name of a listing, or "" if the listing is empty.
func firstName(list iter.Seq2[bucket.Info, error]) (string, error) {
	for info, err := range list {
		return info.Name, err
	}
	return "", nil
}
