package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/drill"
	"sheaf.dev/sheaf/internal/archive/remote"
	"sheaf.dev/sheaf/internal/local/archivecli"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A shard sends one group at a time to archivers and drills, so a drill waits for a copy that the archiver makes. It
// waits for a shard that starts again, too.
const (
	copyPause = 5 * time.Second
	copyWait  = 15 * time.Minute
)

func drillCommand(a *app) *cobra.Command {
	var f runFlags
	var max cli.Size
	var noUse bool
	opts := archivecli.DrillOptions{Now: time.Now}
	cmd := onArchive(a, &cobra.Command{
		Use: "drill URL", Short: "Prove that the archive of a store can be restored", Args: cobra.ExactArgs(1),
		Long: `Restores some groups as of a random time into the scratch folder, by the same code as a restore, checks every
byte of the files as a shard does, and compares each record with the store. What was written or deleted
since that time, and groups that were deleted since, are not compared. Nothing in the store is changed.

The outcome is an object below drill/ of the archive, which status shows. The next drill takes the next
groups. The exit code is 1 if the archive differs, and if the drill could not find out.

The largest group must fit into the scratch folder. A drill uses the names sheaf-drill and sheaf-drill.lock
in it, and removes the files at its end; those of a drill that was killed are removed by the next one. It
needs up to 50 bytes of memory for each version of a record of the largest group. While it runs, an object
below use/ of the archive stops prune.`,
		Example: "  sheaf-archive drill file:///mnt/backups/quotes --server 127.0.0.1:7600 --scratch /var/tmp/drill\n" +
			"  sheaf-archive drill 's3://backups/quotes?region=eu-central-1' --server quotes-gateway:7600 --tls-dir archive " +
			"--scratch /scratch --groups 8",
	}, func(ctx context.Context, s archivecli.Source, _ []string) (err error) {
		opts := opts
		s.NoUse = noUse
		if opts.Scratch.Dir != "" {
			if opts.Scratch.Dir, err = filepath.Abs(opts.Scratch.Dir); err != nil {
				return cli.Usagef("--scratch: %w", err)
			}
		}
		opts.Scratch.FS, opts.Scratch.BytesMax = vfs.OS{}, int64(max)
		living := &livingStore{flags: &f}
		defer func() { err = errors.Join(err, living.close()) }()
		opts.Living = living.open
		return archivecli.Drill(ctx, a.Out, s, opts)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "127.0.0.1:7600", "HOST:PORT of a gateway of the store")
	flags.StringVar(&f.tlsDir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt of the store's archiver (or $SHEAF_TLS_DIR; default: plaintext)")
	flags.StringVar(&opts.Scratch.Dir, "scratch", "", "folder for the restored files; required")
	flags.Var(&max, "scratch-max", "use at most this much of the folder, such as 50GiB; 0: what is free")
	flags.IntVar(&opts.Groups, "groups", 8, "how many groups to restore, one after another")
	flags.StringVar(&opts.At, "at", "",
		"a time such as 2026-11-01T12:00:00Z, or point:NAME; default: a random time at which the groups can be read")
	addNoUse(cmd, &noUse)
	return cmd
}

// livingStore is the store with which a drill compares. It connects when it is opened.
type livingStore struct {
	flags *runFlags
	ends  []func() error
	store *remote.Source
	away  time.Time // when the shards began to be busy or away; zero if they are not
}

// open connects to the store. It returns an error if the gateway is that of another store.
func (l *livingStore) open(ctx context.Context, store uuid.UUID) (drill.Living, error) {
	source, err := l.flags.certificates(nil, identity.Archive)
	if err != nil {
		return nil, err
	}
	gateways, shards := insecure.NewCredentials(), insecure.NewCredentials()
	if source != nil {
		l.ends = append(l.ends, func() error { source.Close(); return nil })
		gateways = source.Client(source.Own(identity.Gateway, ""))
		shards = source.Client(source.Own(identity.Shard, ""))
	}
	gateway, err := grpc.NewClient("passthrough:///"+l.flags.server, append(dialOptions(gateways), grpc.WithNoProxy())...)
	if err != nil {
		return nil, cli.Usagef("--server %q: %w", l.flags.server, err)
	}
	l.ends = append(l.ends, gateway.Close)
	is, err := remote.Describe(ctx, gateway)
	if err != nil {
		return nil, err
	}
	if is.UUID != store {
		return nil, cli.Usagef("--server %s serves store %s, and the archive is of store %s", l.flags.server, is.UUID, store)
	}
	l.store = remote.New(remote.Options{Store: store, Dial: dialOptions(shards),
		Shards: func(ctx context.Context) ([]string, error) { return remote.Routing(ctx, gateway) }})
	l.ends = append(l.ends, l.store.Close)
	return l, nil
}

// Copy implements drill.Living. It tries again while the shards are busy or away, until they have been so for copyWait,
// whatever the group.
func (l *livingStore) Copy(ctx context.Context, group uuid.UUID) (archiver.GroupCopy, error) {
	for {
		c, err := l.store.Copy(ctx, group)
		switch status.Code(err) {
		case codes.ResourceExhausted, codes.Unavailable:
		default:
			l.away = time.Time{}
			return c, err
		}
		if l.away.IsZero() {
			l.away = time.Now()
		}
		if time.Since(l.away) > copyWait || !backoff.Sleep(ctx, copyPause) {
			return nil, fmt.Errorf("asked for %v: %w", copyWait, err)
		}
	}
}

func (l *livingStore) close() (err error) {
	for i := len(l.ends) - 1; i >= 0; i-- {
		err = errors.Join(err, l.ends[i]())
	}
	return err
}
