package prune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// These are the times of uses that Use creates.
const (
	// UseFor is how long a use counts. A reader that is killed stops pruning for this time at most.
	UseFor     = 6 * time.Hour
	useRenew   = time.Hour        // age at which a use is replaced by a new one
	useRetry   = 5 * time.Minute  // pause after a use could not be replaced
	useCallMax = time.Minute      // limit of the calls that replace a use
	useEndMax  = 10 * time.Second // limit of the calls that delete the uses of a reader that ends
)

// ErrUnprotected means that Use could not create a use, so it read nothing. The bucket's error is wrapped as well.
var ErrUnprotected = errors.New("the archive cannot be protected from pruning while it is read")

// ErrUseEnded means that no use of the reader has counted for a day. Pruning may have deleted what it reads.
var ErrUseEnded = errors.New("the archive may have been pruned meanwhile")

// Use calls read while a use of the archive counts, so that pruning deletes nothing. The function read must open the
// archive itself, because objects that were listed before the use existed may be deleted. The argument what says to
// people who reads. Use creates a new use every hour, and deletes its uses when read returns. It calls warn, which must
// be safe for concurrent use, if one of these calls fails.
//
// If the first use cannot be created, read is not called, and the error wraps ErrUnprotected, or fs.ErrNotExist if
// there is no archive. If later ones cannot be created, pruning can delete an object at the earliest a day after the
// last one has ended. Use then ends the context of read, and the error wraps ErrUseEnded.
func (s *Store) Use(ctx context.Context, what string, warn func(text string),
	read func(ctx context.Context) error) error {
	if _, err := s.folder().Stat(ctx, object.ArchiveName); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no archive of store %s at this URL: %w", s.UUID, err)
	}
	u := &using{store: s, what: what, warn: warn}
	if err := u.renew(ctx); err != nil {
		u.end(ctx)
		return fmt.Errorf("%w: %w", ErrUnprotected, err)
	}
	reading, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.keep(reading, cancel)
	}()
	err := read(reading)
	if cause := context.Cause(reading); errors.Is(cause, ErrUseEnded) {
		err = cause
	}
	cancel(nil)
	<-ended
	u.end(ctx)
	return err
}

// using holds the uses of one reader. Only one goroutine at a time calls its methods.
type using struct {
	store *Store
	what  string
	warn  func(text string)
	uses  []madeUse // uses that may exist, oldest first
	last  madeUse   // the last use that is known to exist
}

// madeUse is a use that this process has tried to create.
type madeUse struct {
	name  string
	until time.Time
}

// keep replaces the use by a new one every hour until ctx ends. If that fails for too long, it ends ctx.
func (u *using) keep(ctx context.Context, cancel context.CancelCauseFunc) {
	for wait := useRenew; backoff.Sleep(ctx, wait); {
		// Times of the wall clock are compared, because the monotonic clock stands still while a machine is suspended.
		if late := u.last.until.Add(dropWait); !time.Now().Round(0).Before(late) {
			cancel(fmt.Errorf("%w: no use could be created since %s: read it again from the beginning", ErrUseEnded,
				u.last.until.Add(-UseFor).UTC().Format(time.RFC3339)))
			return
		}
		wait = useRenew
		calls, done := context.WithTimeout(ctx, useCallMax)
		err := u.renew(calls)
		done()
		if err != nil && ctx.Err() == nil {
			wait = useRetry
			u.warn(fmt.Sprintf("the use of the archive, which ends at %s, could not be prolonged; this is tried again: %v",
				u.last.until.UTC().Format(time.RFC3339), err))
		}
	}
}

// renew creates a use. It then deletes the older ones, except the one before: if pruning lists the uses at this moment,
// the listing may miss the new one. A use that cannot be deleted ends by itself.
func (u *using) renew(ctx context.Context) error {
	now := time.Now().Round(0)
	next := madeUse{name: object.UsePrefix + uuid.NewString(), until: now.Add(UseFor)}
	older, before := u.uses, u.last
	u.uses = append(u.uses, next) // it may exist even if an error is returned
	h := &object.Use{Created: now.UnixNano(), Until: next.until.UnixNano(), What: u.what}
	if _, err := u.store.create(ctx, next.name, h, nil); err != nil {
		return err
	}
	u.last = next
	older = slices.DeleteFunc(slices.Clone(older), func(use madeUse) bool { return use == before })
	u.uses, _ = u.delete(ctx, older, now)
	if before.name != "" {
		u.uses = append(u.uses, before)
	}
	u.uses = append(u.uses, next)
	return nil
}

// end deletes all uses of the reader. It does so even if ctx has ended.
func (u *using) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), useEndMax)
	defer cancel()
	left, err := u.delete(ctx, u.uses, time.Now())
	if len(left) > 0 && u.last.name != "" {
		u.warn(fmt.Sprintf("%s remains, so nothing is pruned until %s, unless it is deleted: %v", left[len(left)-1].name,
			left[len(left)-1].until.UTC().Format(time.RFC3339), err))
	}
}

// delete deletes uses. It returns those that could not be deleted and have not ended.
func (u *using) delete(ctx context.Context, uses []madeUse, now time.Time) (left []madeUse, err error) {
	for _, use := range uses {
		if failed := u.store.folder().Delete(ctx, use.name); failed != nil && use.until.After(now) {
			left, err = append(left, use), failed
		}
	}
	return left, err
}

// inUse returns a description of a reader that uses the archive, or "" if there is none. It also returns the names of
// the uses that have ended. A use has ended when its time has passed both by this process's clock and by the bucket's,
// which is as far as the creation of the newest object. inUse returns an error if a use cannot be read, because that
// use might still be valid.
func (s *Store) inUse(ctx context.Context, a *reader.Archive, now time.Time) (who string, ended []string, err error) {
	var newest time.Time
	for info, err := range s.folder().List(ctx, object.UsePrefix, "") {
		if err != nil {
			return "", nil, fmt.Errorf("listing the uses: %w", err)
		}
		h, err := header[object.Use](ctx, a, info.Name)
		switch {
		case reader.IsMissing(err):
			continue // the reader has ended since the listing
		case err != nil:
			return "", nil, fmt.Errorf("nothing is pruned while a use cannot be read: %w", err)
		case !unix(h.Until).Before(now):
			who = fmt.Sprintf("%s (%s, until %s)", h.What, info.Name, unix(h.Until).Format(time.RFC3339))
			continue
		}
		if newest.IsZero() {
			if newest, err = s.newest(ctx); err != nil {
				return "", nil, err
			}
		}
		if info.Created.Add(time.Duration(h.Until - h.Created)).After(newest) {
			who = fmt.Sprintf("%s (%s, ended by this clock, but no object in the bucket is as young)", h.What, info.Name)
			continue
		}
		ended = append(ended, info.Name)
	}
	return who, ended, nil
}

// newest returns the time at which the newest object was created, by the bucket's clock.
func (s *Store) newest(ctx context.Context) (newest time.Time, err error) {
	names, err := s.list(ctx)
	return newestOf(names), err
}
