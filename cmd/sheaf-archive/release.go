package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/archive/remote"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/identity"
)

func releaseCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Make the shards of a store keep no more history for an archive that has ended",
		Long: `Shards keep the history that is not archived yet, up to a limit. They cannot know that an archive has
ended, because a stopped archiver looks the same as one that starts again. This command tells all shards.

Stop the archiver first (sheaf-archive run, or delete the RecordArchive); while one runs, the command is
refused. All shards must serve: the command asks until none has anything left, and otherwise names one and
fails; then run it again. The bucket is not touched. If the store is archived again, the archive has a hole.`,
		Example: "  sheaf-archive release --server 127.0.0.1:7600 --tls-dir store/tls/archive",
		Args:    cobra.NoArgs,
		RunE: a.Body(func(ctx context.Context, _ []string) error {
			ctx, cancel := cli.Within(ctx, a.timeout)
			defer cancel()
			return f.release(ctx, a)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "127.0.0.1:7600", "HOST:PORT of a gateway of the store")
	flags.StringVar(&f.tlsDir, "tls-dir", "", "folder with tls.crt, tls.key and ca.crt of the store's archiver or of an "+
		"administrator (or $SHEAF_TLS_DIR; default: plaintext)")
	return cmd
}

// release ends the holds of all shards of the store.
func (f *runFlags) release(ctx context.Context, a *app) (err error) {
	source, err := f.certificates(nil, identity.Archive, identity.Admin)
	if err != nil {
		return err
	}
	gateways, shards := insecure.NewCredentials(), insecure.NewCredentials()
	if source != nil {
		defer source.Close()
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
		return err
	}
	all := remote.New(remote.Options{Store: store.UUID, Dial: dialOptions(shards),
		Shards: func(ctx context.Context) ([]string, error) { return remote.Routing(ctx, gateway) }})
	defer func() { err = errors.Join(err, all.Close()) }()
	ended, err := all.Release(ctx)
	if err != nil {
		return err
	}
	return a.Out.Print(struct {
		Store string `json:"store"`
		Ended int    `json:"ended"`
	}{store.UUID.String(), ended}, "no shard of store %s keeps history for an archive any more: %s ended\n", store.UUID,
		units.Count(int64(ended), "hold has", "holds have"))
}
