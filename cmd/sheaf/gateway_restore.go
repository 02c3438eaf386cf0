package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/listing"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// asksSource returns a function that asks the source of a restore for its list. If own is nil, it uses plaintext.
func asksSource(own *certs.Source) func(ctx context.Context, address string) (listing.List, error) {
	by := insecure.NewCredentials()
	if own != nil {
		by = own.Client(own.Own(identity.Archive, ""))
	}
	return func(ctx context.Context, address string) (listing.List, error) { return listing.Ask(ctx, address, by) }
}

// restoreWrites are the values of --restore-writes.
var restoreWrites = map[string]placement.RestoredWrites{
	"": "", "redundant": placement.WritesRedundant, "at-once": placement.WritesAtOnce,
}

// restoreWritesVar adds the flag --restore-writes.
func restoreWritesVar(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "restore-writes", "",
		"with --restore: from when on restored groups accept writes: redundant (once a majority of their copies has "+
			"joined, the default) or at-once")
	cli.Complete(cmd, "restore-writes", "redundant", "at-once")
}

// parseRestoreWrites checks the flag --restore-writes. The argument restores says whether the store is being restored.
func parseRestoreWrites(value string, restores bool) (placement.RestoredWrites, error) {
	writes, ok := restoreWrites[value]
	switch {
	case !ok:
		return "", cli.Usagef("--restore-writes %s: give redundant or at-once", value)
	case value != "" && !restores:
		return "", cli.Usagef("--restore-writes goes with --restore")
	}
	return writes, nil
}

// checkRestore checks the flags of a restore.
func (f *gatewayFlags) checkRestore() error {
	if _, err := parseRestoreWrites(f.writes, f.restore != ""); err != nil {
		return err
	}
	switch {
	case f.restore == "" && f.partly:
		return cli.Usagef("--restore-partly goes with --restore")
	case f.restore == "" && len(f.first) > 0:
		return cli.Usagef("--restore-first goes with --restore")
	case f.restore == "":
		return nil
	case !f.create:
		return cli.Usagef("--restore goes with --create: it creates a store from an archive")
	}
	if _, _, err := net.SplitHostPort(f.restore); err != nil {
		return cli.Usagef("--restore %q: give HOST:PORT of sheaf-archive source: %w", f.restore, err)
	}
	return nil
}

// restored creates a store that is to be restored, or returns the Meta of the one that exists. The groups are listed by
// a listing.Keeper later.
func (f *gatewayFlags) restored(ctx context.Context, store *registry.Store,
	ask func(ctx context.Context, address string) (listing.List, error), logger *slog.Logger) (placement.Meta, error) {
	etcd := func(do func(ctx context.Context) error) error {
		soon, cancel := context.WithTimeout(ctx, etcdPatience)
		defer cancel()
		return do(soon)
	}
	var there placement.Meta
	err := etcd(func(ctx context.Context) (err error) {
		there, err = store.Meta(ctx)
		return err
	})
	switch {
	case err == nil:
		return there, f.sameRestore(ctx, store, there, ask, logger)
	case !errors.Is(err, placement.ErrNoMeta):
		return there, err
	}
	list, err := ask(ctx, f.restore)
	if err != nil {
		return there, err
	}
	meta, err := f.restoreMeta(&list)
	if err != nil {
		return there, err
	}
	if err := etcd(func(ctx context.Context) (err error) {
		there, err = store.InitMeta(ctx, meta)
		return err
	}); err != nil {
		return there, err
	}
	if there.StoreUUID != meta.StoreUUID || there.Restore == nil {
		return there, f.otherStore(there)
	}
	return there, nil
}

