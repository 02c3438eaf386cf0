package archiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
)

// chain is the log objects, one after another. Whoever creates a number owns it: this is the only thing that keeps two
// archivers apart. One goroutine writes it.
type chain struct {
	objects  *objects
	writer   uuid.UUID
	epoch    uint64
	number   atomic.Uint64 // of the last object that exists; readable by all
	previous uint32        // CRC of the envelope of that object
	at       time.Time     // when it was made
}

// add creates the next log object, and returns its number and envelope. body is as the pieces say. When it returns nil,
// the object is durable and counts for readers; after any error but that of ctx this archiver must stop.
func (c *chain) add(ctx context.Context, pieces []object.Piece, body io.Reader) (number uint64, _ object.Envelope,
	err error) {
	now := time.Now()
	header := &object.Log{
		Writer: c.writer, Epoch: c.epoch, Previous: c.previous, Time: now.UnixNano(), Pieces: pieces,
	}
	var bytes int64
	for i := range pieces {
		bytes += pieces[i].Bytes
	}
	content, err := c.objects.encode(header, body, bytes)
	if err != nil {
		return 0, object.Envelope{}, fmt.Errorf("make a log object: %w", err)
	}
	e, err := object.DecodeEnvelope(content)
	if err != nil {
		return 0, object.Envelope{}, err
	}
	number = c.number.Load() + 1
	if err := c.objects.claim(ctx, object.LogName(number), content); err != nil {
		return 0, object.Envelope{}, c.named(ctx, err)
	}
	c.previous, c.at = e.CRC(), now
	c.number.Store(number)
	return number, *e, nil
}

// named completes a TakenOverError by the name of the other archiver: that of the log object behind our last one.
func (c *chain) named(ctx context.Context, err error) error {
	var other *TakenOverError
	if !errors.As(err, &other) {
		return err
	}
	var l object.Log
	_, readErr := c.objects.header(ctx, object.LogName(c.number.Load()+1), object.KindLog, func() object.Header {
		l = object.Log{}
		return &l
	})
	if readErr == nil {
		other.Writer, other.Epoch = l.Writer, l.Epoch
	}
	return err
}

// read reads a log object that continues the chain, and moves the chain behind it. It returns false if there is none.
// An object that stays damaged is passed over: what it had is asked for again, and the next catalogues are behind it.
func (c *chain) read(ctx context.Context, each func(number uint64, e object.Envelope, l *object.Log)) (bool, error) {
	number := c.number.Load() + 1
	var l *object.Log
	e, err := c.objects.header(ctx, object.LogName(number), object.KindLog, func() object.Header {
		l = new(object.Log)
		return l
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, object.ErrCorrupt):
		c.objects.board.failed(ReasonGap, err)
		c.number.Store(number)
		c.previous = 0
		return true, nil
	case err != nil:
		return false, err
	}
	if number > 1 && c.previous != 0 && l.Previous != c.previous {
		c.objects.board.failed(ReasonGap, fmt.Errorf("%s does not continue the object before it", object.LogName(number)))
	}
	each(number, e, l)
	c.previous, c.epoch, c.at = e.CRC(), max(c.epoch, l.Epoch), time.Unix(0, l.Time)
	c.number.Store(number)
	return true, nil
}

// begin takes the chain over: it creates an empty object with the next epoch. The chain was read to its end, but
// another archiver may have added to it since; each hears of what is added.
func (c *chain) begin(ctx context.Context, each func(number uint64, e object.Envelope, l *object.Log)) error {
	last := c.epoch
	for {
		c.epoch = last + 1
		_, _, err := c.add(ctx, []object.Piece{}, nil)
		var other *TakenOverError
		if !errors.As(err, &other) {
			return err
		}
		c.epoch = last
		if _, err := c.read(ctx, each); err != nil {
			return err
		}
		last = c.epoch
	}
}
