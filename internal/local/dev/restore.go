package dev

import (
	"context"
	"fmt"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/listing"
)

// Restore makes a new dev store begin with the groups of an archive.
type Restore struct {
	Source string       // host:port at which a source serves the groups, without TLS
	List   listing.List // what the source lists; it decides about the UUID and the routing of the store
	// Partly begins although some groups cannot be restored. These groups are never served.
	Partly bool
}

// meta returns the part of the store's Meta that says where its groups come from. Writes are accepted at once, because
// all copies are on one machine.
func (r *Restore) meta() *placement.Restore {
	return &placement.Restore{Source: r.Source, Listing: true, At: r.List.At.UTC().Format(time.RFC3339Nano),
		Partly: r.Partly, Writes: placement.WritesAtOnce}
}

// validate returns an error if the store cannot be restored as asked.
func (r *Restore) validate(c *Config) error {
	switch {
	case r == nil:
		return nil
	case c.TLS:
		return usageError("--tls does not go with a restore: the source in this process speaks plaintext")
	case c.Mode != "" || c.Groups != 0:
		return usageError("a restored store has the routing and the groups of the archived one: leave out --routing and " +
			"--groups")
	case r.Partly:
		return nil
	}
	return r.List.Whole()
}

// list writes the groups of the restore into etcd, where they wait for their restore.
func (d *Dev) list(ctx context.Context, r *Restore) (placement.Meta, error) {
	groups, err := r.List.Placed()
	if err != nil {
		return placement.Meta{}, err
	}
	if err := d.store.AddRestoring(ctx, r.List.Store, r.List.At, groups); err != nil {
		return placement.Meta{}, fmt.Errorf("listing the groups of the restore: %w", err)
	}
	return d.store.Meta(ctx)
}

// restoreLook is the pause between two looks at which groups wait.
const restoreLook = 200 * time.Millisecond

// WaitRestored waits until no group waits for its restore, except for the groups that the source cannot restore. It
// calls tell, if it is not nil, with the number of groups that wait, when that number has changed. It returns an error
// if ctx ends first or if etcd fails. A store that is no restore does not wait.
func (d *Dev) WaitRestored(ctx context.Context, tell func(waiting int)) error {
	if d.cfg.Restore == nil {
		return nil
	}
	never := map[string]bool{}
	for _, g := range d.cfg.Restore.List.Groups {
		never[g.Name] = g.Err != ""
	}
	for last := -1; ; {
		_, groups, err := d.store.Waiting(ctx)
		if err != nil {
			return fmt.Errorf("looking which groups wait for their restore: %w", err)
		}
		n := 0
		for _, g := range groups {
			if !never[g.Name] {
				n++
			}
		}
		if n != last && tell != nil {
			tell(n)
		}
		if last = n; n == 0 {
			return nil
		}
		if !backoff.Sleep(ctx, restoreLook) {
			return ctx.Err()
		}
	}
}
