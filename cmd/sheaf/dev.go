package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/placement"
)

// devFlags holds the flags of the command dev.
type devFlags struct {
	dir            string
	shards, groups int
	copies         int
	routing        string
	listen, http   string
	records        string
	pprof          string
	tls            bool
	storage        storageFlags
	log            logFlags
}

func devCommand(a *app) *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:     "dev",
		Short:   "Run a whole store in one process",
		GroupID: groupRun,
		Long: `Runs etcd, shards, planner and gateway in one process: the same code as the real processes. Without
--dir it works on a new temporary folder, which it removes when it ends. Another run on the folder
of an earlier one serves what was acknowledged, also after a crash.`,
		Example: `  sheaf dev
  sheaf dev --dir ./store --residency resident
  sheaf dev --copies 3
  sheaf dev --dir ./customers --routing named`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.dir, "dir", "", "folder of the store (default: a new temporary one, removed at the end)")
	flags.IntVar(&f.shards, "shards", 3, "shards to run (default in a folder used before: as many as then)")
	flags.IntVar(&f.copies, "copies", 1,
		"copies of each group, on as many shards: 1, 3 or 5; fixed when the folder is made")
	flags.IntVar(&f.groups, "groups", 16, "groups, with --routing hash; fixed when the folder is made")
	flags.StringVar(&f.routing, "routing", "hash",
		"how ids find their group: hash or named; fixed when the folder is made")
	cli.AddressVar(flags, &f.listen, "listen", "127.0.0.1:7600", "address of the gateway (gRPC)")
	cli.HTTPVar(flags, &f.http, "127.0.0.1:7601",
		"address of a page at /, /metrics, /healthz, /readyz and /status; empty: none")
	cli.RecordsHTTPVar(flags, &f.records)
	cli.PprofVar(flags, &f.pprof)
	flags.BoolVar(&f.tls, "tls", false, "speak mutual TLS alone; what callers need is in the folder's tls/admin")
	f.storage.add(cmd)
	f.log.add(cmd, "warn")
	cli.Complete(cmd, "routing", "hash", "named")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		return a.Body(func(ctx context.Context, _ []string) error {
			cfg, err := f.config(c)
			if err != nil {
				return err
			}
			stopProfiles, err := serveProfiles(ctx, f.pprof)
			if err != nil {
				return err
			}
			cfg.Traces, err = telemetry.StartTraces(ctx, telemetry.Process{Service: "sheaf-dev", Version: version}, cfg.Logger)
			if err == nil {
				err = runDev(ctx, a.Out, cfg)
			}
			cfg.Traces.Stop()
			return errors.Join(err, stopProfiles())
		})(c, args)
	}
	return cmd
}

// config returns the configuration of the store. A flag that is not set stays zero, so that a folder from an earlier
// run keeps its values.
func (f *devFlags) config(cmd *cobra.Command) (dev.Config, error) {
	changed := cmd.Flags().Changed
	cfg := dev.Config{Dir: f.dir, Listen: f.listen, HTTP: f.http, RecordsHTTP: f.records, TLS: f.tls,
		Version: version}
	for _, n := range []struct {
		flag, must string
		value      int
		to         *int
	}{
		{"shards", "at least 1", f.shards, &cfg.Shards}, {"groups", "at least 1", f.groups, &cfg.Groups},
		{"copies", "1, 3 or 5", f.copies, &cfg.Copies},
	} {
		if !changed(n.flag) {
			continue
		}
		if n.value < 1 {
			return cfg, cli.Usagef("--%s %d: must be %s", n.flag, n.value, n.must)
		}
		*n.to = n.value
	}
	if changed("routing") {
		mode, err := parseMode(f.routing)
		if err != nil {
			return cfg, err
		}
		cfg.Mode = mode
	}
	if changed("dir") && f.dir == "" {
		return cfg, cli.Usagef("--dir is empty: leave it out for a temporary folder")
	}
	if err := f.storage.fill(&cfg.Shard); err != nil {
		return cfg, err
	}
	if err := cfg.Validate(); err != nil {
		return cfg, cli.Usagef("%w", err)
	}
	logger, err := f.log.logger()
	cfg.Logger = logger
	return cfg, err
}

