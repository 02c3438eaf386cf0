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

// chain is the sequence of log objects. For each number, only one archiver can create the object, and nothing else
// prevents two archivers from writing to the archive at the same time. Only one goroutine adds to the chain.
type chain struct {
	objects  *objects
	writer   uuid.UUID
	epoch    uint64
	number   atomic.Uint64 // number of the last existing object; may be read by any goroutine
	previous uint32        // CRC of the last object's envelope
	at       time.Time     // creation time of the last object
	// fence is the number of the log object with which this archiver took over. It is set before any catalogue is
	// created, and does not change any more.
	fence uint64
	// buffer is the memory of the last log object, which the next one uses. It is nil if there is none.
	buffer []byte
}

// add creates the next log object, and returns its number and envelope. The argument body holds the pieces in the
// given order. When add returns nil, the object is durable and readers find it. After any error other than that of
// ctx, this archiver must stop.
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
	content, err := c.objects.encode(header, body, bytes, c.buffer)
	if err != nil {
		return 0, object.Envelope{}, fmt.Errorf("make a log object: %w", err)
	}
	e, err := object.DecodeEnvelope(content)
	if err != nil {
		return 0, object.Envelope{}, err
	}
	number = c.number.Load() + 1
	c.buffer = nil // a client of HTTP may still send the memory after its call has failed
	if err := c.objects.claim(ctx, object.LogName(number), content); err != nil {
		return 0, object.Envelope{}, c.named(ctx, err)
	}
	c.buffer = content
	c.previous, c.at = e.CRC(), now
	c.number.Store(number)
	return number, *e, nil
}

// named adds the other archiver's identity to a TakenOverError. It reads the identity from the log object that the
// other archiver has created after this archiver's last one.
func (c *chain) named(ctx context.Context, err error) error {
	var other *TakenOverError
	if !errors.As(err, &other) {
		return err
	}
	_, l, readErr := c.objects.logHeader(ctx, c.number.Load()+1)
	if readErr == nil {
		other.Writer, other.Epoch = l.Writer, l.Epoch
	}
	return err
}

// read reads the next log object of the chain, and advances the chain. It returns false if there is no such object.
// If the object remains damaged, read skips it. The archiver then requests the lost entries from the store again, and
// creates new catalogues, so that readers no longer need the damaged object.
func (c *chain) read(ctx context.Context, each func(number uint64, e object.Envelope, l *object.Log)) (bool, error) {
	number := c.number.Load() + 1
	e, l, err := c.objects.logHeader(ctx, number)
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

// begin takes over the chain by creating an empty log object with the next epoch. If another archiver has added
// objects since the chain was read, begin first reads them, and calls the function each for every one of them.
func (c *chain) begin(ctx context.Context, each func(number uint64, e object.Envelope, l *object.Log)) error {
	last := c.epoch
	for {
		c.epoch = last + 1
		number, _, err := c.add(ctx, []object.Piece{}, nil)
		var other *TakenOverError
		if !errors.As(err, &other) {
			c.fence = number
			return err
		}
		c.epoch = last
		if _, err := c.read(ctx, each); err != nil {
			return err
		}
		last = c.epoch
	}
}
