package placementtest

import (
	"context"
	"errors"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// UpdateGroup reads a group, calls change() to modify it, and writes it back. If another process has written the
// group in the meantime, UpdateGroup starts again. If change() returns an error, UpdateGroup writes nothing and
// returns that error.
func UpdateGroup(ctx context.Context, store *registry.Store, name string,
	change func(*placement.Group) error) (placement.Group, error) {
	for {
		g, err := store.Group(ctx, name)
		if err != nil {
			return placement.Group{}, err
		}
		if err := change(&g); err != nil {
			return placement.Group{}, err
		}
		g, err = store.PutGroup(ctx, g)
		if !errors.Is(err, placement.ErrChanged) {
			return g, err
		}
	}
}
