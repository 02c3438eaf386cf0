package reader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// saw notes the key of an object. It may be called concurrently.
func (v *verifier) saw(name string, e object.Envelope) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !e.Kind.IsPlain() {
		v.sealed[name] = e.KeyID
	}
}

// lacks notes the key that an object needs and that was not given. It returns false if that is not what the error
// means.
func (v *verifier) lacks(err error) bool {
	var unknown *object.UnknownKeyError
	if !errors.As(err, &unknown) {
		return false
	}
	v.locked[unknown.ID] = true
	return true
}

// keys reports with which keys the objects are encrypted.
func (v *verifier) keys() {
	counts := map[object.KeyID]int64{}
	for _, id := range v.sealed {
		counts[id]++
	}
	if len(counts) == 1 && counts[object.KeyID{}] > 0 {
		return
	}
	for id, n := range counts {
		use := KeyUse{Objects: n}
		if id != (object.KeyID{}) {
			use.KeyID = id.String()
		}
		v.report.Keys = append(v.report.Keys, use)
	}
	slices.SortFunc(v.report.Keys, func(a, b KeyUse) int { return strings.Compare(a.KeyID, b.KeyID) })
}

// keyless verifies an encrypted archive without one of its keys, by the checksums of all objects.
func (v *verifier) keyless(ctx context.Context, b bucket.Bucket, store uuid.UUID, keys object.Keys) error {
	v.report.Keyless = true
	f := &folder{bucket: bucket.Under(b, store.String()), store: store}
	if err := v.list(ctx, f); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(v.names)) {
		kind, ok := KindOf(name)
		if !ok {
			v.report.Unused++
			continue
		}
		if !v.picked(name, v.names[name]) {
			continue
		}
		switch kind {
		case object.KindLog:
			v.report.Logs++
		case object.KindCatalogue:
			v.report.Catalogues++
		case object.KindSegment:
			v.report.Segments++
		case object.KindBlob:
			v.report.Blobs++
		}
		e, err := f.checksums(ctx, name, kind)
		switch {
		case err == nil:
			v.saw(name, e)
			if e.Cipher != object.CipherNone && !keys.Has(e.KeyID) {
				v.locked[e.KeyID] = true
			}
		case kind != object.KindUse || !IsMissing(err):
			v.problem(nil, err)
		}
	}
	v.keys()
	for id := range v.locked {
		v.report.UnknownKeys = append(v.report.UnknownKeys, id.String())
	}
	slices.Sort(v.report.UnknownKeys)
	if keys.First().IsZero() {
		return context.Cause(ctx)
	}
	for _, id := range v.report.UnknownKeys {
		v.problem(nil, fmt.Errorf("objects are encrypted with key id %s, which is not among the keys that were given", id))
	}
	return context.Cause(ctx)
}

// checksums checks everything in an object that can be checked without its key. If the check fails for a reason that
// may be temporary, it reads the object a second time.
func (f *folder) checksums(ctx context.Context, name string, kind object.Kind) (e object.Envelope, err error) {
	once := func() error {
		src, err := f.bucket.Open(ctx, name, 0, -1)
		if err != nil {
			return err
		}
		e, err = object.Verify(src, f.store, kind)
		return errors.Join(err, src.Close())
	}
	err = once()
	if mayHelp(ctx, err) {
		err = once()
	}
	if err != nil {
		return e, fmt.Errorf("object %s: %w", name, err)
	}
	return e, nil
}
