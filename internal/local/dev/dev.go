package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard"
)

// storeName is the name of the store in the embedded etcd.
const storeName = "dev"

// Dev is a running store.
type Dev struct {
	cfg      Config
	folder   *folder
	etcd     *etcd.Server
	client   *clientv3.Client
	store    *registry.Store
	meta     placement.Meta
	registry *prometheus.Registry
	shards   []*shard.Shard
	gateway  *gateway.Gateway
	http     *http.Server
	httpAddr string
	// waits says what Start is waiting for. It is empty once all parts run. Until then, only Start uses the fields
	// above.
	waits   atomic.Pointer[string]
	secured *secured // nil if the store uses plaintext

	stopPlanner, stopRenewing context.CancelFunc
	background                sync.WaitGroup // waits for the planner, the renewal of certificates and HTTP
}

// etcdPatience is the time limit of a start's requests to etcd, which runs in the same process.
const etcdPatience = time.Minute

// Start starts the store in a folder, and returns when its gateway listens. Groups may then still be loading (see
// WaitReady). HTTP answers from the beginning, so that /status shows why a start waits; Config.Progress gets the same
// information. The context limits only the start. The folder is locked until Stop or Kill. Errors name the remedy.
func Start(ctx context.Context, cfg Config) (_ *Dev, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Dir == "" {
		return nil, errors.New("no folder is given")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f, err := openFolder(cfg)
	if err != nil {
		return nil, err
	}
	d := &Dev{cfg: cfg, folder: f, registry: telemetry.NewRegistry(cfg.Version), stopPlanner: func() {},
		stopRenewing: func() {}}
	defer func() {
		if err != nil {
			d.Kill()
		}
	}()
	d.waitFor("etcd")
	if cfg.Progress != nil {
		defer repeat(func() { cfg.Progress(d.Status()) })()
	}
	if err := d.startHTTP(ctx); err != nil {
		return nil, err
	}
	if err := d.startEtcd(ctx); err != nil {
		return nil, err
	}
	if cfg.TLS {
		if d.secured, err = secure(f.path(tlsName), f.settings.StoreUUID, d.registry, cfg.seams); err != nil {
			return nil, err
		}
	}
	if err := d.startShards(ctx); err != nil {
		return nil, err
	}
	d.startPlanner()
	d.waitFor("the gateway")
	served := gateway.Config{
		Listen: cfg.Listen, RecordsHTTP: cfg.RecordsHTTP, Store: d.store, Logger: cfg.Logger.With("process", "gateway"),
		Registry:      prometheus.WrapRegistererWith(prometheus.Labels{"process": "gateway"}, d.registry),
		ServerOptions: cfg.Traces.ServerOptions(), ShardDialOptions: cfg.Traces.DialOptions(),
		Listener: cfg.seams.listener, Dial: cfg.seams.dial,
	}
	if err := d.secured.gateway(&served, cfg.Logger); err != nil {
		return nil, err
	}
	d.startRenewing()
	d.gateway, err = gateway.Start(ctx, served)
	if err != nil {
		return nil, fmt.Errorf("starting the gateway: %w (--listen gives it another address)", err)
	}
	d.waitFor("")
	return d, nil
}

// waitFor records what Start is waiting for. An empty text means that all parts run.
func (d *Dev) waitFor(what string) { d.waits.Store(&what) }

// startEtcd starts etcd. The first time, it also creates the store in etcd.
func (d *Dev) startEtcd(ctx context.Context) (err error) {
	if connect := d.cfg.seams.etcd; connect != nil {
		d.client, err = connect()
	} else if d.etcd, err = etcd.StartEmbedded(d.folder.path(etcdName)); err == nil {
		d.client = d.etcd.Client()
	}
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	if d.store, err = registry.NewStore(d.client, storeName, d.cfg.Logger); err != nil {
		return err
	}
	d.waitFor("etcd to answer")
	ctx, cancel := context.WithTimeoutCause(ctx, etcdPatience,
		fmt.Errorf("etcd in %s does not answer within %v: see that its disk is not full or very slow",
			d.folder.path(etcdName), etcdPatience))
	defer cancel()
	s := &d.folder.settings
	var there placement.Meta
	if s.Made {
		// Safety rule 9: never create the placement of an existing store again.
		if there, err = d.store.Meta(ctx); errors.Is(err, placement.ErrNoMeta) {
			return fmt.Errorf(
				"etcd has lost what it knew of this store: bring %s back from a copy (the records are still in %s)",
				d.folder.path(etcdName), d.folder.path(shardsName))
		}
	} else {
		there, err = d.create(ctx, s)
	}
	if err != nil {
		return causeOf(ctx, err)
	}
	d.meta = there
	if there.StoreUUID != s.StoreUUID || there.Routing != s.Routing || there.Copies != s.copies() {
		return fmt.Errorf("%s and %s belong to different stores: bring both back from the same copy", d.folder.path(etcdName),
			d.folder.path(settingsName))
	}
	if s.Made {
		return nil
	}
	s.Made = true
	return d.folder.writeSettings()
}

// create creates the store in etcd.
func (d *Dev) create(ctx context.Context, s *settings) (placement.Meta, error) {
	meta := placement.Meta{StoreUUID: s.StoreUUID, Routing: s.Routing, Copies: s.copies(), CreatedUTC: s.Created,
		ShardsMin: s.Shards}
	if d.cfg.Restore == nil {
		return d.store.InitMeta(ctx, meta)
	}
	meta.Restore = d.cfg.Restore.meta()
	if there, err := d.store.InitMeta(ctx, meta); err != nil {
		return there, err
	}
	return d.list(ctx, d.cfg.Restore)
}

// causeOf adds the cause of the context's end to an error, if ctx has ended with a specific cause.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

func (d *Dev) startPlanner() {
	ctx, cancel := context.WithCancel(context.Background())
	d.stopPlanner = cancel
	logger := d.cfg.Logger.With("process", "planner")
	d.background.Go(func() {
		if err := registry.RunPlanner(ctx, d.store, d.meta.Policy(), logger); err != nil {
			logger.Error("planner has ended", "error", err)
		}
	})
}

// startRenewing starts the renewal of the certificates, if the store uses TLS.
func (d *Dev) startRenewing() {
	if d.secured == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stopRenewing = cancel
	d.background.Go(func() { d.secured.keep(ctx, d.cfg.Logger) })
}

// startShards starts all shards concurrently. Shards do not wait for each other, only for their disks and for etcd.
func (d *Dev) startShards(ctx context.Context) error {
	d.shards = make([]*shard.Shard, d.folder.settings.Shards)
	configs := make([]shard.Config, len(d.shards))
	left := make([]string, len(d.shards))
	for i := range configs {
		var err error
		if configs[i], err = d.shardConfig(i); err != nil {
			return err
		}
		left[i] = configs[i].Name
	}
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	waitWithout := func(opened string) {
		mu.Lock()
		defer mu.Unlock()
		left = slices.DeleteFunc(left, func(name string) bool { return name == opened })
		d.waitFor("volumes to be opened and registered: " + strings.Join(left, ", "))
	}
	waitWithout("")
	errs := make([]error, len(d.shards))
	for i, cfg := range configs {
		all.Go(func() {
			defer waitWithout(cfg.Name)
			if d.shards[i], errs[i] = shard.Start(ctx, cfg); errs[i] != nil {
				errs[i] = fmt.Errorf("starting %s: %w", cfg.Name, errs[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// shardConfig returns the configuration of shard n.
func (d *Dev) shardConfig(n int) (shard.Config, error) {
	cfg, name := d.cfg.Shard, shardName(n)
	cfg.Name, cfg.Dir, cfg.Listen = name, d.folder.shardDir(n), "127.0.0.1:0"
	cfg.Placement, cfg.Version, cfg.Logger = d.store, d.cfg.Version, d.cfg.Logger.With("process", name)
	cfg.Registry = prometheus.WrapRegistererWith(prometheus.Labels{"process": name}, d.registry)
	cfg.ServerOptions, cfg.Tracer = d.cfg.Traces.ServerOptions(), d.cfg.Traces.Tracer()
	cfg.Listener, cfg.Dial = d.cfg.seams.listener, d.cfg.seams.dial
	if d.cfg.seams.disk != nil {
		cfg.FS = d.cfg.seams.disk(name)
	}
	return cfg, d.secured.shard(&cfg, d.cfg.Logger)
}

func (d *Dev) startHTTP(ctx context.Context) error {
	if d.cfg.HTTP == "" {
		return nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", d.cfg.HTTP)
	if err != nil {
		return fmt.Errorf("listening for HTTP on %s: %w (give another --http)", d.cfg.HTTP, err)
	}
	d.httpAddr = listener.Addr().String()
	d.http = telemetry.Server(d.handler(), d.registry)
	d.background.Go(func() {
		if err := d.http.Serve(descriptors.Listen(listener, d.cfg.Logger)); !errors.Is(err, http.ErrServerClosed) {
			d.cfg.Logger.Error("HTTP has ended", "error", err)
		}
	})
	return nil
}

// Addr returns the gateway's address.
func (d *Dev) Addr() string { return d.gateway.Addr() }

// RecordsHTTPAddr returns the address of records over HTTP. It is empty if the store does not serve them.
func (d *Dev) RecordsHTTPAddr() string { return d.gateway.RecordsHTTPAddr() }

// HTTPAddr returns the address of the web page, metrics, health and status. It is empty if the store does not serve
// them.
func (d *Dev) HTTPAddr() string { return d.httpAddr }

// Settings returns the number of shards and the routing.
func (d *Dev) Settings() (shards int, routing placement.Routing) {
	return d.folder.settings.Shards, d.folder.settings.Routing
}

// EtcdErr returns a channel that receives the error if etcd fails while the store runs.
func (d *Dev) EtcdErr() <-chan error {
	if d.etcd == nil {
		return nil
	}
	return d.etcd.Err()
}

// Stop stops the store gracefully: first the gateway, then the shards, which sync and write hints, then etcd. If ctx
// ends first, the remaining parts stop without waiting. Acknowledged writes are on disk in either case.
func (d *Dev) Stop(ctx context.Context) error {
	var errs []error
	if d.gateway != nil {
		errs = append(errs, d.gateway.Stop(ctx))
	}
	d.stopPlanner()
	shardErrs := make([]error, len(d.shards))
	d.eachShard(func(i int, s *shard.Shard) { shardErrs[i] = s.Stop(ctx) })
	return errors.Join(append(append(errs, shardErrs...), d.close())...)
}

// eachShard calls do() for all shards that have started, concurrently.
func (d *Dev) eachShard(do func(i int, s *shard.Shard)) {
	var all sync.WaitGroup
	for i, s := range d.shards {
		if s != nil {
			all.Go(func() { do(i, s) })
		}
	}
	all.Wait()
}

// Kill stops the store immediately, without writing hints. When it returns, the folder can be opened again.
func (d *Dev) Kill() {
	if d.gateway != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = d.gateway.Stop(ended) // the only possible error is that Stop could not wait
	}
	d.stopPlanner()
	d.eachShard(func(_ int, s *shard.Shard) { s.Kill() })
	if err := d.close(); err != nil {
		d.cfg.Logger.Error("closing", "error", err)
	}
}

// close closes the remaining parts after gateway and shards have ended.
func (d *Dev) close() error {
	d.stopRenewing()
	var errs []error
	if d.http != nil {
		errs = append(errs, d.http.Close())
	}
	d.background.Wait()
	d.secured.close()
	if d.client != nil {
		// A client without a connection returns the error of its own context, which Close has cancelled.
		if err := d.client.Close(); !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	if d.etcd != nil {
		d.etcd.Close()
	}
	return errors.Join(append(errs, d.folder.lock.Close())...)
}
