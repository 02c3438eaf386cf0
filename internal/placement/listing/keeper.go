package listing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

const (
	// lookEvery is the pause after a failed attempt, and between two looks at a store whose listing has ended. A listing
	// can begin again: an etcd that was set back, and was then reconciled, may hold only a part of the list.
	lookEvery = 5 * time.Second
	etcdTime  = 30 * time.Second // limit on a look at meta in etcd
)

// Keeper writes the list of a restore into etcd whenever etcd says that the list is not complete. Every gateway runs
// one, because any gateway may be killed at any time. Problem may be called concurrently with Run.
type Keeper struct {
	Store *registry.Store
	// Want is the UUID of the store; zero if any store is accepted.
	Want uuid.UUID
	// Ask asks the source at an address for its list.
	Ask    func(ctx context.Context, address string) (List, error)
	Logger *slog.Logger

	problem atomic.Pointer[string]
}

// Problem returns the reason why the list is not complete, or an empty string.
func (k *Keeper) Problem() string {
	if p := k.problem.Load(); p != nil {
		return *p
	}
	return ""
}

// Run works until ctx is done, or until etcd holds a store that is no restore.
func (k *Keeper) Run(ctx context.Context) {
	for {
		meta, err := k.meta(ctx)
		switch {
		case err != nil: // other parts of the gateway report that etcd does not answer
		case meta.Restore == nil:
			return
		case meta.Restore.Listing:
			k.note(ctx, k.write(ctx, meta))
		}
		if !backoff.Sleep(ctx, lookEvery) {
			return
		}
	}
}

func (k *Keeper) meta(ctx context.Context) (placement.Meta, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	if k.Want == uuid.Nil {
		return k.Store.Meta(ctx)
	}
	return k.Store.MetaOf(ctx, k.Want)
}

// note records and logs the outcome of an attempt.
func (k *Keeper) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		k.problem.Store(nil)
		k.Logger.Info("the list of the groups of the restore is complete")
	case ctx.Err() == nil:
		text := fmt.Sprintf("the groups of the restore are not listed yet: %v", err)
		if k.Problem() != text {
			k.Logger.Error("the groups of the restore are not listed yet, and no group is created or placed", "error", err)
		}
		k.problem.Store(&text)
	}
}

// write asks the source, and writes its groups.
func (k *Keeper) write(ctx context.Context, meta placement.Meta) error {
	list, err := k.Ask(ctx, meta.Restore.Source)
	if err != nil {
		return err
	}
	if err := list.Fits(meta); err != nil {
		return err
	}
	groups, err := list.Placed()
	if err != nil {
		return err
	}
	for {
		err = k.Store.AddRestoring(ctx, list.Store, list.At, groups) // bounds each of its requests
		if !errors.Is(err, placement.ErrChanged) {
			return err
		}
		if !backoff.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// Fits returns an error unless the list is that of the store with the given properties.
func (l *List) Fits(meta placement.Meta) error {
	switch {
	case l.Store != meta.StoreUUID:
		return fmt.Errorf("the source restores into store %s, and etcd holds store %s: start the source with the UUID of "+
			"this store", l.Store, meta.StoreUUID)
	case l.Routing != meta.Routing:
		return fmt.Errorf("the archived store has routing %s with %d groups, and this store has routing %s with %d groups: "+
			"create the store with those of the archive", l.Routing.Mode, l.Routing.Groups, meta.Routing.Mode,
			meta.Routing.Groups)
	case meta.Restore != nil && meta.Restore.Partly:
		return nil
	}
	return l.Whole()
}

// HasAll returns an error that names the first of the given groups that is not in the list.
func (l *List) HasAll(groups []string) error {
	for _, name := range groups {
		if _, found := slices.BinarySearchFunc(l.Groups, name, func(g Group, name string) int {
			return strings.Compare(g.Name, name)
		}); !found {
			return fmt.Errorf("group %s is to be restored first, and the archive does not have it as of %s: give the names of "+
				"groups that sheaf-archive source --dry-run shows", name, l.At.UTC().Format(time.RFC3339Nano))
		}
	}
	return nil
}
