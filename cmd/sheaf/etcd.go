package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// etcdFlags holds the flags of etcd.
type etcdFlags struct {
	cfg     etcd.MemberConfig
	cluster string
	state   string
	quota   cli.Size
	http    string
	tls     tlsFlags
	log     logFlags
}

func etcdCommand(a *app) *cobra.Command {
	var f etcdFlags
	cmd := &cobra.Command{
		Use:     "etcd",
		Short:   "Run a member of the etcd that holds placement",
		GroupID: groupRun,
		Long: `Runs one member of etcd: alone, or one of three. Started again on its folder it joins again. A
folder of another cluster (token) or member is refused, and so is one that holds other files; with
--mount, the disk may hold nothing but the folder, the snapshots and lost+found when a member begins
there. With --initial-cluster-state existing an empty folder never forms a new cluster.

A member whose disk was replaced (its folder is empty, or lacks what the others count on) joins the
others as a new one while all of them are well: they forget the member that it was, it copies their
log as a learner, and votes once it has it. Without a quorum of the others nothing is changed. With
--rejoin=false it does not start.

With --tls-dir all members share one certificate, with the hosts of all of them, and clients have to
be processes of the store (see docs/security.md). New authorities, and the file mode, count for
members from the next start on.

HTTP: /healthz (the process answers), /readyz (a read through the leader works), /metrics, /status
(JSON), with --tls-dir /tls.`,
		Example: `  sheaf etcd --name etcd-0 --dir /data
  sheaf etcd --name etcd-0 --dir /data --listen-client :2379 --listen-peer :2380 --advertise-client etcd-0:2379 \
    --advertise-peer etcd-0:2380 --initial-cluster etcd-0=etcd-0:2380,etcd-1=etcd-1:2380,etcd-2=etcd-2:2380`,
		Args: cobra.NoArgs,
		RunE: a.Body(func(ctx context.Context, _ []string) error {
			if err := f.fill(); err != nil {
				return err
			}
			return runEtcd(ctx, a.Out, f)
		}),
	}
	f.add(cmd)
	cmd.AddCommand(etcdMembersCommand(a), etcdRemoveCommand(a), etcdPromoteCommand(a))
	return cmd
}

func (f *etcdFlags) add(cmd *cobra.Command) {
	flags, c := cmd.Flags(), &f.cfg
	flags.StringVar(&c.Name, "name", "", "name of the member (required)")
	flags.StringVar(&c.Dir, "dir", "", "folder of the member (required)")
	flags.StringVar(&c.Mount, "mount", "",
		"disk of this member alone, which holds --dir: a member without data refuses it where it holds anything else")
	cli.AddressVar(flags, &c.ListenClient, "listen-client", "127.0.0.1:2379", "address for clients")
	cli.AddressVar(flags, &c.ListenPeer, "listen-peer", "127.0.0.1:2380", "address for other members")
	cli.AdvertiseVar(flags, &c.AdvertiseClient, "advertise-client",
		"address that clients reach it by (default: the one it listens on)")
	cli.AdvertiseVar(flags, &c.AdvertisePeer, "advertise-peer",
		"address that members reach it by (default: the one it listens on)")
	flags.StringVar(&f.cluster, "initial-cluster", "",
		"all members, as in a=host:2380,b=host:2380 (default: this one alone)")
	flags.StringVar(&f.state, "initial-cluster-state", "new", "new, or existing: the cluster was formed before")
	flags.BoolVar(&c.Rejoin, "rejoin", true, "where the disk of this member was replaced, join the others as a new member")
	flags.StringVar(&c.Token, "initial-cluster-token", "sheaf",
		"tells clusters apart: a folder of another token is refused")
	flags.StringVar(&c.Snapshots.Dir, "snapshot-dir", "", "folder for snapshots of this member; empty: none are taken")
	flags.DurationVar(&c.Snapshots.Every, "snapshot-every", 30*time.Minute, "between two snapshots")
	flags.IntVar(&c.Snapshots.Keep, "snapshot-keep", 5, "newest snapshots to keep")
	flags.StringVar(&c.CompactionMode, "compaction-mode", "periodic", "how history is dropped: periodic or revision")
	flags.StringVar(&c.CompactionRetention, "compaction-retention", "5m",
		"history to keep: a duration, or a number of revisions")
	flags.DurationVar(&c.DefragEvery, "defrag-every", 24*time.Hour,
		"between two defragmentations, each member at a time of its own; 0: never")
	flags.Var(&f.quota, "quota", "size of the database at which writes are refused, as in 2GiB; 0: 2 GiB")
	flags.StringVar(&c.ClientTLS.Cert, "cert", "", "certificate for clients; TLS is used where one is given")
	flags.StringVar(&c.ClientTLS.Key, "key", "", "its key")
	flags.StringVar(&c.ClientTLS.CA, "client-ca", "", "authorities of clients' certificates, which are asked for then")
	flags.StringVar(&c.PeerTLS.Cert, "peer-cert", "", "certificate for other members; TLS is used where one is given")
	flags.StringVar(&c.PeerTLS.Key, "peer-key", "", "its key")
	flags.StringVar(&c.PeerTLS.CA, "peer-ca", "", "authorities of members' certificates, which are asked for then")
	f.tls.add(cmd)
	cli.AddressVar(flags, &c.ListenPeerTLS, "listen-peer-tls", "127.0.0.1:2382",
		"with --tls-dir: address for other members that speak TLS; --listen-peer serves none then, once TLS is required")
	cli.AdvertiseVar(flags, &c.AdvertisePeerTLS, "advertise-peer-tls",
		"with --tls-dir: address that members reach it by with TLS (default: the one it listens on); one port for all "+
			"members")
	cli.HTTPVar(flags, &f.http, "127.0.0.1:2381", "address of /metrics, /healthz, /readyz and /status; empty: none")
	f.log.add(cmd, "info")
	cli.Complete(cmd, "initial-cluster-state", "new", "existing")
	cli.Complete(cmd, "compaction-mode", "periodic", "revision")
	require(cmd, "name", "dir")
}

