package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/local/archivecli"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/local/restoresource"
	"sheaf.dev/sheaf/internal/placement/listing"
)

// devFlags are the flags of the command dev.
type devFlags struct {
	at, dir, listen, http string
	groups                []string
	partly                bool
}

func devCommand(a *app) *cobra.Command {
	var f devFlags
	cmd := onArchive(a, &cobra.Command{
		Use:   "dev URL",
		Short: "Run a store on this machine with the records that a store had at a time, to look at them",
		Long: `Restores the groups of an archive into a new store in this process, which is like that of sheaf dev: etcd, a
shard, a planner and a gateway. sheaf get, scan, list and every other client read it. Nothing is written into the
archive, and the store is not archived: what you write to it is in its folder alone, which is removed at the end unless
--dir names it. sheaf dev --dir serves that folder again, without the archive.

The archive is not protected from prune while it is read. If prune deletes objects that this restore needs, the groups
concerned are named, and the others are served.`,
		Args: cobra.ExactArgs(1),
		Example: "  sheaf-archive dev file:///mnt/backups --at 2026-11-01T12:00:00Z\n" +
			"  sheaf-archive dev 's3://backups/quotes?region=eu-central-1' --at point:before-1.2 --group eu --dir ./yesterday",
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		return f.run(ctx, a.Out, s)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.at, "at", "",
		"a time such as 2026-11-01T12:00:00Z, or point:NAME; empty: each group as it was last archived")
	flags.StringVar(&f.dir, "dir", "",
		"empty or missing folder for the store (default: a temporary one, removed at the end)")
	cli.AddressVar(flags, &f.listen, "listen", "127.0.0.1:7600", "address of the gateway (gRPC)")
	cli.HTTPVar(flags, &f.http, "127.0.0.1:7601",
		"address of a page at /, /metrics, /healthz, /readyz and /status; empty: none")
	flags.StringSliceVar(&f.groups, "group", nil,
		"restore only this group, and others given in the same way, of a store with routing named; default: all groups")
	flags.BoolVar(&f.partly, "partly", false, "also begin if some groups cannot be restored; these are not served")
	return cmd
}

// run runs the store until ctx ends.
func (f *devFlags) run(ctx context.Context, out *cli.Output, s archivecli.Source) (err error) {
	at, err := archivecli.ParseAt(f.at)
	if err != nil {
		return err
	}
	if at.Index != 0 {
		return cli.Usagef("--at %q: must be a time such as 2026-11-01T12:00:00Z, or point:NAME", f.at)
	}
	s.NoUse = true
	read := sourceFlags{point: at.Point}
	r, when, err := read.restore(ctx, s, uuid.New(), at.Time, time.Time{}, func(text string) { out.Sayf("%s", text) })
	if err != nil {
		return err
	}
	if len(f.groups) > 0 {
		if err := r.Only(f.groups); err != nil {
			return cli.Usagef("--group: %w", err)
		}
	}
	log := slog.New(slog.NewTextHandler(out.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the shard of this process: %w", err)
	}
	source := restoresource.NewServer(restoresource.Options{Restore: r, Limiter: peer.NewLimiter(0), Logger: log}, nil)
	served := make(chan error, 1)
	go func() { served <- source.Serve(listener) }()
	defer func() { source.Stop(); err = errors.Join(err, <-served) }()
	address := listener.Addr().String()
	list, err := listing.Ask(ctx, address, insecure.NewCredentials())
	if err != nil {
		return err
	}
	out.Sayf("sheaf-archive dev: %s as of %s",
		units.Count(int64(len(list.Groups)), "group", "groups"), cli.FormatTime(when))
	return f.serve(ctx, out, dev.Config{Shards: 1, Listen: f.listen, HTTP: f.http, Version: version, Logger: log,
		Restore: &dev.Restore{Source: address, List: list, Partly: f.partly}})
}

// serve runs the store until ctx ends.
func (f *devFlags) serve(ctx context.Context, out *cli.Output, cfg dev.Config) (err error) {
	if cfg.Dir, err = filepath.Abs(f.dir); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if f.dir == "" {
		if cfg.Dir, err = os.MkdirTemp("", "sheaf-archive-dev-"); err != nil {
			return fmt.Errorf("making a temporary folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.Dir)) }()
	}
	d, err := dev.Start(ctx, cfg)
	if errors.Is(err, dev.ErrUsage) {
		return cli.Usagef("%w", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), devStopTime)
		defer cancel()
		err = errors.Join(err, d.Stop(stopping))
	}()
	err = d.WaitRestored(ctx, func(waiting int) {
		if waiting > 0 {
			out.Sayf("sheaf-archive dev: %s to be restored (http://%s/status says more)",
				units.Count(int64(waiting), "group waits", "groups wait"), d.HTTPAddr())
		}
	})
	if err == nil {
		out.Sayf("sheaf-archive dev: serving on %s, folder %s\nTry, in another terminal:\n  sheaf scan --server %s\n"+
			"Ctrl-C stops it.", d.Addr(), cfg.Dir, d.Addr())
		select {
		case <-ctx.Done():
		case err = <-d.EtcdErr():
			err = fmt.Errorf("etcd has failed: %w", err)
		}
	}
	if ctx.Err() != nil {
		err = nil // stopped on request, which is not an error
	}
	return err
}

// devStopTime is how long a store may take to stop.
const devStopTime = 10 * time.Second
