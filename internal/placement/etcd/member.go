package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/internal/security/certs"
)

// MemberConfig of one member of a cluster. Name, Dir, ListenClient and ListenPeer are required.
type MemberConfig struct {
	Name string
	Dir  string

	ListenClient, ListenPeer       string // host:port
	AdvertiseClient, AdvertisePeer string // host:port; empty: what it listens on

	// Cluster is the members by name and peer address, host:port; empty: this one alone.
	Cluster map[string]string
	// Existing: the cluster was formed before. An empty folder then joins the members that are there, or fails: it
	// never forms a new one.
	Existing bool
	Token    string // tells clusters apart; empty: "sheaf"

	ClientTLS, PeerTLS TLSFiles

	// Certs are the certificates of this member, in the place of ClientTLS and PeerTLS; nil: none. Clients must be of
	// the store. Their connections follow what Certs has; those of members what it had at the start, with its mode.
	// Members have one certificate for all, with the hosts of all.
	Certs *certs.Source
	// ListenPeerTLS and AdvertisePeerTLS are the addresses for members that speak TLS, host:port; with Certs alone. All
	// members have the same port there.
	ListenPeerTLS, AdvertisePeerTLS string

	// CompactionMode: periodic (Retention is a duration) or revision (Retention is a number of revisions); empty:
	// periodic, 5m.
	CompactionMode, CompactionRetention string
	QuotaBytes                          int64 // 0: 2 GiB

	Snapshots   SnapshotConfig
	DefragEvery time.Duration // 0: never

	// Rejoin lets a member whose data are lost join the others as a new one: where its folder is empty or lacks what
	// the cluster counts on, while a quorum of the others is there, and all of them are well. What the folder held is
	// set aside, and removed once the member votes again. Without it such a member does not start.
	Rejoin bool
	// JoinTimeout: how long to wait for the other members before etcd starts, where the folder alone is not enough; 0:
	// one look.
	JoinTimeout time.Duration
	// Fatal is called where etcd cannot go on with this folder, and must not return; nil: etcd panics. The next start
	// knows why.
	Fatal func(error)

	// StartTimeout: how long to wait for the cluster at the start; 0: for ever. A member that waits is not ready, and
	// lives.
	StartTimeout time.Duration
	Logger       *slog.Logger // nil: discards
	Version      string

	started *certs.Report // what Certs had when the member was configured; nil: there are none
	// the other members, as etcd wants them for its initial cluster, where this one joins them; empty: as Cluster says
	others string
}

// TLSFiles are the files of one side of etcd. They are read again for each connection.
type TLSFiles struct{ Cert, Key, CA string }

func (f TLSFiles) used() bool { return f.Cert != "" || f.Key != "" || f.CA != "" }

func (f TLSFiles) check(what string) error {
	if !f.used() {
		return nil
	}
	if f.Cert == "" || f.Key == "" {
		return fmt.Errorf("%s: TLS needs a certificate file and a key file", what)
	}
	for _, name := range []string{f.Cert, f.Key, f.CA} {
		if name == "" {
			continue
		}
		if _, err := os.Stat(name); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

func (f TLSFiles) info() transport.TLSInfo {
	return transport.TLSInfo{CertFile: f.Cert, KeyFile: f.Key, TrustedCAFile: f.CA, ClientCertAuth: f.CA != ""}
}

func (f TLSFiles) url(address string) url.URL {
	scheme := "http"
	if f.used() {
		scheme = "https"
	}
	return url.URL{Scheme: scheme, Host: address}
}

// Errors of StartMember that no retry heals, unless other members come back.
var (
	// ErrOtherCluster: the folder is of another cluster or member.
	ErrOtherCluster = errors.New("the folder belongs to another etcd")
	// ErrNotTheMember: the folder has not what the cluster knows this member to have.
	ErrNotTheMember = errors.New("the folder is not that of the member that the cluster knows")
	// ErrEmptyExisting: the folder is empty, and the cluster that it is to join is not there.
	ErrEmptyExisting = errors.New("the folder is empty, and the cluster was formed before")
)

// Member is a running member.
type Member struct {
	cfg    MemberConfig
	logger *slog.Logger
	etcd   *embed.Etcd
	server *Server
	client *clientv3.Client // inside the process

	cancel context.CancelFunc
	wait   sync.WaitGroup
	failed chan error // one: why the member has ended by itself

	mu   sync.Mutex // guards care
	care careState
}

// StartMember starts a member and returns when it serves or, where the cluster has no quorum yet, when it listens:
// Ready says whether it serves.
func StartMember(ctx context.Context, cfg MemberConfig) (*Member, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", cfg.Name, err)
	}
	if err := cfg.claim(); err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", cfg.Name, err)
	}
	joins, err := cfg.prepare(ctx)
	if err != nil {
		return nil, fmt.Errorf("etcd member %s in %s: %w", cfg.Name, cfg.Dir, err)
	}
	m := &Member{cfg: cfg, logger: cfg.Logger, server: &Server{closing: make(chan struct{})}, failed: make(chan error, 1)}
	ec := cfg.embed()
	if joins {
		ec.ClusterState = embed.ClusterStateFlagExisting
	}
	if joins && cfg.others != "" {
		ec.InitialCluster = cfg.others + "," + cfg.Name + "=" + cfg.peerURL(cfg.AdvertisePeer)
	}
	ec.GRPCAdditionalServerOptions = append(ec.GRPCAdditionalServerOptions,
		grpc.ChainStreamInterceptor(m.server.endStreams))
	server, err := start(ec)
	if err != nil {
		return nil, fmt.Errorf("etcd member %s in %s: %w", cfg.Name, cfg.Dir, err)
	}
	m.etcd, m.server.etcd = server, server
	m.client = v3client.New(server.Server)
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.cancel = cancel
	m.wait.Go(func() { m.awaitEnd(background) })
	m.wait.Go(func() { m.takeSnapshots(background) })
	m.wait.Go(func() { m.defragment(background) })
	m.wait.Go(func() { m.becomeVoter(background) })
	m.wait.Go(func() { m.announce(background) })
	select {
	case <-server.Server.ReadyNotify():
	case err := <-m.failed:
		m.Close()
		return nil, fmt.Errorf("etcd member %s in %s: %w", cfg.Name, cfg.Dir, err)
	case <-ctx.Done():
		m.Close()
		return nil, ctx.Err()
	case <-after(cfg.StartTimeout):
		m.logger.Warn("etcd waits for its cluster", "name", cfg.Name, "waited", cfg.StartTimeout)
	}
	return m, nil
}

