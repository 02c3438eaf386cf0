package reader

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// Drills yields the drills of the archive, newest first. It leaves out drills that are damaged, which Verify names. It
// ends after an error.
func (a *Archive) Drills(ctx context.Context) iter.Seq2[*object.Drill, error] {
	return func(yield func(*object.Drill, error) bool) {
		var names []string
		for info, err := range a.folder.bucket.List(ctx, object.DrillPrefix, "") {
			if err != nil {
				yield(nil, fmt.Errorf("listing the drills: %w", err))
				return
			}
			if _, ok := object.ParseDrillName(info.Name); ok {
				names = append(names, info.Name)
			}
		}
		for _, name := range slices.Backward(names) {
			o, err := a.Object(ctx, name)
			if IsBroken(err) {
				continue
			}
			d, ok := o.Header.(*object.Drill)
			if err == nil && (!ok || object.DrillName(d.Time) != name) {
				continue // it has the content of another drill
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// NewestDrill returns the newest drill, or nil if there is none.
func (a *Archive) NewestDrill(ctx context.Context) (*object.Drill, error) {
	for d, err := range a.Drills(ctx) {
		return d, err
	}
	return nil, nil
}

// NewestDrills returns the newest drill of a store's archive, and the newest one that has proven the archive. They are
// nil if there are none. Unlike Open, it lists nothing else.
func NewestDrills(ctx context.Context, b bucket.Bucket, store uuid.UUID, keys object.Keys) (newest,
	proof *object.Drill, err error) {
	a := &Archive{folder: &folder{bucket: bucket.Under(b, store.String()), store: store, keys: keys}}
	for d, err := range a.Drills(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if newest == nil {
			newest = d
		}
		if d.Result == object.DrillProven {
			return newest, d, nil
		}
	}
	return newest, nil, nil
}
