// Package replica runs one group's Raft node on the group's own log, and the committer that makes the entries of all
// groups of a volume durable together.
package replica

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
)

// Errors of a replica. Those of Refused are surely not applied.
var (
	ErrNoLeader       = errors.New("the group has no leader now")                // refused
	ErrStopping       = errors.New("the replica is stopping")                    // refused
	ErrOverloaded     = errors.New("too many writes in flight")                  // refused
	ErrInvalid        = errors.New("the write is not valid")                     // refused
	ErrFailed         = errors.New("the replica cannot write until a restart")   // refused
	ErrReused         = errors.New("the request id is that of another write")    // refused: the record, its data or the kind of write differ
	ErrOutcomeUnknown = errors.New("the write may or may not have been applied") // repeat it with its request id
	ErrExists         = errors.New("the record exists")                          // always inside a *ConditionError
	ErrMismatch       = errors.New("the record's version is another")            // always inside a *ConditionError
)

// ConditionError is a refusal by a condition. Err is ErrExists or ErrMismatch; Current is the newest version's index,
// 0 where there is no record. It is given only once the version it names is committed.
type ConditionError struct {
	Err     error
	Current uint64
}

func (e *ConditionError) Error() string { return fmt.Sprintf("%v (current %d)", e.Err, e.Current) }
func (e *ConditionError) Unwrap() error { return e.Err }

// Defaults of Options.
const (
	DefaultInFlightBytesMax = 64 << 20
)

// Options of a Replica. Log, Committer and RaftID are required.
type Options struct {
	Log       *group.Log
	Committer *Committer
	RaftID    uint64
	// Window says how long request ids are remembered, counted in writes with one. The zero value: group.DefaultRequestWindow, by which
	// the log keeps what a window is read back from.
	Window group.RequestWindow
	// InFlightBytesMax bounds the bytes proposed and not yet applied; ErrOverloaded beyond. A single write passes
	// always. 0: DefaultInFlightBytesMax.
	InFlightBytesMax int64
	Now              func() time.Time // nil: time.Now
	Logger           *slog.Logger     // nil: discards
	// Admit is asked before each write with the bytes it will store (disk reserve, memory); nil: always. Deletes are
	// asked with delete true. It is called with the replica locked, so it must not call the replica.
	Admit func(bytes int64, delete bool) error
	// NoRoom is called when the log finds no room to write. It must not block; nil: nothing.
	NoRoom func()
	// Transport carries messages to the other members; nil: there are none.
	Transport Transport
	// OnSnapshot is told that the leader from no longer has the entries that this replica needs: it is to be stopped and
	// installed anew, as of index or later, and its leader told by MsgSnapStatus. Told again until then. It must not block.
	OnSnapshot func(index, term, from uint64)
	// FetchBlobs gets blobs from the member from; they are durable when it returns nil. It is called in a goroutine of its
	// own, perhaps twice at once for the same blob; ctx ends with Stop, where another member leads than from, and where from
	// falls silent. Nil: messages with entries that refer to blobs are taken as they are.
	FetchBlobs func(ctx context.Context, from uint64, refs []group.BlobRef) error
	// Forming tells whether a group that never held a write takes none yet, because it has fewer voters than it is to have;
	// nil: it takes writes. Called with the replica locked, so it must not call the replica.
	Forming func(conf *raftpb.ConfState) bool
	// OnChange is told that the leader, the term or the membership has changed. It is called with the replica locked, so it
	// must neither block nor call the replica; nil: nobody is told.
	OnChange func()
	// Lease lets a leader answer reads by itself for a while after a majority has answered it, see lease.go.
	Lease bool
	// Quiet lets a group without work rest: no clock, no heartbeats. PeerDown and PeerUp must be called then.
	Quiet bool
	// Probe is for simulations; nil everywhere else.
	Probe *Probe
}

// store is what a replica needs of a group's log: *group.Log, but for benchmarks without a disk.
type store interface {
	raft.Storage
	Append(hs *raftpb.HardState, entries []*raftpb.Entry) error
	Sync() error
	SyncShared() bool
	Apply(index uint64, each func(*group.Entry)) error
	SetConf(conf *raftpb.ConfState, index uint64) error
	Tick() error
	AppliedIndex() uint64
	LastCommitTime() int64
	RecentRequests(w group.RequestWindow, now int64) iter.Seq[group.Request]
	Head(id int64) (index uint64, deleted bool, err error)
	ConfIndex() uint64
	Damaged() bool
	MissingBlobs(entries []*raftpb.Entry) ([]group.BlobRef, error)
}

