package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/cli"
	"sheaf.dev/sheaf/internal/etcd"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard"
)

// placementFlags say where etcd is and which store is meant.
type placementFlags struct {
	etcd  []string
	store string
}

func (f *placementFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.etcd, "etcd", []string{"127.0.0.1:2379"}, "endpoints of etcd, host:port")
	cmd.Flags().StringVar(&f.store, "store", "default", "name of the store in etcd")
}

// open connects to etcd. Nothing is read yet. The caller closes the client.
func (f *placementFlags) open() (*clientv3.Client, *placement.Store, error) {
	if len(f.etcd) == 0 {
		return nil, nil, cli.Usagef("--etcd is empty: give host:port")
	}
	client, err := etcd.Connect(f.etcd)
	if err != nil {
		return nil, nil, err
	}
	store, err := placement.NewStore(client, f.store)
	if err != nil {
		return nil, nil, errors.Join(cli.Usagef("--store: %w", err), client.Close())
	}
	return client, store, nil
}

func (a *app) shardCommand() *cobra.Command {
	var cfg shard.Config
	var place placementFlags
	var storage storageFlags
	var log logFlags
	var httpListen string
	cmd := &cobra.Command{
		Use:     "shard",
		Short:   "Run one shard on one volume",
		GroupID: groupRun,
		Long: `Owns the groups on one volume, loads them and serves them. The volume is made where the folder is empty; a volume of
another shard or store is refused. SIGTERM stops gracefully (calls end, segments are sealed, hints written), a second one at
once.`,
		Example: `  sheaf shard --name quotes-0 --dir /data --etcd etcd:2379 --store quotes --listen :7610 --advertise quotes-0:7610`,
		Args:    cobra.NoArgs,
		RunE: a.body(func(ctx context.Context, _ []string) (err error) {
			if err := storage.fill(&cfg); err != nil {
				return err
			}
			if cfg.Logger, err = log.logger(); err != nil {
				return err
			}
			client, store, err := place.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, client.Close()) }()
			cfg.Placement, cfg.Version = store, version
			return a.shard(ctx, cfg, httpListen)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Name, "name", "", "name of the shard (required)")
	flags.StringVar(&cfg.Dir, "dir", "", "folder of the volume (required)")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:7610", "address for gRPC")
	flags.StringVar(&cfg.Advertise, "advertise", "", "address that others reach it by (default: the one it listens on)")
	flags.StringVar(&cfg.Domain, "domain", "", "failure domain: no two copies of a group go to the same one (default: the name)")
	flags.StringVar(&httpListen, "http", "127.0.0.1:7611", "address of /metrics, /healthz, /readyz and /status; empty: none")
	place.add(cmd)
	storage.add(a, cmd)
	log.add(a, cmd, "info")
	for _, required := range []string{"name", "dir"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // a flag that does not exist: every run of the binary would show it
		}
	}
	return cmd
}

func (a *app) shard(ctx context.Context, cfg shard.Config, httpListen string) error {
	registry := newRegistry()
	cfg.Registry = registry
	s, err := shard.Start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("starting shard %s: %w", cfg.Name, err)
	}
	stopHTTP, err := serveHTTP(ctx, httpListen, s.Handler())
	if err != nil {
		return errors.Join(err, a.stopGracefully(s.Stop))
	}
	cfg.Logger.Info("shard serves", "name", cfg.Name, "address", s.Addr(), "dir", cfg.Dir)
	<-ctx.Done()
	return errors.Join(a.stopGracefully(s.Stop), stopHTTP())
}

func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// serveHTTP serves in the background until stop is called; an empty address serves nothing.
func serveHTTP(ctx context.Context, address string, handler http.Handler) (stop func() error, err error) {
	if address == "" {
		return func() error { return nil }, nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for HTTP on %s: %w (give another --http)", address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return func() error {
		err := server.Close()
		if s := <-served; !errors.Is(s, http.ErrServerClosed) {
			err = errors.Join(err, s)
		}
		return err
	}, nil
}