// restoreMeta returns the properties of a new store for the groups in a list. It returns an error if the flags ask for
// another store, or if a group cannot be restored and --restore-partly is not set.
func (f *gatewayFlags) restoreMeta(list *listing.List) (placement.Meta, error) {
	switch {
	case f.uid != (uuidFlag{}) && uuid.UUID(f.uid) != list.Store:
		return placement.Meta{}, cli.Usagef("--store-uid %s: the source restores into store %s", uuid.UUID(f.uid), list.Store)
	case f.given("routing") && !strings.EqualFold(f.routing, string(list.Routing.Mode)):
		return placement.Meta{}, cli.Usagef("--routing %s: the archived store has routing %s, and so has the restored one: "+
			"leave it out", f.routing, list.Routing.Mode)
	case f.given("groups") && f.groups != list.Routing.Groups:
		return placement.Meta{}, cli.Usagef("--groups %d: the archived store has %d, and so has the restored one: leave it "+
			"out", f.groups, list.Routing.Groups)
	}
	meta := placement.Meta{
		StoreUUID: list.Store, Routing: list.Routing, Copies: f.copies, ShardsMin: f.shards,
		CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		Restore: &placement.Restore{Source: f.restore, Listing: true, At: list.At.UTC().Format(time.RFC3339Nano),
			Partly: f.partly, First: f.first, Writes: restoreWrites[f.writes]},
	}
	if err := cmp.Or(meta.Validate(), list.HasAll(f.first)); err != nil {
		return placement.Meta{}, cli.Usagef("%w", err)
	}
	if err := list.Fits(meta); err != nil {
		return placement.Meta{}, fmt.Errorf("%w. Nothing was created. --restore-partly restores the others: those groups "+
			"then answer GROUP_LOADING until a person gives up their restore", err)
	}
	return meta, nil
}

// sameRestore returns an error if a store that exists is not the one that --restore creates. If the source has another
// address now, sameRestore writes the new address. A source that does not answer is no error, because nothing else
// needs it here.
func (f *gatewayFlags) sameRestore(ctx context.Context, store *registry.Store, meta placement.Meta,
	ask func(ctx context.Context, address string) (listing.List, error), logger *slog.Logger) error {
	if meta.Restore == nil || f.uid != (uuidFlag{}) && uuid.UUID(f.uid) != meta.StoreUUID {
		return f.otherStore(meta)
	}
	if now := meta.Restore.First; len(f.first) > 0 && !slices.Equal(f.first, now) {
		return fmt.Errorf("--restore-first %s: the restore of store %s began with %q, and goes on with that: leave the flag "+
			"out", strings.Join(f.first, ","), meta.StoreUUID, strings.Join(now, ","))
	}
	if f.writes != "" && (restoreWrites[f.writes] == placement.WritesAtOnce) !=
		(meta.Restore.Writes == placement.WritesAtOnce) {
		return fmt.Errorf("--restore-writes %s: the restore of store %s began with another value, and goes on with that: "+
			"leave the flag out", f.writes, meta.StoreUUID)
	}
	if err := f.sameStore(meta); err != nil || !meta.Restore.Listing && meta.Restore.Source == f.restore {
		return err
	}
	list, err := ask(ctx, f.restore)
	if err != nil {
		logger.Warn("the source of the restore does not answer, and is asked again later", "source", meta.Restore.Source,
			"error", err)
		return nil
	}
	if list.Store != meta.StoreUUID {
		return fmt.Errorf("%w. The source at %s restores into store %s", f.otherStore(meta), f.restore, list.Store)
	}
	soon, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	return store.SetRestoreSource(soon, list.Store, list.At, f.restore)
}

// otherStore returns the error for a store that is not the one that --restore creates.
func (f *gatewayFlags) otherStore(meta placement.Meta) error {
	what := "was not created from an archive"
	if r := meta.Restore; r != nil {
		what = "is another restore"
	}
	return fmt.Errorf("etcd holds another store %q already: %s, which %s. A restore makes a new store: give it another "+
		"name (--store) or an etcd prefix of its own (--etcd-prefix)", f.service.place.store, meta.StoreUUID, what)
}

// keepListing lists the groups of a restore in the background. The caller calls stop before the process ends.
func (f *gatewayFlags) keepListing(ctx context.Context, s *service) (keeper *listing.Keeper, stop func()) {
	keeper = &listing.Keeper{Store: s.store, Want: uuid.UUID(f.uid), Ask: asksSource(s.certs), Logger: s.logger}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { keeper.Run(ctx) })
	return keeper, func() {
		cancel()
		running.Wait()
	}
}
