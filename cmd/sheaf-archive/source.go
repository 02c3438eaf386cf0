package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/local/archivecli"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/restoresource"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// sourceFlags are the flags of the command source.
type sourceFlags struct {
	into, at, upTo, point, listen, tlsDir, http string
	rate                                        int64
	dryRun, noUse                               bool
	groups                                      []string
}

func sourceCommand(a *app) *cobra.Command {
	var f sourceFlags
	cmd := onArchive(a, &cobra.Command{
		Use:   "source URL",
		Short: "Serve the groups of a store as of a time to the shards of a new store, until it is stopped",
		Long: `Makes the groups of an archive as of one time into groups of a new store, whose shards fetch them here as
from another shard. It needs no disk: groups are read from the bucket while others are sent. It writes one small object
below use/ of the archive, which stops prune, renews it every hour, and deletes it at the end. If the process is
killed, prune waits for up to 6 hours. It may be stopped and started again, with the same --into and --time: the
shards continue. Give the same --group, too.

Without --time, it takes each group as it was last archived, and notes that in the archive, as the point restore-INTO,
which is kept for 30 days. If it is started again, it serves the state of that point, although the archive has grown.
If the point cannot be created, it says so. Give it then the time that it named, as --up-to: it takes each group as of
that time, or as it was last archived if that was earlier, and this may be more than before.

Each group is consistent, but two groups may differ by what was written at that very time. Groups that cannot be
restored exactly are named, with the reason; the others are served. --dry-run only shows the groups, and writes
nothing.`,
		Args: cobra.ExactArgs(1),
		Example: "  sheaf-archive source file:///mnt/backups --into $(uuidgen) --time 2026-11-01T12:00:00Z --dry-run\n" +
			"  sheaf-archive source 's3://backups/quotes?region=eu-central-1' --into UUID --listen :7640 --tls-dir archive",
	}, func(ctx context.Context, s archivecli.Source, _ []string) error {
		return f.run(ctx, a.Out, s)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.into, "into", "", "UUID of the new store; required")
	flags.StringVar(&f.at, "time", "", "such as 2026-11-01T12:00:00Z; empty: each group as it was last archived")
	flags.StringVar(&f.upTo, "up-to", "", "in place of --time: a time, or the end of a group whose archive ends earlier")
	flags.StringVar(&f.point, "point", "", "in place of --time: name of a point of the archive (sheaf-archive point list)")
	flags.StringSliceVar(&f.groups, "group", nil,
		"serve only this group, and others given in the same way, of a store with routing named; default: all groups")
	flags.StringVar(&f.http, "http", "",
		"HOST:PORT of /metrics, /healthz, /readyz and /status; empty: none. /readyz fails until the archive has been read")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:7640", "HOST:PORT on which shards fetch groups")
	flags.StringVar(&f.tlsDir, "tls-dir", "", "folder with tls.crt, tls.key and ca.crt of the new store's archiver "+
		"(or $SHEAF_TLS_DIR; default: plaintext, and everybody who can connect reads all records)")
	flags.Int64Var(&f.rate, "rate", 0, "bytes per second that are sent to all shards together; 0: no limit")
	addNoUse(cmd, &f.noUse)
	flags.BoolVar(&f.dryRun, "dry-run", false, "show which groups can be restored, and serve nothing")
	return cmd
}

// run serves a restore until ctx ends.
func (f *sourceFlags) run(ctx context.Context, out *cli.Output, s archivecli.Source) (err error) {
	into, err := uuid.Parse(f.into)
	if err != nil {
		return cli.Usagef("--into %q: must be the UUID of the new store, which is not that of the archived one", f.into)
	}
	at, err := archivecli.ParseAt(f.at)
	if err == nil && f.at != "" && at.Time.IsZero() {
		err = cli.Usagef("--time %q: must be a time such as 2026-11-01T12:00:00Z", f.at)
	}
	var upTo time.Time
	if err == nil && f.upTo != "" {
		if upTo, err = time.Parse(time.RFC3339Nano, f.upTo); err != nil {
			err = cli.Usagef("--up-to %q: must be a time such as 2026-11-01T12:00:00Z", f.upTo)
		}
	}
	switch {
	case err != nil:
		return err
	case f.at != "" && f.point != "", f.upTo != "" && (f.at != "" || f.point != ""):
		return cli.Usagef("--time, --up-to and --point exclude each other: give one of them")
	case f.rate < 0:
		return cli.Usagef("--rate %d: must not be negative", f.rate)
	}
	certificates, err := f.certificates()
	if err != nil {
		return err
	}
	if certificates != nil {
		defer certificates.Close()
	}
	log := slog.New(slog.NewTextHandler(out.Err, nil))
	page := newSourcePage(into)
	stopHTTP, err := page.serve(ctx, f.http, certificates, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopHTTP()) }()
	s.NoUse = f.noUse || f.dryRun
	if f.noUse && !f.dryRun {
		log.Warn("--no-use: the archive is not protected; nobody may prune it until this process ends")
	}
	return s.Reading(ctx, "restore into store "+into.String(), func(text string) { log.Warn(text) },
		func(ctx context.Context) error {
			r, when, err := f.restore(ctx, s, into, at.Time, upTo, func(text string) { log.Warn(text) })
			if err != nil {
				return err
			}
			if len(f.groups) > 0 {
				if err := r.Only(f.groups); err != nil {
					return cli.Usagef("--group: %w", err)
				}
			}
			if f.dryRun {
				return show(out, r, when)
			}
			return f.serve(ctx, log, r, certificates, when, page)
		})
}

