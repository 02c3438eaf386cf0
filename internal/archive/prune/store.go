package prune

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// Store is the archive of one store in a bucket.
type Store struct {
	Bucket bucket.Bucket // the bucket at the URL, not at the store's folder
	UUID   uuid.UUID
	Key    object.Key // encrypts new objects; if zero, they are not encrypted
	Keys   object.Keys
}

// ErrOther means that another process has created an object with the same name. That process is also pruning, or has
// created a point.
var ErrOther = errors.New("another process has created it")

// createTries is the number of attempts to create an object if the outcome is unknown.
const createTries = 3

func (s *Store) folder() bucket.Bucket { return bucket.Under(s.Bucket, s.UUID.String()) }

func (s *Store) open(ctx context.Context) (*reader.Archive, error) {
	return reader.Open(ctx, s.Bucket, s.UUID, s.Keys)
}

// create creates an object, and returns its size. If the response is lost, it creates the same object again. It
// returns ErrOther if the object exists with other bytes.
func (s *Store) create(ctx context.Context, name string, header object.Header, body []byte) (int64, error) {
	e, err := object.NewEncoder(object.Spec{
		Store: s.UUID, Header: header, Body: bytes.NewReader(body), BodyBytes: int64(len(body)), Key: s.Key,
	})
	if err != nil {
		return 0, err
	}
	content, err := io.ReadAll(e)
	if err != nil {
		return 0, err
	}
	for range createTries {
		err = s.folder().Create(ctx, name, int64(len(content)), bytes.NewReader(content))
		if errors.Is(err, fs.ErrExist) {
			err = s.isOurs(ctx, name, content)
		}
		if err == nil || errors.Is(err, ErrOther) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("create %s: %w", name, err)
	}
	return int64(len(content)), nil
}

// isOurs returns nil if the existing object has exactly these bytes, and ErrOther if it has others.
func (s *Store) isOurs(ctx context.Context, name string, content []byte) error {
	r, err := s.folder().Open(ctx, name, 0, int64(len(content))+1)
	if err != nil {
		return err
	}
	is, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if !bytes.Equal(is, content) {
		return ErrOther
	}
	return nil
}

// header reads the header of a small object.
func header[H any, P interface {
	*H
	object.Header
}](ctx context.Context, a *reader.Archive, name string) (P, error) {
	o, err := a.Object(ctx, name)
	if err != nil {
		return nil, err
	}
	h, ok := o.Header.(P)
	if !ok {
		return nil, fmt.Errorf("object %s: %w: it is a %s", name, object.ErrForeign, o.Envelope.Kind)
	}
	return h, nil
}

func unix(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }
