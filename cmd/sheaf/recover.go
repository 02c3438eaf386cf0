package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/placement/survey"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/identity"
)

// recoverFlags holds the flags of the command recover placement.
type recoverFlags struct {
	place   placementFlags
	tls     ownTLS
	store   uuidFlag
	shards  []string
	routing string
	groups  int
	copies  int
	restore string // HOST:PORT of the source of a restore, or restoreNone
	writes  string // of restored groups, as in gatewayFlags
	yes     bool
	force   bool
}

// restoreNone is the value of --restore that says that no group waits for its restore.
const restoreNone = "none"

func recoverCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "recover",
		Short:   "Rebuild what was lost from what is left",
		GroupID: groupCare,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var f recoverFlags
	place := &cobra.Command{
		Use:   "placement",
		Short: "Rebuild placement in an etcd that has lost it, from the shards' volumes",
		Long: `Asks every shard what its volume holds, and writes into etcd which groups there are and where. Of a
group of several copies the newest membership counts, where a majority of it was found; copies that
are no members any more are left out, and made anew. The shards may run and serve meanwhile. Without
--yes nothing is written: it shows what would be. Give all shards of the store: what no volume holds
cannot be rebuilt. Generation and step of each volume are taken from it: one that was set back while
etcd was lost is not noticed. An etcd that holds placement of a store is left as it is.`,
		Example: `  sheaf recover placement --etcd etcd:2379 --store quotes --store-uid 0b8e... --shards quotes-0:7610,quotes-1:7610
  sheaf recover placement ... --yes`,
		Args: cobra.NoArgs,
		RunE: a.Body(func(ctx context.Context, _ []string) error {
			ctx, cancel := cli.Within(ctx, a.timeout)
			defer cancel()
			return recoverPlacement(ctx, a.Out, f)
		}),
	}
	flags := place.Flags()
	f.place.add(place)
	f.place.addInsecure(place)
	f.tls.add(place)
	flags.Var(&f.store, "store-uid", "UUID of the store (required)")
	flags.StringSliceVar(&f.shards, "shards", nil,
		"all shards of the store, host:port (default: those registered in etcd)")
	flags.StringVar(&f.routing, "routing", "", "hash or named; only where the volumes do not remember it")
	flags.IntVar(&f.groups, "groups", 0, "number of groups of hash routing; only where the volumes do not remember it")
	flags.IntVar(&f.copies, "copies", 1, "copies of a group; only where the volumes do not remember it")
	flags.StringVar(&f.restore, "restore", "",
		"for a store from an archive: HOST:PORT of sheaf-archive source, whose groups wait for their restore if no volume "+
			"holds them; none: no group waits any more (default: what etcd remembers)")
	restoreWritesVar(place, &f.writes)
	flags.BoolVar(&f.yes, "yes", false, "write; without it, only show")
	flags.BoolVar(&f.force, "force", false,
		"also replace placement of this store that etcd holds, let groups that no volume holds begin empty or restore them "+
			"again (--restore), and write groups that lack a majority of their copies")
	cli.Complete(place, "routing", "hash", "named")
	require(place, "store-uid")
	cmd.AddCommand(place, giveUpCommand(a))
	return cmd
}

// given returns the facts that the flags state about the store, or nil if they state none.
func (f *recoverFlags) given() (*rescue.FoundFacts, error) {
	if f.routing == "" {
		if f.groups != 0 {
			return nil, cli.Usagef("--groups goes with --routing hash")
		}
		return nil, nil
	}
	mode, err := parseMode(f.routing)
	if err != nil {
		return nil, err
	}
	facts := &rescue.FoundFacts{Copies: f.copies, CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		Routing: placement.Routing{Mode: mode, Groups: f.groups}}
	if err := facts.Routing.Validate(); err != nil {
		return nil, cli.Usagef("--routing, --groups: %w", err)
	}
	return facts, nil
}

