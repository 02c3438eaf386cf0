package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/base/cgroup"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/identity"
)

// gatewayFlags holds the flags of the command gateway.
type gatewayFlags struct {
	service serviceFlags
	listen  string
	records string // address of records over HTTP; empty: none
	planner bool
	create  bool
	copies  int
	routing string
	groups  int
	shards  int
	restore string // HOST:PORT of the source; empty: no restore
	partly  bool
	first   []string
	writes  string // of restored groups: redundant or at-once; empty means redundant
	uid     uuidFlag
	given   func(flag string) bool // reports whether the command line sets a flag
}

func gatewayCommand(a *app) *cobra.Command {
	var f gatewayFlags
	cmd := &cobra.Command{
		Use:     "gateway",
		Short:   "Run a gateway: routes calls to shards",
		GroupID: groupRun,
		Long: `Routes calls to the shards that own the groups, and forwards data without decoding it. With
--planner (the default) it also takes part in the planner's election; any number of gateways may
run. --create makes the store in etcd where it is missing. With --restore, the store is made from an archive:
it gets the UUID, the routing and the groups that sheaf-archive source has, and each group answers
GROUP_LOADING until a shard has fetched it from there. Only the first start needs the source.`,
		Example: `  sheaf gateway --etcd etcd:2379 --store quotes --create --groups 256
  sheaf gateway --etcd etcd:2379 --store quotes-restored --create --copies 3 --restore archive:7640`,
		Args: cobra.NoArgs,
		RunE: a.Body(func(ctx context.Context, _ []string) error {
			return f.service.run(ctx, identity.Identity{Role: identity.Gateway}, f.listen, func(s *service) error {
				return runGateway(ctx, a.Out, s, f)
			})
		}),
	}
	flags := cmd.Flags()
	f.given = flags.Changed
	cli.AddressVar(flags, &f.listen, "listen", "127.0.0.1:7600", "address for gRPC")
	cli.HTTPVar(flags, &f.service.http, "127.0.0.1:7601",
		"address of a page at /, /metrics, /healthz, /readyz and /status; empty: none")
	cli.RecordsHTTPVar(flags, &f.records)
	flags.BoolVar(&f.planner, "planner", true, "also run the planner (one of all is elected)")
	flags.BoolVar(&f.create, "create", false, "make the store in etcd where it is missing")
	flags.StringVar(&f.routing, "routing", "hash", "with --create: hash or named")
	flags.IntVar(&f.groups, "groups", 16, "with --create and --routing hash: number of groups")
	flags.Var(&f.uid, "store-uid",
		"the store that etcd must hold: the gateway waits for it, and is not ready, while it does not")
	flags.IntVar(&f.copies, "copies", 1,
		"with --create: copies of each group, on shards of different failure domains: 1, 3 or 5")
	flags.IntVar(&f.shards, "shards-min", 0, "with --create: place the first groups when so many shards are alive")
	flags.StringVar(&f.restore, "restore", "",
		"with --create: make the store from the archive that sheaf-archive source serves at this HOST:PORT")
	flags.BoolVar(&f.partly, "restore-partly", false,
		"with --restore: also begin if some groups cannot be restored; these wait until their restore is given up")
	flags.StringSliceVar(&f.first, "restore-first", nil,
		"with --restore: groups that each shard fetches before its others, in this order, at most 100: NAME,NAME")
	restoreWritesVar(cmd, &f.writes)
	f.service.add(cmd)
	cli.Complete(cmd, "routing", "hash", "named")
	return cmd
}

