package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/internal/security/certs"
)

// MemberConfig configures one member of a cluster. Name, Dir, ListenClient and ListenPeer are required.
type MemberConfig struct {
	Name string
	Dir  string
	// Mount is the root of a file system that contains Dir and that only this member uses. It is empty if there is no
	// such file system. A member without data does not start if Mount contains anything other than Dir, the snapshot
	// folder and lost+found.
	Mount string

	ListenClient, ListenPeer       string // host:port
	AdvertiseClient, AdvertisePeer string // host:port; an empty string means the listen address

	// Cluster maps the names of the members to their peer addresses (host:port). If it is empty, the cluster has only
	// this member.
	Cluster map[string]string
	// Existing means that the cluster was formed earlier. If this member's folder is empty, the member then either joins
	// the others or fails, but never forms a new cluster.
	Existing bool
	Token    string // distinguishes clusters; if empty, "sheaf"

	ClientTLS, PeerTLS TLSFiles

	// Certs, if not nil, holds the certificates of this member, and replaces ClientTLS and PeerTLS. Only clients that
	// belong to the store are then accepted. Client connections use the current content of Certs. Peer connections use
	// the content and the mode that Certs had when the member started. All members share one certificate, which contains
	// the hosts of all members.
	Certs *certs.Source
	// ListenPeerTLS and AdvertisePeerTLS are the addresses (host:port) for peers that use TLS. They have an effect only
	// if Certs is set. All members use the same port for TLS.
	ListenPeerTLS, AdvertisePeerTLS string

	// CompactionMode is "periodic", in which case CompactionRetention is a duration, or "revision", in which case
	// CompactionRetention is a number of revisions. The default is "periodic" with 5m.
	CompactionMode, CompactionRetention string
	QuotaBytes                          int64 // 0 means 2 GiB

	Snapshots   SnapshotConfig
	DefragEvery time.Duration // 0 means never

	// Rejoin lets a member that has lost its data join the others as a new member. It takes effect if the folder is
	// empty, or if it lacks entries that this member has acknowledged. A quorum of the other members must respond, and
	// all of them must be healthy. The old data in the folder is set aside, and is deleted once the member votes again.
	// If Rejoin is false, such a member does not start.
	Rejoin bool
	// JoinTimeout limits how long this member waits for the others before etcd starts. The member waits only if it
	// cannot start with the content of its folder alone. If JoinTimeout is 0, it queries the others only once.
	JoinTimeout time.Duration
	// Fatal is called if etcd cannot continue with this folder. Fatal must not return. If Fatal is nil, etcd panics
	// instead. In both cases, the reason is stored for the next start.
	Fatal func(error)

	// StartTimeout limits how long a starting member waits for the cluster. If it is 0, there is no limit. While the
	// member waits, it counts as alive but not as ready.
	StartTimeout time.Duration
	Logger       *slog.Logger // if it is nil, messages are discarded
	Version      string

	started *certs.Report // report that Certs gave when the member was configured; nil without Certs
	// others lists the other members in the syntax of etcd's initial cluster, if this member joins them. If others is
	// empty, Cluster is the initial cluster.
	others string
}

// TLSFiles names the certificate files for one kind of etcd connections: either those with clients or those with
// peers. The files are read again for each connection.
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

// StartMember returns one of these errors if a retry is useless until the other members have changed.
var (
	// ErrOtherCluster means that the folder belongs to another cluster or member.
	ErrOtherCluster = errors.New("the folder belongs to another etcd")
	// ErrForeign means that the disk or the folder contains something that does not belong to this member. In that case
	// nothing was written.
	ErrForeign = errors.New("the disk is not empty and holds no data of this member")
	// ErrNotTheMember means that, according to the cluster, this member once had data that the folder lacks.
	ErrNotTheMember = errors.New("the folder is not that of the member that the cluster knows")
	// ErrEmptyExisting means that the folder is empty, and that no quorum of the existing cluster responds.
	ErrEmptyExisting = errors.New("the folder is empty, and the cluster was formed before")
)

// Member is a running member.
type Member struct {
	cfg    MemberConfig
	logger *slog.Logger
	etcd   *embed.Etcd
	server *Server
	http   hiddenHTTP
	client *clientv3.Client // client that connects inside the process

	cancel context.CancelFunc
	wait   sync.WaitGroup
	// failed is a channel of capacity 1. It receives the reason if the member stops without a call to Close.
	failed chan error

	mu   sync.Mutex // guards the field care
	care careStatus
}