func runDev(ctx context.Context, out *cli.Output, cfg dev.Config) (err error) {
	begin := time.Now()
	temporary := cfg.Dir == ""
	if temporary {
		if cfg.Dir, err = os.MkdirTemp("", "sheaf-dev-"); err != nil {
			return fmt.Errorf("making a temporary folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.Dir)) }()
		out.Sayf("sheaf dev: on the temporary folder %s, which is removed at the end (--dir keeps one)", cfg.Dir)
	} else if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	cfg.Progress = func(s dev.Status) {
		out.Sayf("sheaf dev: %s (after %.0f s)", devWaitWords(s), time.Since(begin).Seconds())
	}
	d, err := dev.Start(ctx, cfg)
	if errors.Is(err, dev.ErrUsage) {
		return cli.Usagef("%w", err)
	}
	if err != nil {
		return fmt.Errorf("sheaf dev: %w", err)
	}
	err = d.WaitReady(ctx, cfg.Progress)
	if err == nil {
		sayServing(out, d, cfg, time.Since(begin))
		select {
		case <-ctx.Done():
		case err = <-d.EtcdErr():
			err = fmt.Errorf("sheaf dev: etcd has failed: %w", err)
		}
	}
	if ctx.Err() != nil {
		err = nil // stopped on request, which is not an error
	}
	return errors.Join(err, stopGracefully(out, d.Stop))
}

// devWaitWords describes what a store is waiting for or, while data is being loaded, how far the load has progressed.
func devWaitWords(s dev.Status) string {
	if s.Load.GetBytesTotal() == 0 {
		return s.NotYet
	}
	return s.NotYet + ", " + devLoadWords(s.Load)
}

func devLoadWords(l *recordv1.Load) string {
	words := fmt.Sprintf("%s of %s, %s/s", cli.FormatBytes(l.GetBytesDone()), cli.FormatBytes(l.GetBytesTotal()),
		cli.FormatBytes(int64(l.GetBytesPerSecond())))
	if percent := l.GetDevicePercent(); percent > 0 {
		words += fmt.Sprintf(" (%.0f%% of the device)", percent)
	}
	return words
}

// sayServing prints that the store serves, and which commands to try first.
func sayServing(out *cli.Output, d *dev.Dev, cfg dev.Config, took time.Duration) {
	shards, routing := d.Settings()
	routed, group := cli.Count(int64(routing.Groups), "group", "groups")+" by the hash of the id", ""
	if routing.Mode == placement.Named {
		routed, group = "groups that you name", " --group my-group"
	}
	server := ""
	if d.Addr() != "127.0.0.1:7600" {
		server = " --server " + d.Addr()
	}
	s := d.Status()
	out.Sayf("sheaf dev: serving on %s after %.1f s: %d shards, %s, folder %s", d.Addr(), took.Seconds(), shards, routed,
		cfg.Dir)
	if s.Load.GetGroupsTotal() > 0 {
		out.Sayf("sheaf dev: loaded %d groups in %.2f s: %s", s.Load.GetGroupsTotal(), s.Load.GetElapsedSeconds(),
			devLoadWords(s.Load))
	}
	sayProblems(out, s)
	out.Sayf("\nTry, in another terminal:")
	plain, web := "-plaintext", "http://"
	if files := d.CallerFiles(); files != (client.TLSFiles{}) {
		out.Sayf("  export SHEAF_CA=%s SHEAF_CERT=%s SHEAF_KEY=%s", files.CA, files.Cert, files.Key)
		plain = "-cacert $SHEAF_CA -cert $SHEAF_CERT -key $SHEAF_KEY"
		web = "--cacert $SHEAF_CA --cert $SHEAF_CERT --key $SHEAF_KEY https://"
	}
	out.Sayf("  echo hello | sheaf put 42%s%s", group, server)
	out.Sayf("  sheaf get 42%s%s", group, server)
	out.Sayf("  sheaf import DIR --id hash%s%s", strings.Replace(group, "my-group", "dir", 1), server)
	out.Sayf("  sheaf status%s", server)
	out.Sayf("  grpcurl %s %s list", plain, d.Addr())
	if d.RecordsHTTPAddr() != "" {
		name := cmp.Or(strings.TrimPrefix(group, " --group "), "-")
		out.Sayf("  curl %s%s/v1/records/%s/42", web, d.RecordsHTTPAddr(), name)
	}
	if d.HTTPAddr() != "" {
		out.Sayf("  curl http://%s/status", d.HTTPAddr())
		out.Sayf("or look at http://%s/ in a browser.", d.HTTPAddr())
	}
	out.Sayf("Ctrl-C stops it.")
}

// sayProblems prints the problems of all shards, and the first groups whose state is not Serving.
func sayProblems(out *cli.Output, s dev.Status) {
	const most = 5
	unwell := 0
	for _, one := range s.Shards {
		for _, problem := range one.GetShard().GetProblems() {
			out.Sayf("sheaf dev: %s: %s", one.GetShard().GetName(), problem)
		}
		for _, g := range one.GetGroups() {
			if g.GetState() == recordv1.GroupState_GROUP_STATE_SERVING {
				continue
			}
			if unwell++; unwell <= most {
				out.Sayf("sheaf dev: group %s on %s: %s %s", g.GetGroup(), one.GetShard().GetName(),
					g.GetState().Word(), g.GetMessage())
			}
		}
	}
	if unwell > most {
		out.Sayf("sheaf dev: %d groups are not well: see sheaf status", unwell)
	}
}