// restore opens the archive and determines what the source serves, and the time as of which it does. If both times are
// zero, and no point was given, each group is served as it was last archived.
func (f *sourceFlags) restore(ctx context.Context, s archivecli.Source, into uuid.UUID, at, upTo time.Time,
	warn func(text string)) (*restore.Restore, time.Time, error) {
	a, err := s.Open(ctx)
	if err != nil {
		return nil, at, err
	}
	if into == a.Store() || into == uuid.Nil {
		return nil, at, cli.Usagef("--into %s: the new store needs a UUID of its own", into)
	}
	if f.point != "" {
		point, err := a.NamedPoint(ctx, f.point)
		if reader.IsMissing(err) {
			return nil, at, cli.NotFoundf("the archive has no point %q: sheaf-archive point list shows them", f.point)
		}
		if err != nil {
			return nil, at, err
		}
		r, err := restore.NewAtPoint(ctx, a, into, point)
		return r, time.Unix(0, point.Time), err
	}
	if !at.IsZero() {
		r, err := restore.New(ctx, a, into, at)
		return r, at, err
	}
	return s.RestoreAsArchived(ctx, into, upTo, time.Now, warn)
}

// certificates returns the certificates that the process uses, or nil if it uses plaintext.
func (f *sourceFlags) certificates() (*certs.Source, error) {
	dir := cmp.Or(f.tlsDir, os.Getenv("SHEAF_TLS_DIR"))
	if dir == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Config{Dir: dir})
	if err != nil {
		return nil, cli.Usagef("--tls-dir: %w", err)
	}
	if is := source.Identity(); is.Role != identity.Archive {
		source.Close()
		return nil, cli.Usagef("--tls-dir %s: the certificate is that of %s, and not that of an archiver", dir, is)
	}
	return source, nil
}

// groupRow is a group as --dry-run prints it.
type groupRow struct {
	Name   string `json:"name"`
	UUID   string `json:"uuid"`
	Source string `json:"source"`
	Index  uint64 `json:"index"`
	Error  string `json:"error,omitempty"`
}

// show prints the groups of a restore. It fails if one of them cannot be restored.
func show(out *cli.Output, r *restore.Restore, when time.Time) error {
	groups := r.Groups()
	rows := make([]groupRow, 0, len(groups))
	table := cli.Table{Header: []string{"GROUP", "AS OF INDEX", "NEW UUID", "STATE"}}
	failed := 0
	for _, g := range groups {
		row := groupRow{Name: g.Name, UUID: g.UUID.String(), Source: g.Source.String(), Index: g.Index}
		state, index := cli.Text("can be restored"), strconv.FormatUint(g.Index, 10)
		if g.Err != nil {
			failed++
			row.Error, index = g.Err.Error(), ""
			state = cli.Cell{Text: strings.ReplaceAll(row.Error, "\n", "; "), Colour: cli.Red}
		}
		rows = append(rows, row)
		table.Rows = append(table.Rows, []cli.Cell{cli.Text(cmp.Or(g.Name, row.Source)),
			cli.Number(index), cli.Text(row.UUID), state})
	}
	if err := out.WriteRows(rows, table); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("as of %s, the archive cannot restore %s of %d", cli.FormatTime(when),
			units.Count(int64(failed), "group", "groups"), len(rows))
	}
	return nil
}

// serve serves a restore until ctx ends.
func (f *sourceFlags) serve(ctx context.Context, log *slog.Logger, r *restore.Restore, certificates *certs.Source,
	when time.Time, page *sourcePage) error {
	good := 0
	for _, g := range r.Groups() {
		if g.Err != nil {
			log.Error("a group cannot be restored", "group", g.Name, "source", g.Source, "error", g.Err)
			continue
		}
		good++
	}
	collectGarbage(sourceGarbagePercent)
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return cli.Usagef("--listen %q: %w", f.listen, err)
	}
	server := restoresource.NewServer(restoresource.Options{Restore: r, Limiter: peer.NewLimiter(f.rate), Logger: log},
		certificates)
	log.Info("the source begins", "store", r.Store(), "time", cli.FormatTime(when), "address", listener.Addr(),
		"groups", good, "of", len(r.Groups()), "tls", certificates != nil)
	page.serves(r, when)
	stop := context.AfterFunc(ctx, server.Stop) // shards continue where they stopped once another source runs
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("the source stopped: %w", err)
	}
	log.Info("the source ends")
	return nil
}