func recoverPlacement(ctx context.Context, out *cli.Output, f recoverFlags) (err error) {
	given, err := f.given()
	if err != nil {
		return err
	}
	speaks := insecure.NewCredentials()
	source, err := f.tls.open()
	if err != nil {
		return err
	}
	if source != nil {
		defer source.Close()
		speaks = source.Client(source.Own(identity.Shard, ""))
	}
	client, store, err := f.place.open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if len(f.shards) == 0 {
		registered, err := store.Registered(ctx)
		if err != nil {
			return err
		}
		for _, s := range registered {
			f.shards = append(f.shards, s.Address)
		}
		if len(f.shards) == 0 {
			return errors.New("no shard is registered in etcd: name all of them with --shards")
		}
	}
	volumes := make([]rescue.FoundVolume, 0, len(f.shards))
	for _, address := range f.shards {
		// On Kubernetes, the command runs in the pod of a gateway, with the gateway's certificate.
		v, err := survey.Volume(guard.AsProcess(ctx), address, speaks)
		if err != nil {
			return fmt.Errorf("asking the shard at %s: %w (all shards must answer, also those that do not serve)", address, err)
		}
		volumes = append(volumes, v)
	}
	rebuilt, err := rescue.Rebuild(uuid.UUID(f.store), volumes, given)
	if err != nil {
		return err
	}
	if err := f.addRestore(ctx, store, asksSource(source), &rebuilt); err != nil {
		return err
	}
	showRebuilt(out, rebuilt)
	if err := unforced(rebuilt); err != nil && !f.force {
		return err
	}
	if rebuilt.Meta.Restore != nil {
		rebuilt.BeginEmpty()
	}
	if !f.yes {
		out.Sayf("Nothing was written. --yes writes it.")
		return nil
	}
	if err := store.Restore(ctx, rebuilt, f.force); err != nil {
		return err
	}
	out.Sayf("Placement of store %s is in etcd: %d groups.", rebuilt.Meta.StoreUUID, len(rebuilt.Groups))
	return nil
}

// unforced returns an error if a placement may be written only with --force, because records may be lost by it.
func unforced(rebuilt rescue.Rebuilt) error {
	switch {
	case len(rebuilt.Again) > 0:
		return fmt.Errorf(
			"%s on none of these shards, and would be restored from the archive: %s. Start all shards that ever belonged to "+
				"the store, and give all of them: one of them may hold such a group with newer records. With --force these groups "+
				"are restored from the archive again, and what was written to them since their restore is lost",
			units.Count(int64(len(rebuilt.Again)), "group is", "groups are"), rebuilt.AgainWords())
	case len(rebuilt.Missing) > 0:
		return fmt.Errorf(
			"%d groups are on none of these shards, such as %s: give all shards of the store. If the store was being restored "+
				"from an archive, --restore asks for the groups that still wait. --force lets them begin empty",
			len(rebuilt.Missing), rebuilt.Missing[0])
	case len(rebuilt.Short) > 0:
		return fmt.Errorf(
			"too few copies of %d groups were found: %s. Where they are gone for good, --force writes these groups as they "+
				"are: they do not serve, and nothing of them is deleted, until enough of their copies are back", len(rebuilt.Short),
			rebuilt.ShortWords())
	}
	return nil
}

// memberWord formats a member for the table.
func memberWord(m placement.Member) string {
	word := m.Shard
	if word == "" {
		word = "(not found)"
	}
	if m.Role == placement.Learner {
		word += " (learner)"
	}
	return word
}

// showRebuilt prints the placement that would be written: the table to standard output, and all other lines to standard
// error.
func showRebuilt(out *cli.Output, r rescue.Rebuilt) {
	out.Sayf("store %s: routing %s, %d groups, copies %d", r.Meta.StoreUUID, r.Meta.Routing.Mode, len(r.Groups),
		r.Meta.Copies)
	t := cli.Table{Header: []string{"GROUP", "UUID", "MEMBERS", "RECORDS", "BYTES"}}
	for _, g := range r.Groups {
		members := make([]string, 0, len(g.Members))
		for _, m := range g.Members {
			members = append(members, memberWord(m))
		}
		t.Rows = append(t.Rows, []cli.Cell{cli.Text(g.Name), cli.Text(g.UUID.String()), cli.Text(strings.Join(members, ",")),
			cli.Text(strconv.FormatInt(g.Records, 10)), cli.Text(strconv.FormatInt(g.Bytes, 10))})
	}
	_ = out.WriteTable(t) // fails only if nobody reads the output
	for _, note := range r.Notes {
		out.Sayf("note: %s", note)
	}
}