// Replica is one group's Raft node. Safe for concurrent use.
//
// A write goes: Propose -> queue -> (the committer's round) -> Raft's log and the group's log -> synced -> applied.
// The round of one replica is run by one goroutine at a time, see schedule.go.
type Replica struct {
	opts      Options
	log       store
	committer *Committer
	logger    *slog.Logger
	now       func() time.Time

	// Whether it waits for a round or is in one; see schedule.go.
	scheduled atomic.Uint32
	detached  chan struct{} // closed when the committer has let go of it

	// readable: this node is the sole voter and leader, and an entry of its own term is applied, so that the log
	// holds everything that was ever acknowledged.
	readable   atomic.Bool
	leaseUntil atomic.Int64 // since leaseClock; until then this leader may answer reads by itself; 0: it may not
	renew      atomic.Bool  // the majority is to be asked although nobody waits, so that the lease goes on
	startedAt  time.Time

	alone   atomic.Bool   // the only member: Raft needs no clock
	quiet   atomic.Bool   // the group rests: Raft needs no clock; written with mu held
	stuck   atomic.Bool   // noRoom is not nil
	clocked atomic.Bool   // in Committer.clocked; written with its mu held
	marks   atomic.Uint32 // of the local synced mark: markWritten, markBehind or markDue

	restored       restored
	startedApplied uint64 // applied index when it started: the window of all before comes from the log
	startedWindow  int64  // when it started, by windowClock
	startedConf    uint64 // index of the membership change that the log knew when it started
	nonce          uint64 // of this start, random

	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	fetches sync.WaitGroup // of blobs

	mu   sync.Mutex // guards all below
	node *raft.RawNode

	leader   bool   // as Raft says
	leaderID uint64 // 0: none known
	term     uint64
	serving  bool // leader, and an entry of its own term is applied: writes are accepted
	lost     bool // leadership or term changed: what is on its way is to be answered as unknown, unless it is seen applied
	// lostTicks counts since lost was set: with a disk that hangs no round ends, and so none answers. held is closed
	// then, and made anew: who waits is not kept from asking the members that go on.
	lostTicks int
	held      chan struct{}
	sole      bool // the only voter

	conf        *raftpb.ConfState          // replaced as a whole
	confIndex   uint64                     // of the change that made it
	member      bool                       // conf names this replica
	formed      bool                       // Forming has let writes in
	change      *memberChange              // under way; nil: none
	told        told                       // whether a majority knows of the last one
	transferee  uint64                     // whom the lead is handed to; 0: nobody
	handedOver  uint64                     // the last term in which this leader has handed the lead over, or tried to
	changed     chan struct{}              // closed by announce; nil: nobody waits
	yieldTicks  int                        // until the lead may be handed over again because of damage
	offerTicks  int                        // since a member needs a snapshot
	jointTicks  int                        // since a joint membership could be left and nothing is on its way
	leave       bool                       // a joint membership is to be left
	restedTicks int                        // how long there was nothing to do
	callTicks   int                        // since a leader was looked for, by a member that cannot campaign
	down        map[uint64]bool            // members whose shard is silent
	heardAt     time.Time                  // when the present leader was heard last; zero: none was, since the start
	mourned     bool                       // the leader's shard is told to be silent: forget the leader when it was not heard for silenceMin
	hurry       hurry                      // a campaign because the leader is one of them
	notices     map[uint64]*raftpb.Message // appends without entries that wait for the clock, by member
	fetching    map[uint64]blobFetch       // messages that wait for blobs, by their index

	queued    []*Pending // accepted, in order, not given to Raft yet
	logged    fifo       // given to Raft, not answered yet, in order
	unindexed int        // the last so many of logged, whose real index is not known yet
	nextIndex uint64     // expected index of the next write accepted

	newest   map[int64]*Pending    // record -> its last write that is not applied yet
	requests map[[16]byte]*Pending // request id -> its write that is not answered yet
	window   window

	lastCommitTime int64
	inFlightBytes  int64
	applied        uint64

	readers   []*reader // wait to be asked about, see read.go
	readRound readRound

	stopping bool
	drained  chan struct{} // made by Stop; closed when no write is left
	err      error         // failed for good
	broken   bool          // Raft panicked over a message: the next round gives everything up

	noRoom     error // the log has no room; tried again after retryTicks
	retryTicks int
	retryWait  int

	summons summons // guarded by mu

	round round // of whoever runs the round, but for what it says
}

