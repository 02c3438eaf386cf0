package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // root certificates of public authorities: the image has no other files
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/cmd/sheaf-archive/cloud"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/remote"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// leftoversAge is how old an unfinished object in a bucket must be before it is removed. Such objects are left behind
// by processes that were killed.
const leftoversAge = 24 * time.Hour

// runFlags are the flags of the command run.
type runFlags struct {
	server, tlsDir, name, http, logFormat string
	keys                                  string
	interval                              time.Duration
	stay                                  bool
	upkeep                                upkeepFlags
}

func runCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run URL",
		Short: "Keep the archive of a store up to date, until it is stopped",
		Long: `Copies every group of the store into the bucket, and then the news of all groups, as long as it runs.
It keeps no state of its own: a new process finds in the bucket how far each group is archived. Start one
process for each store and URL. If a second one is started, the first one stops and says so.

Shards keep the history that is not archived yet, up to a part of their volumes (sheaf shard
--archive-hold-max).

With --points-schedule, the process also makes points (see point), and with --prune it prunes the archive once
a day, as prune does. Neither stops or delays it: errors are reported at --http, and tried again.`,
		Example: "  sheaf-archive run file:///mnt/backups/quotes --server 127.0.0.1:7600\n" +
			"  sheaf-archive run 's3://backups/quotes?region=eu-central-1' --server quotes-gateway:7600 --tls-dir archive",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Body(func(ctx context.Context, args []string) error {
				if cmd.Flags().Changed("timeout") {
					var cancel context.CancelFunc
					ctx, cancel = cli.Within(ctx, a.timeout)
					defer cancel()
				}
				return f.run(ctx, a, args[0])
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "127.0.0.1:7600", "HOST:PORT of a gateway of the store")
	flags.StringVar(&f.tlsDir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt of the store's archiver (or $SHEAF_TLS_DIR; default: plaintext)")
	flags.StringVar(&f.name, "name", "", "name of the store, for people who read the archive; default: its UUID")
	flags.DurationVar(&f.interval, "interval", 10*time.Second, "time between two log objects")
	flags.StringVar(&f.http, "http", "", "address of /metrics, /healthz, /readyz and /status; empty: none")
	flags.BoolVar(&f.stay, "stay", false,
		"try again where the command would end with an error, and say the reason at --http; after another archiver has "+
			"taken over, only say so")
	addKeys(cmd, &f.keys)
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json")
	cli.Complete(cmd, "log-format", "text", "json")
	f.upkeep.add(flags)
	return cmd
}

// check validates the flags. It returns the logger, or an error that says which flag is wrong.
func (f *runFlags) check(errs io.Writer) (*slog.Logger, error) {
	if _, port, err := net.SplitHostPort(f.server); err != nil || port == "" {
		return nil, cli.Usagef("--server %q: must be HOST:PORT, as 127.0.0.1:7600", f.server)
	}
	if f.interval < time.Second/10 {
		return nil, cli.Usagef("--interval %v: must be at least 100ms", f.interval)
	}
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(errs, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(errs, nil)), nil
	}
	return nil, cli.Usagef("--log-format %q: must be text or json", f.logFormat)
}

// certificates returns the certificates of the process, which must have one of the given roles. It returns nil if the
// process speaks plaintext.
func (f *runFlags) certificates(log *slog.Logger, roles ...identity.Role) (*certs.Source, error) {
	dir := cmp.Or(f.tlsDir, os.Getenv("SHEAF_TLS_DIR"))
	if dir == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Config{Dir: dir, Logger: log})
	if err != nil {
		return nil, cli.Usagef("--tls-dir: %w", err)
	}
	if is := source.Identity(); !slices.Contains(roles, is.Role) {
		source.Close()
		return nil, cli.Usagef("--tls-dir %s: the certificate is that of %s, and not one of the roles %v", dir, is, roles)
	}
	return source, nil
}

