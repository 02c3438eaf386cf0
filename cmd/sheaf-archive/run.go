package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/remote"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// leftoversAge is the age at which what killed processes left in a bucket is removed.
const leftoversAge = 24 * time.Hour

// runFlags are the flags of the command run.
type runFlags struct {
	server, tlsDir, name string
	interval             time.Duration
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
--archive-hold-max).`,
		Example: "  sheaf-archive run file:///mnt/backups/quotes --server 127.0.0.1:7600\n" +
			"  sheaf-archive run 's3://backups/quotes?region=eu-central-1' --server quotes-gateway:7600 --tls-dir archive",
		Args: cobra.ExactArgs(1),
		RunE: a.onBucket(func(ctx context.Context, b bucket.Bucket, _ []string) error {
			return f.run(ctx, slog.New(slog.NewTextHandler(a.Out.Err, nil)), b)
		}, false),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "127.0.0.1:7600", "HOST:PORT of a gateway of the store")
	flags.StringVar(&f.tlsDir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt of the store's archiver (or $SHEAF_TLS_DIR; default: plaintext)")
	flags.StringVar(&f.name, "name", "", "name of the store, for people who read the archive; default: its UUID")
	flags.DurationVar(&f.interval, "interval", 10*time.Second, "time between two log objects")
	return cmd
}

// secure returns the credentials for gateways and for shards. The returned function must be called at the end.
func (f *runFlags) secure() (gateways, shards credentials.TransportCredentials, end func(), err error) {
	dir := cmp.Or(f.tlsDir, os.Getenv("SHEAF_TLS_DIR"))
	if dir == "" {
		return insecure.NewCredentials(), insecure.NewCredentials(), func() {}, nil
	}
	source, err := certs.Open(certs.Config{Dir: dir})
	if err != nil {
		return nil, nil, nil, cli.Usagef("--tls-dir: %w", err)
	}
	if is := source.Identity(); is.Role != identity.Archive {
		source.Close()
		return nil, nil, nil, cli.Usagef("--tls-dir %s: the certificate is that of %s, and not that of an archiver", dir, is)
	}
	gateways, shards = source.Client(source.Own(identity.Gateway, "")), source.Client(source.Own(identity.Shard, ""))
	return gateways, shards, source.Close, nil
}

// run archives the store into a bucket until ctx ends.
func (f *runFlags) run(ctx context.Context, log *slog.Logger, b bucket.Bucket) (err error) {
	if _, port, err := net.SplitHostPort(f.server); err != nil || port == "" {
		return cli.Usagef("--server %q: must be HOST:PORT, as 127.0.0.1:7600", f.server)
	}
	if f.interval < time.Second/10 {
		return cli.Usagef("--interval %v: must be at least 100ms", f.interval)
	}
	gateways, shards, end, err := f.secure()
	if err != nil {
		return err
	}
	defer end()
	if _, err := bucket.Probe(ctx, b); err != nil {
		return err
	}
	if _, err := bucket.RemoveLeftovers(ctx, b, time.Now().Add(-leftoversAge)); err != nil {
		log.Warn("parts that a killed process left in the bucket remain", "error", err)
	}
	gateway, err := grpc.NewClient("passthrough:///"+f.server, append(dialOptions(gateways), grpc.WithNoProxy())...)
	if err != nil {
		return cli.Usagef("--server %q: %w", f.server, err)
	}
	defer func() { err = errors.Join(err, gateway.Close()) }()
	store, err := remote.Describe(ctx, gateway)
	if err != nil {
		return err
	}
	var a *archiver.Archiver
	source := remote.New(remote.Options{
		Store: store.UUID, Dial: dialOptions(shards),
		Shards: func(ctx context.Context) ([]string, error) { return remote.Routing(ctx, gateway) },
		Name:   func(group uuid.UUID) string { return a.GroupName(group) },
	})
	defer func() { err = errors.Join(err, source.Close()) }()
	a, err = archiver.New(archiver.Options{
		Bucket: b, Source: source, Store: store.UUID, Name: cmp.Or(f.name, store.UUID.String()), Routing: store.Routing,
		Groups: store.Groups, Interval: f.interval, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("the archiver begins", "store", store.UUID, "routing", store.Routing)
	if err := a.Run(ctx); ctx.Err() == nil {
		return fmt.Errorf("the archiver stopped: %w", err)
	}
	log.Info("the archiver ends", "archived_through", a.Status().ArchivedThrough)
	return nil
}

// dialOptions are the options of connections to processes of the store.
func dialOptions(creds credentials.TransportCredentials) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithUserAgent("sheaf-archive"), grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(liveness.Dial)}
}
