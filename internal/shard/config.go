// Package shard owns the replicas of one volume. It identifies and loads the volume, bounds the memory, and serves
// the replicas over gRPC.
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
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Medium is the kind of disk under the volume. Segments are read one after another only if the configuration says HDD.
// Auto counts as SSD, because virtual disks often report themselves as rotational. A warning is logged if the device
// contradicts the configured medium.
type Medium string

// These are the media.
const (
	Auto Medium = "Auto"
	SSD  Medium = "SSD"
	HDD  Medium = "HDD"
)

// Config configures a shard. Name, Dir, Listen and Placement are required.
type Config struct {
	Name      string // 1 to 253 bytes of [a-z0-9.-]
	Dir       string // the volume's folder
	Listen    string // host:port for gRPC; port 0 means any free port
	Advertise string // host:port under which others reach the shard; empty: the address of the listener
	Domain    string // failure domain; the default is Node or, without a Node, Name
	Node      string // name of the shard's node, for the registration and the status; may be empty
	Zone      string

	// Wanted holds conditions on the volume, which are checked before the volume is changed.
	Wanted host.Wanted
	// Stay decides what happens if the volume cannot be served. With Stay, the Host keeps running and reports the reason.
	// Without Stay, the Host stops with the error.
	Stay bool

	Residency group.Residency
	Medium    Medium // the default is Auto
	// MemoryLimitBytes bounds the index and the resident images of all groups together. 0 means that there is no limit.
	// The rest of the process (Go heap, messages in flight) needs additional memory.
	MemoryLimitBytes int64
	ReserveBytes     int64 // see volume.Options
	SegmentBytes     int64 // see group.Options
	Retention        group.Retention

	// TrashDelay is how long the files of a replica that has left its group are kept. 0 means 1 h.
	TrashDelay time.Duration
	// NoReadLease makes leaders contact a majority of copies before each read (see replica.Options.Lease). It is for
	// machines whose clocks may stand still while other clocks run.
	NoReadLease bool
	// Audit is the audit log for the calls that Secure checks (guard.Event). If it is nil, no events are logged.
	Audit *guard.Audit
	// PeerCredentials returns the credentials for connections to another shard, by the name of that shard. If it is
	// nil, TLS is not used.
	PeerCredentials func(shard string) credentials.TransportCredentials
	// SpeaksFor reports whether a connection may speak for a shard. If it is nil (without TLS), every shard is trusted.
	SpeaksFor func(ctx context.Context, shard string) bool

	Placement  Registry
	Limits     Limits
	Compaction Compaction

	// ReportInterval is the time between two checks of group sizes. 0 means 3 s. Large changes are reported to etcd after
	// at least three checks, and all others once a minute.
	ReportInterval time.Duration
	Version        string                // version of the binary, reported in the status
	Registry       prometheus.Registerer // metrics are not exported if it is nil
	Logger         *slog.Logger          // nil discards all messages
	FS             vfs.FS                // nil means the operating system's file system
	// ListenConfig opens the gRPC server's socket. The flood limits set it.
	ListenConfig net.ListenConfig
	// Listener opens the listener from which the gRPC server accepts connections, and Dial connects to an address of
	// another shard. If they are nil, TCP is used. Tests use in-memory connections.
	Listener func(ctx context.Context, address string) (net.Listener, error)
	Dial     func(ctx context.Context, address string) (net.Conn, error)
	// ServerOptions are additional options of the gRPC server: credentials, traces, hooks for tests.
	ServerOptions []grpc.ServerOption
	Tracer        trace.Tracer // for spans inside traced calls; nil: no spans

	watched bool // whether the credentials that Secure has set limit incomplete messages

	tables *tables        // source of the grants table, which Secure follows
	server *host.Server   // the server of a Host; nil: the shard has its own
	probe  *replica.Probe // observes all replicas in tests; nil elsewhere
	off    rules.Off      // rules that a test switches off
	times  host.Times     // intervals of a Host; shorter in tests
	// repairEvery is the time between two searches for damage, and scrubPause is the time between two scrubs, which
	// read everything. Both are shorter in tests.
	repairEvery, scrubPause time.Duration
	stepEvery               time.Duration // shorter in tests
	rememberQuiet           time.Duration // shorter in tests
	// Calls and syncs that take longer than these times are recorded as slow. Both times are shorter in tests.
	slowCallMin, slowSyncMin time.Duration
	// scrubBytesPerSecond is higher in tests; a negative number means that nothing is scrubbed.
	scrubBytesPerSecond int64
	callsMax            int           // fewer in tests
	sendTimeout         time.Duration // shorter or longer in tests
}

const (
	// bytesInFlightMax is the default of Limits.BytesInFlightMax.
	bytesInFlightMax = 256 << 20
	// callsMax is the number of concurrent calls above which calls get OVERLOADED. It bounds the memory of calls that
	// wait.
	callsMax = 16384
	// sendTimeout is how long one message of a stream may wait until the caller reads it. After that time, the stream is
	// aborted with SLOW_READER, because it holds memory that other calls need.
	sendTimeout = time.Minute
	// scrubBytesPerSecond is the rate at which groups of several copies are read again and again to find damage. That is a
	// small part of a disk's bandwidth, and enough to read 1 TiB in three days.
	scrubBytesPerSecond = 4 << 20
)

// Limits are the limits that a program adapts to its memory and network. A zero field takes its default.
type Limits struct {
	BytesInFlightMax int64 // bytes of writes in progress; calls above it get OVERLOADED; default: 256 MiB
	// AnswerBytesMax bounds the data in responses that are being prepared or that their callers have not read yet. Calls
	// above it fail with OVERLOADED. The default is 256 MiB.
	AnswerBytesMax int64
	// ScansReadingMax bounds the scans that read their log at the same time, with 16 MiB each if the data is not
	// cached. Other scans queue. The default is 16.
	ScansReadingMax         int
	ReplicaBytesInFlightMax int64 // see replica.Options; default: 64 MiB
	FetchBytesPerSecond     int64 // total rate of files sent to other shards; 0: no limit
}

// unfinishedMax bounds the memory of incomplete messages. Above it, the connection that holds the most is closed.
func (l *Limits) unfinishedMax() int64 {
	return max(cmp.Or(l.BytesInFlightMax, bytesInFlightMax)/2, 2*message.RefusedBytesMax)
}

// Compaction configures the compaction in the background. A zero field takes its default.
type Compaction = care.Compaction

// Registry is the part of *registry.Store that a shard needs; its methods are documented there.
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
