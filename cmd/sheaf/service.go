package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// serviceFlags holds the flags that gateways and shards share.
type serviceFlags struct {
	place placementFlags
	log   logFlags
	tls   tlsFlags
	audit auditFlags
	http  string
	pprof string
}

// add adds all flags except --http, whose help and default differ.
func (f *serviceFlags) add(cmd *cobra.Command) {
	f.place.add(cmd)
	f.place.addInsecure(cmd)
	f.tls.add(cmd)
	f.audit.add(cmd)
	f.log.add(cmd, "info")
	cli.PprofVar(cmd.Flags(), &f.pprof)
}

// service holds the open resources that gateways and shards share.
type service struct {
	logger   *slog.Logger
	traces   *telemetry.Traces
	registry *prometheus.Registry
	certs    *certs.Source // nil if the process uses plaintext
	store    *registry.Store
	audit    *guard.Audit // nil if no audit log was requested
	grants   certs.Decides
	http     string // address; empty if there is no HTTP server
}

// run opens the resources that the flags name, calls serve, and closes the resources once serve has returned. The
// certificates must be issued for the identity in as. The audit log identifies the process by its role and name.
func (f *serviceFlags) run(ctx context.Context, as identity.Identity, name string, serve func(*service) error) (
	err error) {
	s := &service{http: f.http, registry: telemetry.NewRegistry(version)}
	if s.logger, err = f.log.logger(); err != nil {
		return err
	}
	stopProfiles, err := serveProfiles(ctx, f.pprof)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfiles()) }()
	s.traces, err = telemetry.StartTraces(ctx, telemetry.Process{Service: "sheaf-" + string(as.Role), Version: version,
		Store: f.place.store, Shard: as.Name}, s.logger)
	if err != nil {
		return err
	}
	defer s.traces.Stop()
	if s.certs, err = f.tls.open(as, s.logger, s.registry); err != nil {
		return err
	}
	if s.certs != nil {
		defer s.certs.Close()
	}
	client, store, err := f.place.open(s.certs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	s.store = store
	if s.audit, err = f.audit.open(s.certs != nil, string(as.Role)+" "+name, s.registry); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.audit.Close()) }()
	return serve(s)
}

// secure calls apply with the certificates of the process. It does nothing if the process uses plaintext. The argument
// apply is the Secure method of a configuration. The caller calls done once the process has stopped serving.
func (s *service) secure(apply func(*certs.Source) *guard.Guard) (done func()) {
	if s.certs == nil {
		return func() {}
	}
	decides := apply(s.certs)
	s.grants = decides
	return decides.Close
}

// serveHTTP serves the pages of the process, and the report about its certificates, at the address in --http.
func (s *service) serveHTTP(ctx context.Context, pages http.Handler) (stop func() error, err error) {
	return serveHTTP(ctx, "--http", s.http, certs.Handle(s.certs, s.grants, pages), s.registry)
}

// serveProfiles serves profiles at the address in --pprof. A process calls it first, so that a slow start can be
// profiled.
func serveProfiles(ctx context.Context, address string) (stop func() error, err error) {
	return serveHTTP(ctx, "--pprof", address, telemetry.Profiles(), nil)
}

// serveHTTP serves at the address in a flag, in the background until stop is called. It serves nothing if the address
// is empty. It registers the metrics of the connections in the registry, unless the registry is nil.
func serveHTTP(ctx context.Context, flag, address string, handler http.Handler, registry prometheus.Registerer) (
	stop func() error, err error) {
	if address == "" {
		return func() error { return nil }, nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for HTTP on %s: %w (give another %s)", address, err, flag)
	}
	server := telemetry.Server(handler, registry)
	served := make(chan error, 1)
	go func() { served <- server.Serve(descriptors.Listen(listener, slog.Default())) }()
	return func() error {
		err := server.Close()
		if s := <-served; !errors.Is(s, http.ErrServerClosed) {
			err = errors.Join(err, s)
		}
		return err
	}, nil
}

// tlsFlags holds the TLS flags of gateways and shards.
type tlsFlags struct {
	dir string
	// look is the time between two checks of the folder. The flag that sets it is hidden, because only tests need a
	// shorter time.
	look time.Duration
}

func (f *tlsFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt (and client.crt, client.key): speak mutual TLS alone; "+
			"the files are read again when they change (default: plaintext)")
	const look = "tls-look"
	cmd.Flags().DurationVar(&f.look, look, 0, "time between two looks at --tls-dir (default: 10s)")
	_ = cmd.Flags().MarkHidden(look) // fails only for an unknown flag
}

