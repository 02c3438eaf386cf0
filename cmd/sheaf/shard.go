package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/base/cgroup"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/shard"
)

// placementFlags holds the flags that name etcd and the store in it.
type placementFlags struct {
	etcd     etcd.ClientConfig
	insecure bool
	prefix   string
	store    string
}

func (f *placementFlags) add(cmd *cobra.Command) {
	etcdVar(cmd, &f.etcd)
	flags := cmd.Flags()
	flags.StringVar(&f.prefix, "etcd-prefix", registry.PrefixDefault, "key in etcd below which stores are")
	flags.StringVar(&f.store, "store", "default", "name of the store in etcd")
}

// addInsecure adds --etcd-insecure, which only processes that have certificates of the store need.
func (f *placementFlags) addInsecure(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.insecure, "etcd-insecure", false,
		"with --tls-dir, where none of --etcd-ca, --etcd-cert and --etcd-key is given: etcd speaks no TLS (default: it is "+
			"the store's own, with a certificate of it)")
}

// etcdVar adds the flags for the address and the credentials of etcd.
func etcdVar(cmd *cobra.Command, c *etcd.ClientConfig) {
	flags := cmd.Flags()
	flags.StringSliceVar(&c.Endpoints, "etcd", []string{"127.0.0.1:2379"}, "endpoints of etcd, host:port")
	flags.StringVar(&c.CAFile, "etcd-ca", "",
		"authorities of etcd's certificates; TLS is used where this or --etcd-cert is given")
	flags.StringVar(&c.CertFile, "etcd-cert", "", "certificate to show to etcd")
	flags.StringVar(&c.KeyFile, "etcd-key", "", "its key; these files are read again for each connection")
	flags.StringVar(&c.Username, "etcd-username", "", "user name for etcd")
	flags.StringVar(&c.PasswordFile, "etcd-password-file", "", "file with the password, read at the start")
}

// open creates an etcd client, but does not read anything yet. If no flags name other certificates, the client uses the
// certificates of the process itself, if it has any. The caller closes the client.
func (f *placementFlags) open(own *certs.Source) (*clientv3.Client, *registry.Store, error) {
	switch given := f.etcd.UsesFiles(); {
	case f.insecure && (given || own == nil):
		return nil, nil, cli.Usagef(
			"--etcd-insecure goes with --tls-dir alone, and without --etcd-ca, --etcd-cert and --etcd-key")
	case own != nil && !given && !f.insecure:
		f.etcd.Credentials = etcd.Credentials(own)
	}
	if len(f.etcd.Endpoints) == 0 {
		return nil, nil, cli.Usagef("--etcd is empty: give host:port")
	}
	client, err := etcd.Dial(f.etcd)
	if err != nil {
		return nil, nil, err
	}
	store, err := registry.NewStoreAt(client, f.prefix, f.store, slog.Default())
	if err != nil {
		return nil, nil, errors.Join(cli.Usagef("--store: %w", err), client.Close())
	}
	return client, store, nil
}

// uuidFlag is the value of a flag that holds a UUID. It is zero if the flag is not set.
type uuidFlag uuid.UUID

// String implements pflag.Value.
func (f *uuidFlag) String() string {
	if *f == (uuidFlag{}) {
		return ""
	}
	return uuid.UUID(*f).String()
}

// Type implements pflag.Value.
func (f *uuidFlag) Type() string { return "UUID" }

// Set implements pflag.Value.
func (f *uuidFlag) Set(s string) error {
	if s == "" {
		*f = uuidFlag{}
		return nil
	}
	id, err := uuid.Parse(s)
	if err == nil && id == uuid.Nil {
		err = errors.New("the UUID is zero")
	}
	*f = uuidFlag(id)
	return err
}

// shardFlags holds the flags of the command shard.
type shardFlags struct {
	cfg     shard.Config
	service serviceFlags
	storage storageFlags
	store   uuidFlag
	volume  uuidFlag
	fetch   cli.Size
	lease   bool
}

func shardCommand(a *app) *cobra.Command {
	var f shardFlags
	cmd := &cobra.Command{
		Use:     "shard",
		Short:   "Run one shard on one volume",
		GroupID: groupRun,
		Long: `Owns the groups on one volume, loads them and serves them. The volume is made where the folder is
empty; a volume of another shard or store is refused. SIGTERM stops gracefully (calls end, all is
synced, hints written), a second one at once.

What must not be served (another file system than --file-system, another store or volume, a disk
that is lost, groups that need more memory than there is) ends the process, or, with --stay, is
shown as its state, by AdminService and /status, until it may be served. Nothing is written to a
volume before all of it was checked.

HTTP, in every state: /healthz (liveness: the process answers; never judges loading), /startupz
(fails only while a load has not moved for 5 minutes), /readyz (the disk answers, and a group
serves or there is none to load), /status (JSON: state, message, volume, load, groups), / (the same
as a page for people), /metrics. States: Pending, Loading, Serving, Draining, FileSystemMismatch, Foreign, DiskLost,
MemoryTooSmall.`,
		Example: `  sheaf shard --name quotes-0 --dir /data --etcd etcd:2379 --store quotes --listen :7610 --advertise quotes-0:7610
  sheaf shard --name quotes-0 --dir /data --file-system xfs --mount-option noatime --stay`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		return a.Body(func(ctx context.Context, _ []string) error {
			if err := f.fill(c); err != nil {
				return err
			}
			as := identity.Identity{Role: identity.Shard, Name: f.cfg.Name}
			return f.service.run(ctx, as, as.Name, func(s *service) error {
				return runShard(ctx, a.Out, s, f.cfg)
			})
		})(c, args)
	}
	f.add(cmd)
	return cmd
}

