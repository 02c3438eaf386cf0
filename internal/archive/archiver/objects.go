package archiver

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
)

// TakenOverError means that another archiver writes this archive. The process must end. If it is started again, it
// takes over from the other archiver.
type TakenOverError struct {
	Object string    // name of the object that the other archiver created
	Writer uuid.UUID // the other archiver's process; zero if unknown, for example because it encrypts with a newer key
	Epoch  uint64    // the other archiver's epoch; 0 if unknown
}

func (e *TakenOverError) Error() string {
	who := "another archiver"
	if e.Writer != uuid.Nil {
		who += fmt.Sprintf(" (process %s, epoch %d)", e.Writer, e.Epoch)
	}
	return fmt.Sprintf("%s has created %s: run one archiver for each store; this one stops", who, e.Object)
}

// sourceError is an error that was caused by the Source or by its data, and not by the bucket. It concerns only one
// group.
type sourceError struct{ error }

func (e sourceError) Unwrap() error { return e.error }

// isFinal reports whether it would be useless to retry a bucket operation that failed with err.
func isFinal(err error) bool {
	var other *TakenOverError
	var source sourceError
	return errors.As(err, &other) || errors.As(err, &source) || errors.Is(err, object.ErrForeign) ||
		errors.Is(err, object.ErrVersion) || errors.Is(err, object.ErrKey) || errors.Is(err, fs.ErrNotExist)
}

// objects creates and reads the objects of one archive. It retries each operation until the outcome is known. Safe
// for concurrent use.
type objects struct {
	bucket bucket.Bucket // the store's folder in the bucket
	store  uuid.UUID
	key    object.Key
	keys   object.Keys
	board  *board
	log    *slog.Logger
}

// pauses determines the pauses between the attempts that again makes.
var pauses = backoff.Doubling{First: 200 * time.Millisecond, Most: 20 * time.Second}