// after never fires for zero.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

func (c *MemberConfig) setDefaults() error {
	var errs []error
	for _, f := range []struct{ what, value string }{
		{"name", c.Name}, {"folder", c.Dir}, {"address for clients", c.ListenClient}, {"address for peers", c.ListenPeer},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("the %s is empty", f.what))
		}
	}
	if strings.ContainsAny(c.Name, "=,/ ") {
		errs = append(errs, fmt.Errorf("name %q: letters, digits, dots and dashes", c.Name))
	}
	setDefault(&c.AdvertiseClient, c.ListenClient)
	setDefault(&c.AdvertisePeer, c.ListenPeer)
	errs = append(errs, c.setSecure())
	for _, address := range []string{c.ListenClient, c.ListenPeer, c.ListenPeerTLS, c.AdvertiseClient, c.AdvertisePeer,
		c.AdvertisePeerTLS} {
		if _, _, err := net.SplitHostPort(address); err != nil && address != "" {
			errs = append(errs, fmt.Errorf("address %q: give host:port: %w", address, err))
		}
	}
	// what etcd itself would say only after the folder was claimed
	for _, address := range []string{c.ListenClient, c.ListenPeer, c.ListenPeerTLS} {
		if host, _, err := net.SplitHostPort(address); err == nil && host != "" && host != "localhost" &&
			net.ParseIP(host) == nil {
			errs = append(errs, fmt.Errorf(
				"address %q: etcd listens on an IP, not on a name: give one, or none (\":PORT\") for all; advertise the name",
				address))
		}
	}
	if len(c.Cluster) == 0 {
		c.Cluster = map[string]string{c.Name: c.AdvertisePeer}
	}
	if c.Cluster[c.Name] == "" {
		errs = append(errs, fmt.Errorf("the initial cluster does not name %q", c.Name))
	} else if c.Cluster[c.Name] != c.AdvertisePeer {
		errs = append(errs, fmt.Errorf("the initial cluster has %s at %s, but it advertises %s", c.Name, c.Cluster[c.Name],
			c.AdvertisePeer))
	}
	setDefault(&c.Token, "sheaf")
	setDefault(&c.QuotaBytes, quotaBytes)
	setDefault(&c.CompactionMode, embed.CompactorModePeriodic)
	if c.CompactionMode == embed.CompactorModePeriodic {
		setDefault(&c.CompactionRetention, "5m")
	}
	switch {
	case c.CompactionMode != embed.CompactorModePeriodic && c.CompactionMode != embed.CompactorModeRevision:
		errs = append(errs, fmt.Errorf("compaction mode %q: must be periodic or revision", c.CompactionMode))
	case c.QuotaBytes < 16<<20:
		errs = append(errs, fmt.Errorf("a quota of %d bytes: give at least 16 MiB", c.QuotaBytes))
	case c.DefragEvery < 0 || c.Snapshots.Every < 0 || c.Snapshots.Keep < 0:
		errs = append(errs, errors.New("intervals and numbers of snapshots must not be negative"))
	}
	if c.Snapshots.Dir != "" {
		setDefault(&c.Snapshots.Every, 30*time.Minute)
		setDefault(&c.Snapshots.Keep, 5)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(append(errs, c.ClientTLS.check("clients"), c.PeerTLS.check("peers"))...)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// everywhere is the address with a host: etcd wants an IP, where other programs take no host for all addresses.
func everywhere(address string) string {
	if strings.HasPrefix(address, ":") {
		return "0.0.0.0" + address
	}
	return address
}

func (c *MemberConfig) embed() *embed.Config {
	ec := embed.NewConfig()
	ec.Name, ec.Dir = c.Name, filepath.Clean(c.Dir)
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&zapCore{logger: c.Logger, panics: c.panics}))
	ec.ListenClientUrls = []url.URL{c.ClientTLS.url(everywhere(c.ListenClient))}
	ec.ListenPeerUrls = []url.URL{c.PeerTLS.url(everywhere(c.ListenPeer))}
	ec.AdvertiseClientUrls = []url.URL{c.ClientTLS.url(c.AdvertiseClient)}
	ec.AdvertisePeerUrls = []url.URL{c.PeerTLS.url(c.AdvertisePeer)}
	ec.ClientTLSInfo, ec.PeerTLSInfo = c.ClientTLS.info(), c.PeerTLS.info()
	c.secure(ec)
	members := make([]string, 0, len(c.Cluster))
	for _, name := range c.members() {
		members = append(members, name+"="+c.peerURL(c.Cluster[name]))
	}
	ec.InitialCluster, ec.InitialClusterToken = strings.Join(members, ","), c.Token
	ec.ClusterState = embed.ClusterStateFlagNew
	if c.Existing {
		ec.ClusterState = embed.ClusterStateFlagExisting
	}
	ec.StrictReconfigCheck, ec.PreVote = true, true
	ec.AutoCompactionMode, ec.AutoCompactionRetention = c.CompactionMode, c.CompactionRetention
	ec.WatchProgressNotifyInterval = progressEvery
	ec.QuotaBackendBytes = c.QuotaBytes
	if len(c.Cluster) == 1 {
		ec.TickMs, ec.ElectionMs = 10, 100 // nobody to wait for: short ticks only shorten its election at the start
	}
	return ec
}

