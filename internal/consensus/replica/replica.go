// Package replica runs the Raft node of one group on the group's own log. docs/raft.md lists what the package adds to
// Raft, and docs/adr/0031-the-rooms-of-a-replica.md says which part owns which state.
package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// These are the errors of a replica. Package writes explains the errors of writes. After an error marked "refused",
// the write is not applied.
var (
	ErrStopping       = errors.New("the replica is stopping")                  // refused
	ErrFailed         = errors.New("the replica cannot write until a restart") // refused
	ErrNoLeader       = writes.ErrNoLeader
	ErrOverloaded     = writes.ErrOverloaded
	ErrInvalid        = writes.ErrInvalid
	ErrReused         = writes.ErrReused
	ErrOutcomeUnknown = writes.ErrOutcomeUnknown
	ErrExists         = writes.ErrExists
	ErrMismatch       = writes.ErrMismatch
)

// Committer runs the rounds of all replicas on a volume. See package rounds.
type Committer = rounds.Committer

// NewCommitter starts a committer.
func NewCommitter() *Committer { return rounds.NewCommitter() }

// Options configures a Replica. Log, Committer and RaftID are required.
type Options struct {
	Log       *group.Log
	Committer *Committer
	RaftID    uint64
	// Window determines how long request ids are remembered. It counts only writes that have a request id. The zero value
	// means format.DefaultRequestWindow. The log keeps enough entries to restore a window of that size.
	Window format.RequestWindow
	// InFlightBytesMax limits the bytes that are proposed and not yet applied. Above this limit, writes are refused
	// with ErrOverloaded. A single write is always admitted. 0 means 64 MiB.
	InFlightBytesMax int64
	Now              func() time.Time // if nil, time.Now is used
	Logger           *slog.Logger     // if nil, log messages are discarded
	// Admit is called before each write with the number of bytes that the write will store, and returns an error if
	// there is too little disk space or memory. If it is nil, every write is admitted. The argument delete is true for a
	// delete. Admit is called with the replica locked, so it must not call the replica.
	Admit func(bytes int64, delete bool) error
	// NoSpace is called when the log cannot write because there is no space. It must not block. It may be nil.
	NoSpace func()
	// Transport carries messages to the other members. It is nil if there are none.
	Transport Transport
	// OnSnapshot is called when the leader no longer has the entries that this replica needs. The argument from is the
	// Raft id of that leader. The owner of the replica must then stop it, install a state that includes the entry at
	// index, and send a MsgSnapStatus to the leader. OnSnapshot is called repeatedly until this has happened. OnSnapshot
	// must not block.
	OnSnapshot func(index, term, from uint64)
	// FetchBlobs fetches blobs from another member, whose Raft id is passed as from. The blobs must be durable when
	// FetchBlobs returns nil. Each call runs in a separate goroutine, and two calls may fetch the same blob concurrently.
	// ctx is canceled when Stop is called, when another member becomes the leader, or when the member that supplies the
	// blobs falls silent. If FetchBlobs is nil, messages are accepted even if the blobs of their entries are missing.
	FetchBlobs func(ctx context.Context, from uint64, refs []format.BlobRef) error
	// Forming reports whether a group that never held a write still refuses writes, because it has fewer voters than
	// it should have. If it is nil, the group accepts writes. Forming is called with the replica locked, so it must
	// not call the replica.
	Forming func(conf *raftpb.ConfState) bool
	// OnChange is called when the leader, the term or the membership has changed. It is called with the replica
	// locked, so it must neither block nor call the replica. It may be nil.
	OnChange func()
	// Lease lets a leader answer reads for a while without asking the other members, once a majority has confirmed that it
	// leads. See lease.go.
	Lease bool
	// Quiet lets a group without work rest, which stops its clock and its heartbeats. If Quiet is set, the transport must
	// call PeerDown and PeerUp.
	Quiet bool
	// Probe is for simulations. Other programs leave it nil.
	Probe *Probe
	// Off is a set of rules that a test switches off.
	Off rules.Off
}

// store holds the methods of a group's log that a replica calls. It is a *group.Log, except in benchmarks without a
// disk.
type store interface {
	raft.Storage
	Append(hs *raftpb.HardState, entries []*raftpb.Entry) error
	Sync() error
	SyncShared() bool
	Apply(index uint64, each func(*format.Entry)) error
	SetConf(conf *raftpb.ConfState, index uint64) error
	Tick() error
	AppliedIndex() uint64
	LastCommitTime() int64
	RecentRequests(w format.RequestWindow, now int64) iter.Seq[format.Request]
	Head(id int64) (index uint64, deleted bool, err error)
	ConfIndex() uint64
	Damaged() bool
	MissingBlobs(entries []*raftpb.Entry) ([]format.BlobRef, error)
}

// Replica is the Raft node of one group. It is safe for concurrent use.
//
// A write takes this path: Propose -> writes.Queue -> (the committer's round) -> Raft's log and the group's log ->
// synced -> applied.
type Replica struct {
	// The fields that the clock reads are adjacent in memory. A process has thousands of replicas, so these fields are
	// usually in no CPU cache, and adjacent fields cost the clock fewer cache misses.
	seat  rounds.Seat
	idle  idle
	state guarded // everything that the mutex guards

	opts    Options
	log     store
	round   round // used by the goroutine that runs the round
	lease   lease
	blobs   *blobFetches
	heads   writes.Log
	history *writes.History
	seams   seams
}