// run archives the store into the bucket at url until ctx ends.
func (f *runFlags) run(ctx context.Context, a *app, url string) (err error) {
	log, err := f.check(a.Out.Err)
	if err != nil {
		return err
	}
	source, err := f.certificates(log, identity.Archive)
	if err != nil {
		return err
	}
	if source != nil {
		defer source.Close()
	}
	p := newProcess(version, f.interval)
	if p.upkeep, err = f.upkeep.open(log); err != nil {
		return err
	}
	stopHTTP, err := serveHTTP(ctx, f.http, func(metrics *prometheus.Registry) http.Handler { return pages(p, metrics) },
		source, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopHTTP()) }()
	attempt := func(ctx context.Context) error { return f.archive(ctx, log, p, source, url) }
	if !f.stay {
		return attempt(ctx)
	}
	p.stay(ctx, log, attempt)
	return nil
}

// archive archives the store until ctx ends, and then returns nil. It returns an error if it cannot start, or if it
// has to stop earlier.
func (f *runFlags) archive(ctx context.Context, log *slog.Logger, p *process, source *certs.Source, url string) (
	err error) {
	all, err := loadKeys(f.keys)
	if err != nil {
		return err
	}
	inner, err := cloud.Open(ctx, url)
	if err != nil {
		return err
	}
	b := &heardBucket{Bucket: inner, p: p}
	defer func() { err = errors.Join(err, b.Close()) }()
	if _, err := bucket.Probe(ctx, b); err != nil {
		return err
	}
	if _, err := bucket.RemoveLeftovers(ctx, inner, time.Now().Add(-leftoversAge)); err != nil {
		log.Warn("parts that a killed process left in the bucket remain", "error", err)
	}
	gateways, shards := insecure.NewCredentials(), insecure.NewCredentials()
	if source != nil {
		gateways = source.Client(source.Own(identity.Gateway, ""))
		shards = source.Client(source.Own(identity.Shard, ""))
	}
	gateway, err := grpc.NewClient("passthrough:///"+f.server, append(dialOptions(gateways), grpc.WithNoProxy())...)
	if err != nil {
		return cli.Usagef("--server %q: %w", f.server, err)
	}
	defer func() { err = errors.Join(err, gateway.Close()) }()
	store, err := remote.Describe(ctx, gateway)
	if err != nil {
		return silentError{err}
	}
	var a *archiver.Archiver
	news := remote.New(remote.Options{
		Store: store.UUID, Dial: dialOptions(shards),
		Shards: func(ctx context.Context) ([]string, error) { return remote.Routing(ctx, gateway) },
		Name:   func(group uuid.UUID) string { return a.GroupName(group) }, Through: p.archivedThrough,
	})
	defer func() { err = errors.Join(err, news.Close()) }()
	a, err = archiver.New(archiver.Options{
		Bucket: b, Source: news, Store: store.UUID, Name: cmp.Or(f.name, store.UUID.String()), Routing: store.Routing,
		Groups: store.Groups, Interval: f.interval, Key: all.First(), Keys: all, Log: log,
	})
	if err != nil {
		return err
	}
	collectGarbage(archiverGarbagePercent)
	log.Info("the archiver begins", "store", store.UUID, "routing", store.Routing, "key_id", keyID(all))
	p.begin(store.UUID, a)
	defer p.end()
	defer keepUp(ctx, p.upkeep, &prune.Store{Bucket: b, UUID: store.UUID, Key: all.First(), Keys: all}, a)()
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.watchDrills(watching, log, inner, store.UUID, all)
	}()
	defer func() {
		stop()
		<-watched
	}()
	if err := a.Run(ctx); ctx.Err() == nil {
		return fmt.Errorf("the archiver stopped: %w", err)
	}
	log.Info("the archiver ends", "archived_through", a.Status().ArchivedThrough)
	return nil
}

// silentError is the error of an attempt that failed because the store does not answer.
type silentError struct{ error }

func (e silentError) Unwrap() error { return e.error }

// dialOptions are the options of connections to processes of the store.
func dialOptions(creds credentials.TransportCredentials) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithUserAgent("sheaf-archive"), grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(liveness.Dial)}
}
