package gateway

import (
	"context"

	"sheaf.dev/sheaf/internal/access"
	"sheaf.dev/sheaf/internal/placement"
)

// may decides whether the caller may use a verb in the group of a key, before anything is looked up there.
func (g *Gateway) may(ctx context.Context, verb access.Verb, k *key) error {
	if access.CallOf(ctx) == nil {
		return nil // callers are not known here
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	return access.May(ctx, verb, t.groupOf(k))
}

// groupOf names the group of a key, whether there is one or not.
func (t *table) groupOf(k *key) string {
	if routing := t.view.Meta.Routing; routing.Mode == placement.Hash {
		return placement.GroupName(routing.GroupOf(k.id))
	}
	return string(k.group)
}

// refuseItems answers the items of a batch that the caller may not touch.
func (g *Gateway) refuseItems(ctx context.Context, verb access.Verb, b *batch) error {
	if access.CallOf(ctx) == nil {
		return nil
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	for i := range b.items {
		if it := &b.items[i]; !it.answered {
			if err := access.May(ctx, verb, t.groupOf(&it.key)); err != nil {
				it.answered, it.err = true, err
			}
		}
	}
	return nil
}