func runGateway(ctx context.Context, out *cli.Output, s *service, f gatewayFlags) error {
	meta, err := f.metaNow(ctx, s)
	if err != nil {
		return err
	}
	keeper, stopListing := f.keepListing(ctx, s)
	defer stopListing()
	cfg := gateway.Config{
		Listen: f.listen, Store: s.store, StoreUUID: uuid.UUID(f.uid), Version: version, Logger: s.logger,
		Registry: s.registry, ServerOptions: s.traces.ServerOptions(), ShardDialOptions: s.traces.DialOptions(),
		PlannedElsewhere: !f.planner, Audit: s.audit, ListProblem: keeper.Problem, RecordsHTTP: f.records,
	}
	fitGatewayCgroup(&cfg.Limits, cgroup.MemoryLimit("/"))
	defer s.secure(cfg.Secure)()
	g, err := gateway.Start(ctx, cfg)
	if err != nil {
		return err
	}
	stopHTTP, err := s.serveHTTP(ctx, gatewayPages(g, s.registry))
	if err != nil {
		return errors.Join(err, stopGracefully(out, g.Stop))
	}
	s.logger.Info("gateway serves", "address", g.Addr(), "store", f.service.place.store)
	planned := make(chan error, 1)
	if f.planner {
		go func() { planned <- f.plan(ctx, s.store, meta, s.logger) }()
	} else {
		planned <- nil
	}
	<-ctx.Done()
	return errors.Join(stopGracefully(out, g.Stop), stopHTTP(), <-planned)
}

// gatewayPages returns the HTTP pages of a gateway.
func gatewayPages(g *gateway.Gateway, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	g.HandleStatus(mux)
	telemetry.Pages(mux, metrics, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if g.Ready(ctx) != nil {
			return errors.New("etcd has not been read yet, or does not hold the store")
		}
		return nil
	})
	return mux
}

// plan waits until etcd contains the store, and then takes part in the election of the planner.
func (f *gatewayFlags) plan(ctx context.Context, store *registry.Store, meta placement.Meta,
	logger *slog.Logger) error {
	for meta.StoreUUID == uuid.Nil {
		if there, err := store.MetaOf(ctx, uuid.UUID(f.uid)); err == nil {
			meta = there
			continue
		}
		if !cli.Pause(ctx, time.Second) {
			return nil
		}
	}
	return registry.RunPlanner(ctx, store, meta.Policy(), logger)
}

// metaNow returns the fixed properties of the store. If --store-uid is set without --restore, it returns zero values
// instead, because such a gateway may start before etcd contains the store, and then waits for it.
func (f *gatewayFlags) metaNow(ctx context.Context, s *service) (placement.Meta, error) {
	if err := f.checkRestore(); err != nil {
		return placement.Meta{}, err
	}
	switch {
	case f.restore != "":
		return f.restored(ctx, s.store, asksSource(s.certs), s.logger)
	case f.uid == (uuidFlag{}):
		return f.meta(ctx, s.store)
	case f.create:
		return placement.Meta{}, cli.Usagef("--create makes a store with a new UUID: it cannot go with --store-uid")
	}
	return placement.Meta{}, nil
}

// etcdPatience limits how long a gateway that starts waits for etcd.
const etcdPatience = 30 * time.Second

// meta reads the fixed properties of the store, or creates the store with --create.
func (f *gatewayFlags) meta(ctx context.Context, store *registry.Store) (placement.Meta, error) {
	soon, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	meta, err := store.Meta(soon)
	if err == nil && f.create {
		return meta, f.sameStore(meta)
	}
	if !errors.Is(err, placement.ErrNoMeta) {
		return meta, err
	}
	if !f.create {
		return meta, fmt.Errorf("etcd holds no store %q: --create makes it, --store names another", f.service.place.store)
	}
	mode, err := parseMode(f.routing)
	if err != nil {
		return meta, err
	}
	routing := placement.Routing{Mode: mode}
	if mode == placement.Hash {
		routing.Groups = f.groups
	}
	return store.InitMeta(soon, placement.Meta{
		StoreUUID: uuid.New(), Routing: routing, Copies: f.copies, CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		ShardsMin: f.shards,
	})
}

// sameStore returns an error if an existing store differs from the flags of --create.
func (f *gatewayFlags) sameStore(meta placement.Meta) error {
	differs := f.given("routing") && !strings.EqualFold(f.routing, string(meta.Routing.Mode)) ||
		f.given("groups") && meta.Routing.Mode == placement.Hash && f.groups != meta.Routing.Groups || f.given("copies") &&
		f.copies != meta.Copies
	if !differs {
		return nil
	}
	return fmt.Errorf(
		"etcd holds another store %q already: %s, routing %s, %d groups, copies %d. Give the new store another name "+
			"(--store) or an etcd prefix of its own (--etcd-prefix); to serve the one that is there, leave out what differs",
		f.service.place.store, meta.StoreUUID, meta.Routing.Mode, meta.Routing.Groups, meta.Copies)
}