// Start runs the node; a single voter elects itself before Start returns, unless the log has no room or fails, which
// Status tells then. The error says why the log cannot be the log of a Raft node.
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
		opts: opts, log: log, committer: opts.Committer, logger: opts.Logger, now: opts.Now,
		detached: make(chan struct{}), held: make(chan struct{}),
		newest:   make(map[int64]*Pending),
		requests: make(map[[16]byte]*Pending),
		window:   window{RequestWindow: opts.Window},
		nonce:    rand.Uint64(), startedAt: time.Now(), startedWindow: windowNow(),
	}
	r.marks.Store(markBehind) // a load has synced what was above the mark
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.makeNode(); err != nil {
		return nil, err
	}
	if err := r.committer.add(r); err != nil {
		return nil, err
	}
	r.elect()
	return r, nil
}

func setDefaults(opts *Options) {
	if opts.Window == (group.RequestWindow{}) {
		opts.Window = group.DefaultRequestWindow
	}
	if opts.InFlightBytesMax <= 0 {
		opts.InFlightBytesMax = DefaultInFlightBytesMax
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
}

// Readable tells, at no cost, that ReadBarrier returns at once: this is the sole voter, or a leader with a lease, and serves.
func (r *Replica) Readable() bool { return r.readable.Load() || r.leased() }

// Alone tells, at no cost, that this is the only voter, and serves: nobody else can lead in its place.
func (r *Replica) Alone() bool { return r.readable.Load() }

// Status of a replica.
type Status struct {
	Leader        bool // and writes are accepted
	LeaderID      uint64
	Term          uint64
	AppliedIndex  uint64
	InFlightBytes int64
	Removed       bool  // the membership as of AppliedIndex does not name it: it never campaigns
	Learner       bool  // it has no vote
	Damaged       bool  // the log has damage, which bars it from leading where there are other voters
	Err           error // why it cannot write any more, or not now (group.ErrNoSpace); nil while it can
}

// Status tells the present state.
func (r *Replica) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Leader:        r.serving && r.err == nil,
		LeaderID:      r.leaderID,
		Term:          r.term,
		AppliedIndex:  r.applied,
		InFlightBytes: r.inFlightBytes,
		Removed:       !r.member,
		Learner:       r.member && !isVoter(r.conf, r.opts.RaftID),
		Damaged:       r.log.Damaged(),
		Err:           r.err,
	}
	if s.Err == nil {
		s.Err = r.noRoom
	}
	return s
}

// Stop refuses new writes, waits until those in flight are answered or ctx ends, and stops the node. The log stays
// open, and nothing of the replica uses it any more when Stop returns. Writes that ctx cut off are answered
// ErrOutcomeUnknown, and the error says how many. Stop may be called again.
func (r *Replica) Stop(ctx context.Context) error {
	select {
	case <-r.refuse():
	case <-ctx.Done():
	}
	r.cancel()
	if !r.committer.remove(r) {
		<-r.detached
		r.fetches.Wait()
		return nil // an earlier Stop did the rest
	}
	<-r.detached
	r.fetches.Wait()
	r.readable.Store(false)
	r.endLease()
	cut := r.abandon(ErrStopping)
	if err := r.saveState(); err != nil {
		return err
	}
	if cut > 0 {
		return fmt.Errorf("%d writes were cut off, their outcome is not known: %w", cut, context.Cause(ctx))
	}
	return nil
}

// refuseAll is the stop without a wait, when no round can begin any more.
func (r *Replica) refuseAll() {
	r.refuse()
	r.cancel()
	r.fetches.Wait()
	r.readable.Store(false)
	r.endLease()
	r.abandon(ErrStopping)
}

// refuse lets no write in any more, and gives what is closed when none is left.
func (r *Replica) refuse() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopping {
		r.stopping = true
		r.drained = make(chan struct{})
		r.checkDrained()
	}
	return r.drained
}

// checkDrained is called with mu held where a write was answered.
func (r *Replica) checkDrained() {
	if r.drained == nil || r.logged.len() > 0 || len(r.queued) > 0 {
		return
	}
	select {
	case <-r.drained:
	default:
		close(r.drained)
	}
}

// saveState writes the commit index that was not written yet, so that the next load finds everything committed.
func (r *Replica) saveState() error {
	if r.round.commit == nil || r.round.failed || r.round.taken {
		return nil
	}
	err := r.log.Append(r.round.commit, nil)
	if err == nil {
		err = r.log.Sync()
	}
	if errors.Is(err, group.ErrNoSpace) {
		return nil // it rides along with a later append, and a load finds it out by itself
	}
	if err != nil {
		return fmt.Errorf("write the commit index: %w", err)
	}
	r.round.commit = nil
	return nil
}
