// Package shard is responsible for the replicas on one volume. It identifies and loads the volume, limits the use of
// memory, and serves the replicas over gRPC.
package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/shard/care"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/lead"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/shard/views"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Medium is the kind of disk on which the volume is. Only for HDD are segments read one after another. Auto is
// treated like SSD, because virtual disks often claim to be rotational. If the device contradicts the configured
// medium, a warning is logged.
type Medium string

// These are the values of Medium.
const (
	Auto Medium = "Auto"
	SSD  Medium = "SSD"
	HDD  Medium = "HDD"
)

// Config configures a shard. Name, Dir, Listen and Placement are required.
type Config struct {
	Name      string // 1 to 253 bytes of [a-z0-9.-]
	Dir       string // folder of the volume
	Listen    string // host:port for gRPC; port 0 means any free port
	Advertise string // host:port at which others reach the shard; if empty, the listener's address
	Domain    string // failure domain; the default is Node, or Name if there is no Node
	Node      string // name of the shard's node, for the registration and the status; may be empty
	Zone      string

	// Wanted contains conditions that the volume must meet. They are checked before anything on the volume is changed.
	Wanted host.Wanted
	// Stay decides what the Host does if the volume cannot be served. If Stay is set, the Host keeps running and reports
	// the reason. Otherwise it stops with the error.
	Stay bool

	Residency group.Residency
	Medium    Medium // the default is Auto
	// MemoryLimitBytes limits the memory for the index and the resident images of all groups together. If it is 0, there
	// is no limit. The rest of the process, such as the Go heap and messages in flight, needs additional memory.
	MemoryLimitBytes int64
	ReserveBytes     int64 // see volume.Options
	SegmentBytes     int64 // see group.Options
	Retention        group.Retention

	// TrashDelay is how long the files of a replica are kept after it has left its group. If it is 0, they are kept for
	// 1 h.
	TrashDelay time.Duration
	// NoReadLease makes leaders contact a majority of the copies before each read (see replica.Options.Lease). It is
	// meant for machines whose clocks may stop while those of others continue.
	NoReadLease bool
	// Audit is the log for the events (guard.Event) of calls that Secure checks. If it is nil, no events are logged.
	Audit *guard.Audit
	// PeerCredentials returns the credentials for connections to the shard with the given name. If it is nil, these
	// connections do not use TLS.
	PeerCredentials func(shard string) credentials.TransportCredentials
	// SourceCredentials returns the credentials for connections to the source of a restore. If it is nil, these
	// connections do not use TLS.
	SourceCredentials func() credentials.TransportCredentials
	// SpeaksFor reports whether the peer of a connection may act on behalf of a shard. If it is nil (without TLS), every
	// peer may.
	SpeaksFor func(ctx context.Context, shard string) bool

	Placement  Registry
	Limits     Limits
	Compaction Compaction

	// ReportInterval is the interval between two checks of the groups' sizes. If it is 0, the interval is 3 s. A large
	// change is reported to etcd after three checks at the earliest, and any other change once a minute.
	ReportInterval time.Duration
	Version        string                // version of the binary, reported in the status
	Registry       prometheus.Registerer // if it is nil, metrics are not exported
	Logger         *slog.Logger          // if it is nil, messages are discarded
	FS             vfs.FS                // if it is nil, the operating system's file system is used
	// ListenConfig opens the socket of the gRPC server. Secure adds the flood limits to it.
	ListenConfig net.ListenConfig
	// Listener opens the listener on which the gRPC server accepts connections, and Dial connects to the address of
	// another shard. If they are nil, TCP is used. Tests use in-memory connections instead.
	Listener func(ctx context.Context, address string) (net.Listener, error)
	Dial     func(ctx context.Context, address string) (net.Conn, error)
	// ServerOptions are additional options for the gRPC server, such as credentials, tracing, and hooks for tests.
	ServerOptions []grpc.ServerOption
	Tracer        trace.Tracer // records spans for traced calls; if it is nil, there are no spans

	watched bool // whether the memory of incomplete messages is limited by credentials from Secure

	tables *tables        // source of the table of grants, which Secure follows
	server *host.Server   // server of the Host; if it is nil, the shard creates its own
	probe  *replica.Probe // lets tests observe all replicas; nil otherwise
	off    rules.Off      // rules that a test has switched off
	times  host.Times     // intervals of the Host; shorter in tests
	// repairEvery is the interval between two searches for damage, and scrubPause is the pause between two scrubs, each
	// of which reads everything. Both are shorter in tests.
	repairEvery, scrubPause time.Duration
	stepEvery               time.Duration // interval between two steps of the volume; shorter in tests
	// rememberQuiet is the interval at which the volume records etcd's revision while nothing changes. It is shorter in
	// tests.
	rememberQuiet time.Duration
	// Calls and syncs that take longer than these times are recorded as slow. Both times are shorter in tests.
	slowCallMin, slowSyncMin time.Duration
	// scrubBytesPerSecond is higher in tests. If it is negative, nothing is scrubbed.
	scrubBytesPerSecond int64
	callsMax            int           // maximum number of calls; lower in tests
	sendTimeout         time.Duration // shorter or longer in tests
}