// require marks flags as required.
func require(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // a missing flag would fail in every run
		}
	}
}

// fill copies the flags to the configuration.
func (f *etcdFlags) fill() (err error) {
	c := &f.cfg
	switch f.state {
	case "new":
	case "existing":
		c.Existing = true
	default:
		return cli.Usagef("--initial-cluster-state %q: must be new or existing", f.state)
	}
	c.Cluster = map[string]string{}
	for part := range strings.SplitSeq(f.cluster, ",") {
		if part == "" && f.cluster == "" {
			break
		}
		name, address, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" || address == "" || strings.Contains(address, "//") {
			return cli.Usagef("--initial-cluster: %q: must be NAME=HOST:PORT, without a scheme", part)
		}
		if c.Cluster[name] != "" {
			return cli.Usagef("--initial-cluster names %s twice", name)
		}
		c.Cluster[name] = address
	}
	c.QuotaBytes, c.Version = int64(f.quota), version
	c.Logger, err = f.log.logger()
	return err
}

// joinTimeout is how long a member without data waits for the other members before it exits with an error. Its
// supervisor then starts it again.
const joinTimeout = 30 * time.Second

func runEtcd(ctx context.Context, out *cli.Output, f etcdFlags) error {
	// Members call each other over HTTP, which would use a proxy from the environment. etcd has no setting that
	// prevents this.
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if err := os.Setenv(name, "*"); err != nil {
			return err
		}
	}
	var member memberHolder
	source, err := f.tls.open(identity.Identity{Role: identity.Etcd}, f.cfg.Logger, prometheus.DefaultRegisterer)
	if err != nil {
		return err
	}
	if f.cfg.Certs = source; source != nil {
		defer source.Close()
	} else {
		f.cfg.ListenPeerTLS, f.cfg.AdvertisePeerTLS = "", ""
	}
	stopHTTP, err := serveHTTP(ctx, "--http", f.http, member.handler(), prometheus.DefaultRegisterer)
	if err != nil {
		return err
	}
	f.cfg.StartTimeout, f.cfg.JoinTimeout = time.Minute, joinTimeout
	f.cfg.Fatal = func(err error) {
		out.Sayf("sheaf: etcd member %s: %v. Started again, it joins the others as a new member, unless with "+
			"--rejoin=false", f.cfg.Name, err)
		os.Exit(cli.ExitCode(err))
	}
	m, err := etcd.StartMember(ctx, f.cfg)
	if err != nil {
		if ctx.Err() != nil {
			err = nil // stopped on request, which is not an error
		}
		if errors.Is(err, etcd.ErrEmptyExisting) {
			err = cli.LostData(err)
		}
		return errors.Join(err, stopHTTP())
	}
	member.Store(m)
	f.cfg.Logger.Info("etcd serves", "name", f.cfg.Name, "address", m.Endpoint(), "dir", f.cfg.Dir)
	select {
	case <-ctx.Done():
		out.Sayf("stopping")
	case err = <-m.Err():
		err = fmt.Errorf("etcd has failed: %w", err)
	}
	m.Close()
	return errors.Join(err, stopHTTP())
}

// readyTimeout limits how long /readyz waits for an answer from etcd.
const readyTimeout = 2 * time.Second

// handler returns the handler for the member's HTTP port. It works even before the member runs.
func (h *memberHolder) handler() http.Handler {
	mux := http.NewServeMux()
	// etcd registers its metrics in the default registry.
	telemetry.Pages(mux, prometheus.DefaultGatherer, func(ctx context.Context) error {
		m := h.Load()
		if m == nil {
			return errors.New("the member starts")
		}
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		return m.Ready(ctx)
	})
	serve := func(path string, page func(m *etcd.Member, w http.ResponseWriter, r *http.Request)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if m := h.Load(); m != nil {
				page(m, w, r)
			} else {
				http.Error(w, "the member starts", http.StatusServiceUnavailable)
			}
		})
	}
	serve(certs.ReportPath, func(m *etcd.Member, w http.ResponseWriter, r *http.Request) {
		if report, ok := m.Report(); ok {
			report.Serve(w)
		} else {
			http.NotFound(w, r)
		}
	})
	serve("/status", func(m *etcd.Member, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(m.Status()) // fails only if the client has disconnected
	})
	return mux
}

// memberHolder holds the member. It is empty until the member runs.
type memberHolder struct{ atomic.Pointer[etcd.Member] }