func (f *shardFlags) add(cmd *cobra.Command) {
	flags, cfg := cmd.Flags(), &f.cfg
	flags.StringVar(&cfg.Name, "name", "", "name of the shard (required)")
	flags.StringVar(&cfg.Dir, "dir", "", "folder of the volume (required)")
	cli.AddressVar(flags, &cfg.Listen, "listen", "127.0.0.1:7610", "address for gRPC")
	cli.AdvertiseVar(flags, &cfg.Advertise, "advertise",
		"address that others reach it by (default: the one it listens on)")
	flags.StringVar(&cfg.Domain, "domain", "",
		"failure domain: no two copies of a group go to the same one (default: the node, else the name)")
	flags.StringVar(&cfg.Node, "node", "", "node that it runs on, for its registration")
	flags.StringVar(&cfg.Zone, "zone", "", "zone of the node, for its registration")
	cli.HTTPVar(flags, &f.service.http, "127.0.0.1:7611",
		"address of a page at /, /metrics, /healthz, /startupz, /readyz and /status; empty: none")
	flags.BoolVar(&cfg.Stay, "stay", false, "stay up and show as a state what cannot be served, instead of ending")
	flags.StringVar(&cfg.Wanted.FileSystem, "file-system", "",
		"type that the volume must be on, as xfs; ext2, ext3 and ext4 are distinguished; empty: any")
	flags.StringSliceVar(&cfg.Wanted.MountOptions, "mount-option", nil,
		"mount option that must be in force; may be repeated")
	flags.Var(&f.store, "store-uid", "store that volume and etcd must be of")
	flags.Var(&f.volume, "expect-volume",
		"volume that was here before: a blank or another one is never initialised or served")
	flags.BoolVar(&cfg.Wanted.Adopt, "adopt", false,
		"take over a volume of this store that is of another shard, and its groups")
	flags.DurationVar(&cfg.TrashDelay, "trash-delay", time.Hour,
		"time after which the files of a replica that has left its group are deleted; sooner where free space is low")
	flags.BoolVar(&f.lease, "read-lease", true,
		"leaders answer reads for half a second after a majority of copies has answered them; "+
			"false: each read asks a majority, for machines that are paused together with their clocks")
	flags.Var(&f.fetch, "fetch-rate",
		"bytes per second of files that are sent to other shards in all, as in 64MiB; 0: no limit")
	f.service.add(cmd)
	f.storage.add(cmd)
	flags.Lookup("memory-limit").Usage = "of index and resident data, as in 8GiB; 0: none (default: the cgroup's limit " +
		"less a quarter, 128 MiB to 1 GiB, for the rest of the process)"
	require(cmd, "name", "dir")
}

// fill copies the flags to the configuration.
func (f *shardFlags) fill(cmd *cobra.Command) error {
	if err := f.storage.fill(&f.cfg); err != nil {
		return err
	}
	f.cfg.Limits.FetchBytesPerSecond, f.cfg.NoReadLease = int64(f.fetch), !f.lease
	f.cfg.Wanted.Store, f.cfg.Wanted.Volume = uuid.UUID(f.store), uuid.UUID(f.volume)
	if !cmd.Flags().Changed("memory-limit") {
		fitCgroup(&f.cfg, cgroup.MemoryLimit("/"))
	}
	return nil
}

func runShard(ctx context.Context, out *cli.Output, s *service, cfg shard.Config) error {
	cfg.Placement, cfg.Version, cfg.Logger, cfg.Registry = s.store, version, s.logger, s.registry
	cfg.ServerOptions, cfg.Tracer, cfg.Audit = s.traces.ServerOptions(), s.traces.Tracer(), s.audit
	defer s.secure(cfg.Secure)()
	h, err := shard.StartHost(ctx, cfg)
	if err != nil {
		return err
	}
	stopHTTP, err := s.serveHTTP(ctx, h.Handler())
	if err != nil {
		return errors.Join(err, stopGracefully(out, h.Stop))
	}
	select {
	case <-ctx.Done():
	case err = <-h.Failed():
		err = fmt.Errorf("shard %s: %w", cfg.Name, err)
	}
	return errors.Join(err, stopGracefully(out, h.Stop), stopHTTP())
}
