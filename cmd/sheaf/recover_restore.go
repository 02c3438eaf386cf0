package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/listing"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// addRestore adds the groups that wait for their restore to a rebuilt placement. What etcd remembers about them
// remains. If etcd has forgotten it, the source is asked again. It returns an error if groups may be waiting, and
// nobody says which.
func (f *recoverFlags) addRestore(ctx context.Context, store *registry.Store,
	ask func(ctx context.Context, address string) (listing.List, error), rebuilt *rescue.Rebuilt) error {
	writes, err := parseRestoreWrites(f.writes, f.restore != "" && f.restore != restoreNone)
	if err != nil {
		return err
	}
	meta, waiting, err := store.Waiting(ctx)
	if err != nil {
		return err
	}
	remembers := meta.Restore != nil && meta.StoreUUID == uuid.UUID(f.store)
	switch {
	case remembers && f.restore == restoreNone && (len(waiting) > 0 || meta.Listing()):
		return cli.Usagef("--restore %s: according to etcd, groups still wait for their restore: leave it out, or give up "+
			"their restore first with sheaf recover give-up", restoreNone)
	case remembers && (f.restore == "" || f.restore == restoreNone):
		rebuilt.Meta.Restore = meta.Restore
		if rebuilt.KeepWaiting(waiting); meta.Listing() {
			rebuilt.Missing = nil // a gateway lists them
		}
		return nil
	case f.restore == restoreNone:
		return nil
	case f.restore == "" && rebuilt.Restored():
		return errors.New("this store was restored from an archive, and etcd has lost which groups still wait for that: " +
			"they would begin empty. --restore HOST:PORT asks sheaf-archive source for them again; --restore none says that " +
			"none waits any more")
	case f.restore == "" && meta.StoreUUID == uuid.Nil && len(rebuilt.Groups)+len(rebuilt.Missing) == 0:
		return errors.New("no volume holds a group, and etcd has lost the store: if it was made from an archive, all of " +
			"its groups wait for their restore, and would begin empty. --restore HOST:PORT asks sheaf-archive source for " +
			"them again; --restore none says that none waits")
	case f.restore == "":
		return nil
	}
	list, err := ask(ctx, f.restore)
	if err != nil {
		return err
	}
	if remembers && meta.Restore.At != "" && !meta.Restore.Time().Equal(list.At) {
		return fmt.Errorf("--restore %s: according to etcd, the restore began as of %s, and the source has %s: groups of "+
			"two times would be mixed: start the source with the former time", f.restore, meta.Restore.At,
			list.At.UTC().Format(time.RFC3339Nano))
	}
	if remembers && f.writes == "" {
		writes = meta.Restore.Writes
	}
	expected := rebuilt.Meta
	expected.Restore = &placement.Restore{Source: f.restore, At: list.At.UTC().Format(time.RFC3339Nano), Partly: true,
		Writes: writes}
	if err := list.Fits(expected); err != nil {
		return err
	}
	groups, err := list.Placed()
	if err != nil {
		return err
	}
	rebuilt.AddWaiting(*expected.Restore, groups)
	return nil
}

// giveUpFlags holds the flags of the command recover give-up.
type giveUpFlags struct {
	place placementFlags
	tls   ownTLS
	store uuidFlag
	yes   bool
}

func giveUpCommand(a *app) *cobra.Command {
	var f giveUpFlags
	cmd := &cobra.Command{
		Use:   "give-up GROUP...",
		Short: "Give up the restore of groups, which then begin empty",
		Long: `A group that waits for its restore from an archive answers GROUP_LOADING until a shard has fetched it. Where
the archive cannot restore it, such as after --restore-partly, this command ends the wait: the group is made
empty, and its records are not restored. The archive stays as it is. Without --yes nothing is written: it shows
what would be.`,
		Example: `  sheaf recover give-up 17 --etcd etcd:2379 --store quotes --store-uid 0b8e... --yes`,
		Args:    cobra.MinimumNArgs(1),
		RunE: a.Body(func(ctx context.Context, groups []string) error {
			ctx, cancel := cli.Within(ctx, a.timeout)
			defer cancel()
			return f.giveUp(ctx, a.Out, groups)
		}),
	}
	f.place.add(cmd)
	f.place.addInsecure(cmd)
	f.tls.add(cmd)
	cmd.Flags().Var(&f.store, "store-uid", "UUID of the store (required)")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "write; without it, only show")
	require(cmd, "store-uid")
	return cmd
}

// giveUp opens the store, and gives up the restore of groups.
func (f *giveUpFlags) giveUp(ctx context.Context, out *cli.Output, names []string) (err error) {
	source, err := f.tls.open()
	if err != nil {
		return err
	}
	if source != nil {
		defer source.Close()
	}
	client, store, err := f.place.open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return f.empty(ctx, out, store, names)
}

// empty makes groups empty. It changes none of them unless all of them wait for their restore.
func (f *giveUpFlags) empty(ctx context.Context, out *cli.Output, store *registry.Store, names []string) error {
	if _, err := store.MetaOf(ctx, uuid.UUID(f.store)); err != nil {
		return err
	}
	_, waiting, err := store.Waiting(ctx)
	if err != nil {
		return err
	}
	var groups []placement.Group
	for _, name := range names {
		at := slices.IndexFunc(waiting, func(g placement.Group) bool { return g.Name == name })
		if at < 0 {
			return cli.NotFoundf("group %s does not wait for its restore: nothing was changed", name)
		}
		groups = append(groups, waiting[at])
	}
	if !f.yes {
		out.Sayf("%s would begin empty, without the records in the archive. Nothing was written. --yes writes it.",
			units.Count(int64(len(groups)), "group", "groups"))
		return nil
	}
	for _, g := range groups {
		if err := store.GiveUpRestore(ctx, g); err != nil {
			return fmt.Errorf("group %s: %w", g.Name, err)
		}
		out.Sayf("Group %s begins empty.", g.Name)
	}
	return nil
}