// Start creates a replica and runs its node. A single voter elects itself before Start returns, unless the log has no
// space or fails, which Status then reports. Start returns an error if no Raft node can run on the log.
func Start(opts Options) (*Replica, error) {
	if opts.Log == nil {
		return nil, fmt.Errorf("%w: a replica needs a log", ErrInvalid)
	}
	return start(opts, opts.Log)
}

func start(opts Options, log store) (_ *Replica, err error) {
	if opts.Committer == nil || opts.RaftID == 0 {
		return nil, fmt.Errorf("%w: a replica needs a committer and a Raft id", ErrInvalid)
	}
	setDefaults(&opts)
	r := &Replica{
		opts: opts, log: log, heads: heads{log}, seams: seams{Probe: *cmp.Or(opts.Probe, &Probe{}), Off: opts.Off},
	}
	if err := r.init(); err != nil {
		return nil, err
	}
	if err := r.seat.Enter(r.round.elect); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStopping, err)
	}
	return r, nil
}

// init creates the parts of the replica and starts Raft.
func (r *Replica) init() error {
	opts := &r.opts
	r.seat.Init(opts.Committer, (*runner)(r))
	r.lease.seat, r.lease.rules, r.lease.allowed = &r.seat, opts.Off, opts.Lease
	r.blobs = newBlobFetches(opts, r.log, r.take)
	proposals := writes.Options{
		Log: r.heads, Now: opts.Now, Window: opts.Window, InFlightBytesMax: opts.InFlightBytesMax,
		Admit: opts.Admit, Off: opts.Off,
	}
	r.history = writes.NewHistory(&proposals)
	r.round = round{
		state: &r.state, log: r.log, seat: &r.seat, committer: opts.Committer, transport: opts.Transport,
		lease: &r.lease, idle: &r.idle, seams: r.seams, noSpace: opts.NoSpace, logger: opts.Logger,
		id: opts.RaftID, firstConf: r.log.ConfIndex(),
	}
	c := r.state.lock()
	defer c.unlock()
	c.seat, c.lease, c.idle, c.blobs = &r.seat, &r.lease, &r.idle, r.blobs
	return c.init(opts, r.log, proposals)
}

func setDefaults(opts *Options) {
	opts.Window = cmp.Or(opts.Window, format.DefaultRequestWindow)
	opts.InFlightBytesMax = cmp.Or(opts.InFlightBytesMax, 64<<20)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Transport == nil {
		opts.Transport = noTransport{}
	}
}

// runner is the replica as the committer sees it (rounds.Runner).
type runner Replica

func (r *runner) Round()          { r.round.run() }
func (r *runner) Mark() bool      { return r.round.mark() }
func (r *runner) NeedsTick() bool { return r.idle.needsTick() }
func (r *runner) IsStuck() bool   { return r.idle.stuck.Load() }

func (r *runner) Tick() {
	c := r.state.lock()
	messages := c.tick()
	c.unlock()
	if len(messages) > 0 {
		r.opts.Transport.Send(messages)
	}
}

func (r *runner) Trim() {
	for more := true; more; {
		c := r.state.lock()
		more = c.writes.Trim()
		c.unlock()
	}
}

// Refuse stops the replica without waiting. It is called when no more rounds can begin.
func (r *runner) Refuse() {
	(*Replica)(r).refuse()
	r.blobs.stop()
	r.lease.endAll()
	r.round.abandon(ErrStopping)
}

// Readable reports whether ReadBarrier would return immediately. This is the case if this replica is the sole voter
// and serves, or if it is a serving leader with a lease. The call is cheap.
func (r *Replica) Readable() bool { return r.Alone() || r.lease.isValid() }

// Alone reports whether this replica is the only voter and serves, so that no other member can lead. The call is cheap.
func (r *Replica) Alone() bool { return r.lease.soleVoter.Load() }

// Stop refuses new writes, waits until the writes in progress are answered or ctx is done, and stops the node. The log
// remains open, and no part of the replica uses it after Stop returns. Writes that are still in progress when ctx is
// done fail with ErrOutcomeUnknown, and Stop's error says how many there were. Stop may be called again.
func (r *Replica) Stop(ctx context.Context) error {
	select {
	case <-r.refuse():
	case <-ctx.Done():
	}
	r.blobs.cancel()
	first := r.seat.Leave()
	<-r.seat.Detached()
	r.blobs.stop()
	if !first {
		return nil // another call of Stop does the rest
	}
	r.lease.endAll()
	cut := r.round.abandon(ErrStopping)
	if err := r.round.saveState(); err != nil {
		return err
	}
	if cut > 0 {
		return fmt.Errorf("%d writes were cut off, their outcome is not known: %w", cut, context.Cause(ctx))
	}
	return nil
}

func (r *Replica) refuse() <-chan struct{} {
	c := r.state.lock()
	defer c.unlock()
	return c.refuse()
}