// again repeats an operation until it succeeds or fails with a final error. If ctx ends, it returns the cause.
func (o *objects) again(ctx context.Context, reason Reason, what string, op func() error) error {
	tries := backoff.Tries{Doubling: pauses}
	for damaged := 1; ; {
		err := op()
		if err == nil || isFinal(err) {
			return err
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		reason := reason
		if errors.Is(err, object.ErrCorrupt) {
			reason = ReasonDamage
			if damaged++; damaged > readTries {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		o.board.failed(reason, fmt.Errorf("%s: %w", what, err))
		o.log.Warn("the archive's bucket is asked again", "what", what, "error", err)
		if !tries.Wait(ctx) {
			return context.Cause(ctx)
		}
	}
}

// encode returns the bytes of an object that must be identical in every attempt to create it. It uses the memory of
// the buffer if the object fits into it.
func (o *objects) encode(header object.Header, body io.Reader, bodyBytes int64, buffer []byte) ([]byte, error) {
	e, err := object.NewEncoder(object.Spec{
		Store: o.store, Header: header, Body: body, BodyBytes: bodyBytes, Key: o.key,
	})
	if err != nil {
		return nil, err
	}
	b := slices.Grow(buffer[:0], int(e.Bytes()))[:e.Bytes()]
	_, err = io.ReadFull(e, b)
	return b, err
}

// claim creates an object whose name another archiver might also use. It returns nil only if the object exists with
// exactly these bytes. It returns a TakenOverError if another archiver has created the object.
func (o *objects) claim(ctx context.Context, name string, content []byte) error {
	return o.again(ctx, ReasonCreate, "create "+name, func() error {
		err := o.bucket.Create(ctx, name, int64(len(content)), bytes.NewReader(content))
		if errors.Is(err, fs.ErrExist) {
			err = o.isOurs(ctx, name, content)
		} else {
			err = notFinal(err)
		}
		if err == nil {
			o.board.created(int64(len(content)))
		}
		return err
	})
}

// isOurs reads an object and returns nil if it has exactly the given bytes, and a TakenOverError if it is a different
// object. If the bytes were damaged while they were read, it returns another error, so that the caller reads them
// again.
func (o *objects) isOurs(ctx context.Context, name string, content []byte) (err error) {
	r, err := o.bucket.Open(ctx, name, 0, -1)
	if err != nil {
		return notFinal(err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	envelope := make([]byte, object.EnvelopeBytes)
	if _, err := io.ReadFull(r, envelope); err != nil {
		return fmt.Errorf("read what exists already: %w", err)
	}
	if _, err := object.DecodeEnvelope(envelope); errors.Is(err, object.ErrVersion) {
		return err
	} else if err != nil {
		return fmt.Errorf("read what exists already: %v", err) //nolint:errorlint // an answer is awaited without end
	}
	if !bytes.Equal(envelope, content[:object.EnvelopeBytes]) {
		return &TakenOverError{Object: name}
	}
	rest := content[object.EnvelopeBytes:]
	buffer := make([]byte, 64<<10)
	for {
		n, err := r.Read(buffer)
		if n > len(rest) || !bytes.Equal(buffer[:n], rest[:n]) {
			return errors.New("the object that this process created is read with other bytes")
		}
		rest = rest[n:]
		switch {
		case errors.Is(err, io.EOF) && len(rest) == 0:
			return nil
		case err != nil:
			return fmt.Errorf("read what exists already: %w", notFinal(err))
		}
	}
}

// notFinal makes an error retryable by hiding that it wraps fs.ErrNotExist. An object that was reported to exist, and
// is then not found, must be requested again.
func notFinal(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New(err.Error())
	}
	return err
}

// create creates an object whose name contains a random id. If such an object exists already, an earlier attempt has
// created it. The function spec is called for each attempt. create returns the size of the object in bytes.
func (o *objects) create(ctx context.Context, name string, spec func() (object.Spec, error)) (size int64, err error) {
	err = o.again(ctx, ReasonCreate, "create "+name, func() error {
		s, err := spec()
		if err != nil {
			return err
		}
		s.Store, s.Key = o.store, o.key
		e, err := object.NewEncoder(s)
		if err != nil {
			return sourceError{err}
		}
		size = e.Bytes()
		body := &errorRecorder{src: e}
		err = o.bucket.Create(ctx, name, size, body)
		switch {
		case errors.Is(err, fs.ErrExist):
			return nil
		case err == nil:
			o.board.created(size)
		case body.err != nil:
			return body.err
		}
		return notFinal(err)
	})
	return size, err
}

// errorRecorder wraps a reader and records its error, so that errors of the reader can be distinguished from errors of
// the bucket that reads from it.
type errorRecorder struct {
	src io.Reader
	err error // nil if the reader has only returned io.EOF
}

// Read implements io.Reader.
func (w *errorRecorder) Read(p []byte) (int, error) {
	n, err := w.src.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = err
	}
	return n, err
}

// header reads the header of an object. If the object does not exist, it does not retry, and the error wraps
// fs.ErrNotExist.
func (o *objects) header(ctx context.Context, name string, kind object.Kind, to func() object.Header) (
	object.Envelope, error) {
	var e object.Envelope
	err := o.again(ctx, ReasonRead, "read "+name, func() (err error) {
		r, err := o.bucket.Open(ctx, name, 0, -1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		d, err := object.NewDecoder(r, o.store, kind, o.keys)
		if err != nil {
			return err
		}
		e = d.Envelope()
		return d.Header(to())
	})
	return e, err
}

// logHeader reads the header of a log object (see header).
func (o *objects) logHeader(ctx context.Context, number uint64) (object.Envelope, *object.Log, error) {
	var l *object.Log
	e, err := o.header(ctx, object.LogName(number), object.KindLog, func() object.Header {
		l = new(object.Log)
		return l
	})
	return e, l, err
}

// list calls a function with the names of all objects that begin with the given prefix and sort after a given name,
// until the function returns false.
func (o *objects) list(ctx context.Context, prefix, after string, each func(name string) bool) error {
	return o.again(ctx, ReasonRead, "list "+prefix, func() error {
		for info, err := range o.bucket.List(ctx, prefix, after) {
			if err != nil {
				return err
			}
			after = info.Name // a retry continues after this name
			if !each(info.Name) {
				return nil
			}
		}
		return nil
	})
}

// segment creates the segment object with the entries of b. There must be at least one.
func (o *objects) segment(ctx context.Context, name string, floor uint64, made string, b *pieces.Builder) (
	object.SegmentRef, error) {
	body, err := b.Finish()
	if err != nil {
		return object.SegmentRef{}, err
	}
	r, id := b.Range(), b.ID()
	r.Name, r.Floor = name, floor
	size, err := o.create(ctx, object.SegmentName(r.Group, r.First, r.Last, id), func() (object.Spec, error) {
		return object.Spec{
			Header: &object.Segment{Range: r, Made: made}, Body: bytes.NewReader(body), BodyBytes: int64(len(body)),
		}, nil
	})
	return object.SegmentRef{First: r.First, Last: r.Last, ID: hex.EncodeToString(id[:]), Bytes: size}, err
}