const (
	// bytesInFlightMax is the default of Limits.BytesInFlightMax.
	bytesInFlightMax = 256 << 20
	// callsMax is the maximum number of concurrent calls. Any further call fails with OVERLOADED. This limits the memory
	// of calls that wait.
	callsMax = 16384
	// sendTimeout is how long a message of a stream may wait for its caller to read it. After that, the stream is
	// aborted with SLOW_READER, because it holds memory that other calls need.
	sendTimeout = time.Minute
	// scrubBytesPerSecond is the rate at which groups with several copies are read again and again in search of damage.
	// It is only a small fraction of a disk's bandwidth, but enough to read 1 TiB in three days.
	scrubBytesPerSecond = 4 << 20
)

// Limits are limits that a program can adapt to its memory and network. A field that is zero stands for its default.
type Limits struct {
	// BytesInFlightMax limits the bytes of writes in progress. Beyond it, calls fail with OVERLOADED. The default is 256
	// MiB.
	BytesInFlightMax int64
	// AnswerBytesMax limits the data in responses that are being prepared, or that their callers have not read yet.
	// Beyond it, calls fail with OVERLOADED. The default is 256 MiB.
	AnswerBytesMax int64
	// ScansReadingMax limits the number of scans that read from the log at the same time. Each of them uses 16 MiB if
	// its data is not cached. Further scans wait. The default is 16.
	ScansReadingMax         int
	ReplicaBytesInFlightMax int64 // see replica.Options; 0 means 64 MiB
	FetchBytesPerSecond     int64 // rate at which files are sent to all other shards; 0 means no limit
}

// unfinishedMax returns the limit on the memory of incomplete messages. If it is exceeded, the connection that holds
// the most is closed.
func (l *Limits) unfinishedMax() int64 {
	return max(cmp.Or(l.BytesInFlightMax, bytesInFlightMax)/2, 2*message.RefusedBytesMax)
}

// Compaction configures background compaction. A field that is zero stands for its default.
type Compaction = care.Compaction

// Registry contains the methods of *registry.Store that a shard needs. They are documented there.
type Registry interface {
	follow.Etcd
	Meta(ctx context.Context) (placement.Meta, error)
	MayRegister(ctx context.Context, s placement.Shard) (registered placement.Step, err error)
	RegisterShard(ctx context.Context, s placement.Shard, refused ...func(error)) (stop func(), err error)
	NextStep(ctx context.Context, s placement.Shard) error
	WatchAccess(ctx context.Context) <-chan registry.Access
	SigningKey(ctx context.Context) ([]byte, error)
	care.Etcd
	lead.Etcd
	quota.Etcd
	views.Etcd
	PutWeights(ctx context.Context, shard string, weights map[string]registry.Weight) error
	DeleteGroup(ctx context.Context, g placement.Group) error
	LastAnswer() (last time.Time, held string)
}

