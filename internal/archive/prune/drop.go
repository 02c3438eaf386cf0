package prune

import (
	"context"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// dropWait is the time between the listing of an object in a drop and its deletion.
const dropWait = 24 * time.Hour

// drop is a drop that was read from the archive.
type drop struct {
	*object.Drop
	name    string
	number  uint64
	created time.Time // according to the bucket's clock
}

// due reports whether the objects of a drop may be deleted. A day must have passed since the drop was created, both
// by this process's clock and by the bucket's. The argument newest is the creation time of the newest object in the
// bucket, which shows how far the bucket's clock has got.
func (d *drop) due(now, newest time.Time) bool {
	return !unix(d.Time).Add(dropWait).After(now) && !d.created.Add(dropWait).After(newest)
}

// drops returns the drops of the archive, ordered by number.
func (s *Store) drops(ctx context.Context, a *reader.Archive) (drops []drop, err error) {
	for info, err := range s.folder().List(ctx, object.DropPrefix, "") {
		if err != nil {
			return nil, fmt.Errorf("listing the drops: %w", err)
		}
		number, ok := object.ParseDropName(info.Name)
		if !ok {
			continue
		}
		h, err := header[object.Drop](ctx, a, info.Name)
		if err != nil {
			return nil, err
		}
		drops = append(drops, drop{Drop: h, name: info.Name, number: number, created: info.Created})
	}
	return drops, nil
}

// createDrop lists objects in one or more new drops.
func (s *Store) createDrop(ctx context.Context, names []string, now time.Time) error {
	next := uint64(1)
	for info, err := range s.folder().List(ctx, object.DropPrefix, "") {
		if err != nil {
			return fmt.Errorf("listing the drops: %w", err)
		}
		if number, ok := object.ParseDropName(info.Name); ok {
			next = number + 1
		}
	}
	for ; len(names) > 0; next++ {
		n := min(len(names), object.DropObjectsMax)
		d := &object.Drop{Time: now.UnixNano(), Objects: names[:n]}
		if _, err := s.create(ctx, object.DropName(next), d, nil); err != nil {
			return err
		}
		names = names[n:]
	}
	return nil
}

// list returns all objects of the archive.
func (s *Store) list(ctx context.Context) (map[string]bucket.Info, error) {
	names := map[string]bucket.Info{}
	for info, err := range s.folder().List(ctx, "", "") {
		if err != nil {
			return nil, fmt.Errorf("listing the archive of store %s: %w", s.UUID, err)
		}
		names[info.Name] = info
	}
	return names, nil
}