// members by name.
func (c *MemberConfig) members() []string {
	names := make([]string, 0, len(c.Cluster))
	for name := range c.Cluster {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Ready is nil when the member serves: a read through the leader works.
func (m *Member) Ready(ctx context.Context) error {
	select {
	case <-m.etcd.Server.ReadyNotify():
	default:
		return errors.New("the member has not joined its cluster yet: are the other members up?")
	}
	if m.learns() {
		return errors.New("the member is a learner: it copies the log of the others, and votes once it has it")
	}
	if _, err := m.client.Get(ctx, "ready"); err != nil {
		return fmt.Errorf("a read through the leader fails: %w", err)
	}
	return nil
}

// Endpoint for clients: what it listens on.
func (m *Member) Endpoint() string {
	for _, l := range m.etcd.Clients {
		if l.Addr().Network() == "tcp" { // not its HTTP, see secure
			return l.Addr().String()
		}
	}
	return ""
}

// errRemoved: etcd stops without an error where the others have forgotten the member.
var errRemoved = errors.New(
	"it has stopped: the others have removed this member. Started again, it joins them as a new one")

// awaitEnd notices that etcd ends by itself.
func (m *Member) awaitEnd(ctx context.Context) {
	select {
	case err := <-m.etcd.Err():
		m.failed <- err
	case <-m.etcd.Server.StopNotify():
		m.failed <- errRemoved
	case <-ctx.Done():
	}
}

// Err reports when the member fails by itself, or the others have removed it.
func (m *Member) Err() <-chan error { return m.failed }

// Close stops the member cleanly: what it stored is on disk. Calls are cut; clients see UNAVAILABLE.
func (m *Member) Close() {
	m.cancel()
	m.wait.Wait()
	select {
	case <-m.etcd.Server.ReadyNotify():
	default:
		m.etcd.Server.HardStop() // Close would wait for the cluster
	}
	m.server.Close()
}

// panics is told what etcd says just before it panics.
func (c *MemberConfig) panics(words string) {
	if !lacksEntries.MatchString(words) {
		return
	}
	err := fmt.Errorf(
		"the folder %s lacks entries that the cluster counts on: %s. The disk was replaced, or set back to an older state",
		c.Dir, words)
	if failed := c.markBehind(words); failed != nil {
		err = fmt.Errorf("%w; and that could not be noted for the next start: %w", err, failed)
	}
	if c.Fatal != nil {
		c.Fatal(err)
	}
}

// lacksEntries is what the log of Raft says where the leader has had an acknowledgement of entries that this folder
// lacks.
var lacksEntries = regexp.MustCompile(`tocommit\(\d+\) is out of range`)
