package placementtest

import (
	"context"
	"errors"

	"sheaf.dev/sheaf/internal/placement"
)

// UpdateGroup reads a group, lets change alter it and writes it, again until nobody came between. It writes nothing
// where change answers an error, which it returns.
func UpdateGroup(ctx context.Context, store *placement.Store, name string,
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
