// Command sheaf-operator reconciles RecordStores, ShardPools and DiskSets.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"sheaf.dev/sheaf/controllers/diskset"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordarchive"
	"sheaf.dev/sheaf/controllers/recordgrant"
	"sheaf.dev/sheaf/controllers/recordstore"
	"sheaf.dev/sheaf/controllers/shardpool"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/operator"
)

// version is set by the build.
var version = "unknown"

// leads is the metric that distinguishes the active operator from waiting replicas. It never returns to 0, because an
// operator exits when it loses its lease.
var leads = prometheus.NewGauge(prometheus.GaugeOpts{Name: "sheaf_operator_leads",
	Help: "1 in the operator that works, 0 in those that wait to."})

func init() { metrics.Registry.MustRegister(leads) }

// Exit codes, the same as those of sheaf.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(run).ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "sheaf-operator: %v\n", err)
	os.Exit(exitCode(err))
}

// exitCode returns the exit code for err, which tells a failure from a wrong command line.
func exitCode(err error) int {
	if _, ok := errors.AsType[failure](err); ok {
		return exitFailed
	}
	return exitUsage
}

// failure is an error at run time, as opposed to an error in the command line.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// garbagePercent is the value of GOGC if the environment has none. Reconciles of a thousand shards produce much garbage
// and use a small part of a core, so frequent collection is better than a heap that is twice as large as the live data.
const garbagePercent = 40

// run runs the operator until its context ends.
func run(ctx context.Context, o options) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.level})
	logger := logr.FromSlogHandler(handler)
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the Kubernetes API: %w", err)
	}
	config.UserAgent = "sheaf-operator/" + version
	mgr, err := ctrl.NewManager(config, o.manager())
	if err != nil {
		return fmt.Errorf("connect to the Kubernetes API at %s: %w", config.Host, err)
	}
	keys := operator.NewKeys()
	defer keys.Close()
	placements := operator.NewPlacements(keys)
	defer placements.CloseAll()
	shards := operator.NewShards(keys)
	defer shards.Close()
	if err := o.setup(mgr, placements, shards, keys); err != nil {
		return err
	}
	if err := o.addServers(ctx, mgr); err != nil {
		return err
	}
	go func() {
		select {
		case <-mgr.Elected():
			leads.Set(1)
		case <-ctx.Done():
		}
	}()
	slog.New(handler).Info("starting", "version", version, "shardImage", o.shardImage, "namespaces", o.namespaces,
		"disksets", o.diskSets)
	return mgr.Start(ctx)
}

// setup adds the controllers.
func (o *options) setup(mgr ctrl.Manager, placements *operator.Placements, shards *operator.Shards,
	keys *operator.Keys) error {
	groups, inForce := &fleet.GroupBook{}, &fleet.GrantBook{}
	transports := operator.NewTransports()
	keeper := &trust.Keeper{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Now: time.Now}
	store := &recordstore.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("sheaf-operator"),
		Placements: placements, Groups: groups, Image: o.shardImage, Namespace: o.namespace,
		Trust: keeper, Transports: transports, Credentials: keys, Grants: inForce,
		Sources: operator.NewArchives(), ArchiveImage: o.archiveImage,
	}
	if err := store.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of RecordStores: %w", err)
	}
	pool := &shardpool.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Shards: shards,
		Register: placements,
		Recorder: mgr.GetEventRecorder("sheaf-operator"), Groups: groups, Image: o.shardImage,
		Trust: keeper,
	}
	if err := pool.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of ShardPools: %w", err)
	}
	issuer, err := operator.ServiceAccountKeys(mgr.GetConfig())
	if err != nil {
		return err
	}
	grants := &recordgrant.Reconciler{
		Client: mgr.GetClient(), Tables: placements, Keys: issuer, Transports: transports,
		Book:       inForce,
		IssuerKeys: operator.IssuerKeys, Live: mgr.GetAPIReader(),
	}
	if err := grants.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of RecordGrants: %w", err)
	}
	named := &recordarchive.NamedPoints{}
	archives := &recordarchive.Reconciler{
		Named:  named,
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("sheaf-operator"),
		Archives: operator.NewArchives(), Trust: keeper, Image: o.archiveImage,
	}
	if err := archives.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of RecordArchives: %w", err)
	}
	backups := &recordarchive.BackupReconciler{
		Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("sheaf-operator"), Named: named,
	}
	if err := backups.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of RecordBackups: %w", err)
	}
	if !o.diskSets {
		return nil
	}
	disks := &diskset.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("sheaf-operator"),
		Image: o.shardImage, Namespace: o.namespace, PullSecrets: o.wipePullSecrets,
	}
	if err := disks.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of DiskSets: %w", err)
	}
	return nil
}

// stopTime is how long a stopping server waits for calls in progress.
const stopTime = 5 * time.Second

// addServers adds HTTP servers for metrics and health checks to the manager, and opens their ports. The servers of
// controller-runtime limit neither the number of connections nor the time in which a request has to arrive.
func (o *options) addServers(ctx context.Context, mgr ctrl.Manager) error {
	numbers, health := http.NewServeMux(), http.NewServeMux()
	numbers.Handle("/metrics", promhttp.HandlerFor(metrics.Registry,
		promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	for _, path := range []string{"/healthz", "/readyz"} {
		health.Handle(path, healthz.CheckHandler{Checker: healthz.Ping})
	}
	for _, s := range []struct {
		name, flag, address string
		pages               http.Handler
	}{
		{"metrics", "--metrics-bind-address", o.metricsAddress, numbers},
		{"health", "--health-probe-bind-address", o.healthAddress, health},
	} {
		if s.address == "" || s.address == "0" {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
		if err != nil {
			return fmt.Errorf("%s: %w", s.flag, err)
		}
		registry := prometheus.WrapRegistererWith(prometheus.Labels{"port": s.name}, metrics.Registry)
		if err := mgr.Add(&manager.Server{Name: s.name, Server: telemetry.Server(s.pages, registry), Listener: listener,
			ShutdownTimeout: new(stopTime)}); err != nil {
			return err
		}
	}
	return nil
}