var _ Registry = (*registry.Store)(nil)

func (c *Config) setDefaults() {
	c.Medium = cmp.Or(c.Medium, Auto)
	c.Domain = cmp.Or(c.Domain, c.Node, c.Name)
	c.ReportInterval = cmp.Or(c.ReportInterval, 3*time.Second)
	if c.FS == nil {
		c.FS = vfs.OS{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	l := &c.Limits
	l.BytesInFlightMax = cmp.Or(l.BytesInFlightMax, bytesInFlightMax)
	l.AnswerBytesMax = cmp.Or(l.AnswerBytesMax, 256<<20)
	l.ScansReadingMax = cmp.Or(l.ScansReadingMax, 16)
	l.ReplicaBytesInFlightMax = cmp.Or(l.ReplicaBytesInFlightMax, 64<<20)
	c.callsMax = cmp.Or(c.callsMax, callsMax)
	c.sendTimeout = cmp.Or(c.sendTimeout, sendTimeout)
	c.TrashDelay = cmp.Or(c.TrashDelay, time.Hour)
	c.scrubBytesPerSecond = cmp.Or(c.scrubBytesPerSecond, scrubBytesPerSecond)
	c.stepEvery = cmp.Or(c.stepEvery, stepEvery)
	c.rememberQuiet = cmp.Or(c.rememberQuiet, time.Minute)
	c.slowCallMin = cmp.Or(c.slowCallMin, slowCallMin)
	c.slowSyncMin = cmp.Or(c.slowSyncMin, slowSyncMin)
	k := &c.Compaction
	k.SupersededShareMin = cmp.Or(k.SupersededShareMin, 0.5)
	k.SupersededBytesMin = cmp.Or(k.SupersededBytesMin, 64<<20)
	k.RateBytesPerSecond = cmp.Or(k.RateBytesPerSecond, 64<<20)
	k.Interval = cmp.Or(k.Interval, 30*time.Second)
}

// validate returns an error that names every invalid field.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := placement.ValidateShardName(c.Name); err != nil {
		errs = append(errs, err)
	}
	if c.Dir == "" {
		bad("dir is empty: give the folder of the volume")
	}
	if c.Listen == "" {
		bad("listen is empty: give host:port")
	}
	if c.Placement == nil {
		bad("placement is missing")
	}
	if c.Residency != group.Index && c.Residency != group.Resident {
		bad("residency %d is unknown: Index or Resident", c.Residency)
	}
	switch c.Medium {
	case Auto, SSD, HDD:
	default:
		bad("medium %q is unknown: SSD, HDD or Auto", c.Medium)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"memory limit", c.MemoryLimitBytes},
		{"reserve", c.ReserveBytes},
		{"segment size", c.SegmentBytes},
		{"limit of bytes in flight", c.Limits.BytesInFlightMax},
		{"limit of bytes of answers", c.Limits.AnswerBytesMax},
		{"limit of scans reading", int64(c.Limits.ScansReadingMax)},
		{"limit of bytes in flight of a replica", c.Limits.ReplicaBytesInFlightMax},
		{"byte rate to other shards", c.Limits.FetchBytesPerSecond},
		{"limit of bytes held for an archive", c.Compaction.HoldBytesMax},
		{"limit of bytes held for views", c.Compaction.ViewsHeldMax},
		{"delay of the trash", int64(c.TrashDelay)},
		{"retention's versions", int64(c.Retention.Versions)},
		{"retention's age", int64(c.Retention.MinAge)},
	} {
		if f.value < 0 {
			bad("%s is negative: %d", f.name, f.value)
		}
	}
	if s := c.Compaction.SupersededShareMin; !(s > 0 && s <= 1) {
		bad("compaction's superseded share %v: give a share above 0, up to 1", s)
	}
	return errors.Join(errs...)
}