// StartMember starts a member, and returns when the member serves requests. If the cluster has no quorum yet,
// StartMember returns as soon as the member listens. Ready tells whether the member serves requests.
func StartMember(ctx context.Context, cfg MemberConfig) (*Member, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", cfg.Name, err)
	}
	if err := cfg.takeFolder(); err != nil {
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
	if m.http, err = cfg.hideHTTP(ec); err != nil {
		return nil, fmt.Errorf("etcd member %s in %s: %w", cfg.Name, cfg.Dir, err)
	}
	server, err := start(ec)
	if removed := m.http.remove(); removed != nil && err == nil {
		server.Close()
		err = fmt.Errorf("delete the socket of etcd's HTTP: %w", removed)
	}
	if err != nil {
		m.http.close()
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
	var late <-chan time.Time
	if cfg.StartTimeout != 0 {
		late = time.After(cfg.StartTimeout)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-m.failed:
		m.Close()
		return nil, fmt.Errorf("etcd member %s in %s: %w", cfg.Name, cfg.Dir, err)
	case <-ctx.Done():
		m.Close()
		return nil, ctx.Err()
	case <-late:
		m.logger.Warn("etcd waits for its cluster", "name", cfg.Name, "waited", cfg.StartTimeout)
	}
	return m, nil
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
	// An invalid address is reported here, before the member takes the folder. etcd itself would report it only later.
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

// everywhere adds the host 0.0.0.0, which stands for all addresses, to an address without a host, such as ":2380".
// Other programs accept such an address and listen on all addresses, but etcd requires an explicit IP address.
func everywhere(address string) string {
	if strings.HasPrefix(address, ":") {
		return "0.0.0.0" + address
	}
	return address
}

func (c *MemberConfig) embed() *embed.Config {
	ec := embed.NewConfig()
	ec.Name, ec.Dir = c.Name, filepath.Clean(c.Dir)
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&zapCore{logger: c.Logger,
		last: func(entry zapcore.Entry, _ map[string]any) { c.panics(entry.Message) }}))
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
		// A single member has no others to wait for, so the only effect of short ticks is a faster election at the start.
		ec.TickMs, ec.ElectionMs = 10, 100
	}
	return ec
}

func (c *MemberConfig) members() []string { return slices.Sorted(maps.Keys(c.Cluster)) }

// Ready returns nil if the member serves requests. To find out, it makes a read that goes through the leader.
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

// Endpoint returns the client address on which the member listens.
func (m *Member) Endpoint() string {
	for _, l := range m.etcd.Clients {
		if l.Addr().Network() == "tcp" { // the other listener is the Unix socket that hideHTTP creates
			return l.Addr().String()
		}
	}
	return ""
}

// errRemoved is reported by a member that was removed from the cluster by the others. It exists because etcd stops
// without an error in that case.
var errRemoved = errors.New(
	"it has stopped: the others have removed this member. Started again, it joins them as a new one")

// awaitEnd waits until etcd stops, and reports the reason if Close was not called.
func (m *Member) awaitEnd(ctx context.Context) {
	select {
	case err := <-m.etcd.Err():
		m.failed <- err
	case <-m.etcd.Server.StopNotify():
		m.failed <- errRemoved
	case <-ctx.Done():
	}
}

// Err returns a channel that receives an error if the member fails, or if the other members remove it.
func (m *Member) Err() <-chan error { return m.failed }

// Close stops the member cleanly, and leaves its data on disk. Calls in progress are aborted, and their clients see
// UNAVAILABLE.
func (m *Member) Close() {
	m.cancel()
	m.wait.Wait()
	select {
	case <-m.etcd.Server.ReadyNotify():
	default:
		m.etcd.Server.HardStop() // Close would wait for the rest of the cluster
	}
	m.server.Close()
	m.http.close()
}

// panics receives the message that etcd logs just before it panics.
func (c *MemberConfig) panics(words string) {
	if !missingEntries.MatchString(words) {
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

// missingEntries matches a message of etcd's Raft library. The library logs it if the folder lacks entries whose
// storage this member has acknowledged to the leader.
var missingEntries = regexp.MustCompile(`tocommit\(\d+\) is out of range`)