// open returns the certificates, or nil if the process uses plaintext. It returns an error unless the certificates
// are for the role and name in want. The caller closes the certificates.
func (f *tlsFlags) open(want identity.Identity, logger *slog.Logger, registry prometheus.Registerer) (*certs.Source,
	error) {
	if f.look < 0 {
		return nil, cli.Usagef("--tls-look %s: must be above 0", f.look)
	}
	if f.dir == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Config{Dir: f.dir, Every: f.look, Logger: logger})
	if err != nil {
		return nil, cli.Usagef("--tls-dir: %w", err)
	}
	if id := source.Identity(); id.Role != want.Role || id.Name != want.Name {
		source.Close()
		return nil, cli.Usagef("--tls-dir %s: its certificate names %s, and this process is the %s %s of its store", f.dir,
			id, want.Role, want.Name)
	}
	registry.MustRegister(source.Collectors()...)
	return source, nil
}

// envTLSDir is the environment variable that sets the default of --tls-dir. It is for commands that are run by hand in
// a pod of the store.
const envTLSDir = "SHEAF_TLS_DIR"

// ownTLS holds the flags that name the certificates of the process for which a command acts.
type ownTLS struct {
	dir string
}

func (f *ownTLS) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt of a process of the store, for which this command speaks (or $"+envTLSDir+
			"; default: plaintext)")
}

// open returns the certificates, or nil if the command uses plaintext. The caller closes the certificates.
func (f *ownTLS) open() (*certs.Source, error) {
	dir := cmp.Or(f.dir, os.Getenv(envTLSDir))
	if dir == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Config{Dir: dir})
	if err != nil {
		return nil, cli.Usagef("--tls-dir: %w", err)
	}
	return source, nil
}

// auditFlags holds the flags of the audit log, in which a gateway or shard records refused calls, administrative calls
// and the first use of each grant.
type auditFlags struct {
	path   string
	writes bool
}

func (f *auditFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "audit-log", "",
		"with --tls-dir: file (or FIFO) to which refusals, administrative calls and first uses of grants go as lines of "+
			"JSON; -: standard output; a slow reader holds up nothing, lines are lost then and counted (default: none)")
	cmd.Flags().BoolVar(&f.writes, "audit-writes", false,
		"with --audit-log: every put and delete that is allowed, too, with ids and outcome")
}

// open opens the audit log, or returns nil if none is requested. The caller closes it.
func (f *auditFlags) open(secure bool, server string, registry prometheus.Registerer) (*guard.Audit, error) {
	switch {
	case f.path == "" && f.writes:
		return nil, cli.Usagef("--audit-writes needs --audit-log")
	case f.path == "":
		return nil, nil
	case !secure:
		return nil, cli.Usagef("--audit-log needs --tls-dir: without TLS nobody is known to call, and nothing is refused")
	}
	audit, err := guard.OpenAudit(guard.AuditConfig{Path: f.path, Server: server, Writes: f.writes})
	if err != nil {
		return nil, cli.Usagef("--audit-log: %w", err)
	}
	registry.MustRegister(audit.Collectors()...)
	return audit, nil
}

// These constants bound the headroom of a process: the memory that it needs, besides the index and the resident data,
// for Go's heap, for messages in progress and for the etcd client.
const (
	headroomMin = 128 << 20
	headroomMax = 1 << 30
)

// headroomOf returns the part of a process's memory limit that is headroom.
func headroomOf(limit int64) int64 {
	return min(max(limit/4, headroomMin), headroomMax, limit/2)
}

// fitCgroup derives a shard's limits for the index, for the resident data and for everything else from the memory
// limit of its cgroup. The limits add up to no more than the cgroup's limit, so that the kernel never has to kill the
// process.
func fitCgroup(cfg *shard.Config, limit int64) {
	if limit == 0 {
		return
	}
	headroom := headroomOf(limit)
	cfg.MemoryLimitBytes = limit - headroom
	l := &cfg.Limits
	l.BytesInFlightMax = min(256<<20, headroom/4)
	l.ReplicaBytesInFlightMax = min(64<<20, headroom/8)
	l.ScansReadingMax = int(min(max(headroom/8/segio.ScanBufferBytes, 2), 16))
	if headroom < 4*segio.ScanBufferBytes {
		l.ScansReadingMax = 1
	}
	// Answers may use a quarter of the headroom. If the headroom is small, they get less, because an eighth of it is
	// reserved for all other uses.
	rest := headroom - headroom/8 - l.BytesInFlightMax - l.ReplicaBytesInFlightMax - int64(
		l.ScansReadingMax)*segio.ScanBufferBytes
	l.AnswerBytesMax = max(min(256<<20, headroom/4, rest), headroom/16)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(headroom)
	}
}

// fitGatewayCgroup limits the memory for requests and answers in a gateway by the cgroup's limit. Requests and answers
// get a quarter each. The rest is for connections and for garbage that is not collected yet.
func fitGatewayCgroup(l *gateway.Limits, limit int64) {
	if limit == 0 {
		return
	}
	l.BytesInFlightMax = min(512<<20, limit/4)
	l.AnswerBytesMax = min(512<<20, limit/4)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit - limit/8)
	}
}
