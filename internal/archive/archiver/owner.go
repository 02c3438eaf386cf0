package archiver

import (
	"context"
	"errors"
	"io/fs"

	"sheaf.dev/sheaf/internal/archive/object"
)

// Begun returns a channel that is closed when the archiver has taken over the archive and has read how far it is.
func (a *Archiver) Begun() <-chan struct{} { return a.begun }

// Owns returns nil if no other archiver had taken over from this one when the bucket was asked. It returns a
// TakenOverError if another one had, although this archiver may not have noticed it yet: an idle archiver, or one that
// was paused, creates no log object for some time. Owns returns any other error if the bucket does not answer. It may
// be called by any goroutine after Begun.
func (a *Archiver) Owns(ctx context.Context) error {
	for {
		number := a.chain.number.Load() + 1
		_, err := a.objects.bucket.Stat(ctx, object.LogName(number))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		_, l, err := a.objects.logHeader(ctx, number)
		switch {
		case err == nil && l.Writer == a.chain.writer:
			return nil // this archiver has just created the object
		case err == nil:
			return &TakenOverError{Object: object.LogName(number), Writer: l.Writer, Epoch: l.Epoch}
		case ctx.Err() != nil || a.chain.number.Load() < number:
			return err
		}
		// The object was damaged while it was read, but it belongs to this archiver. Ask about the one after it.
	}
}
