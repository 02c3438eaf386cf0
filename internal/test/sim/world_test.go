package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// config configures a run.
type config struct {
	machines int // number of machines that may hold copies
	copies   int // number of copies of the group
	clients  int
	keys     int64
	length   time.Duration // duration of the part of the run in which faults occur
	pause    time.Duration // maximum pause between two calls by a client
	scrub    time.Duration // maximum time between two scrubs
	faults   map[string]int
	off      rules.Off
	mutation mutation
	quiet    bool
	resident bool    // whether every second machine keeps its segments in memory
	journal  int64   // size of a journal file in bytes; 0 if there is no journal
	lossOdds float64 // probability that a message is lost while the network is bad
	lateOdds float64 // probability that a message arrives long after later ones
	lateMax  time.Duration
	history  historyConfig // what copies keep history for
}

// mutation names a safety rule that is switched off in the code of the simulation, not in that of the product.
type mutation uint8

// These are the mutations.
const (
	mutateNothing  mutation = iota
	mutateReuse             // a volume that was emptied continues under its old Raft id
	mutateRollBack          // an old state of a volume continues under its Raft id
	mutateSteps             // volumes are distinguished only by their generations, not by steps
	mutateBlobs             // followers accept entries without the blobs that the entries refer to
	mutateTail              // damage below the synced mark is treated as a torn write
	// Damage is repaired from any replica, even from one that has applied less than the damaged one.
	mutateRepair
	mutateCopy          // a copy of a volume continues under its Raft id
	mutateJournal       // the content of the journal is not written to the segments after a power cut
	mutateRead          // unreadable data at the end of the log is treated as a torn write
	mutateLeaderHold    // leaders compact as if nothing were held
	mutateMemberHold    // members that do not lead compact as if nothing were held
	mutateInstalledHold // copies that were installed compact as if nothing were held
	mutateLeast         // the hold of several views is that of the greatest index
	mutateIndex         // the index of a view is chosen before its history is held
	mutateBarrier       // the index of a view is chosen at any copy, without a read barrier
	mutateReports       // members do not read what leaders report about the archive
	mutateReport        // what a leader has reported about the archive goes when it no longer leads
	mutateUnknown       // a copy that was just loaded holds nothing until it hears of a hold
	mutateDoubt         // an unreadable record of the journal is ignored, as if it had held nothing
)

// world is the state of a run. Everything happens in one bubble of testing/synctest.
type world struct {
	cfg    config
	seed   uint64
	ledger *ledger
	ctx    context.Context // canceled after a violation, or when the run ends
	cancel context.CancelFunc
	wait   sync.WaitGroup // waits for all goroutines

	calling   atomic.Int32 // number of clients that still make calls
	contrasts uint64       // number of calls to contrast so far; used only by the nemesis
	begun     time.Time
	tracing   bool
	events    struct {
		sync.Mutex
		list []string
	}

	mu          sync.Mutex // guards the fields below
	random      *rand.Rand // used by the network
	machines    []*machine
	at          map[uint64]*machine                  // for each Raft id, the machine that has it now or had it before
	lost        map[uint64]bool                      // incarnations whose disk is lost
	leads       map[uint64]uint64                    // for each term, its leader
	partitioned map[[2]int]bool                      // pairs [from, to] between which messages are dropped
	bad         bool                                 // whether the network loses, duplicates and delays messages
	trap        trap                                 // nil if no trap is set
	calm        bool                                 // whether clients should not write
	stopping    bool                                 // whether no new calls and no new faults should begin
	volumes     map[uuid.UUID]placement.VolumeRecord // the records of volumes in etcd
	etcdSilent  time.Time                            // etcd does not respond until this time
	fired       map[string]int
	violations  []violation
	history     []operation
	etcd        *etcd                   // views and reports of leaders
	open        map[uuid.UUID]*openView // open views, and those that are being ended
	archive     *archive                // the archive that follows the group, or nil
	members     map[uint64]bool         // members when the run ended
}

// result is the result of a run.
type result struct {
	violations []violation
	fired      map[string]int
	history    []operation
	calls      int
	events     []string // filled only if SHEAF_SIM_TRACE is set
}

const (
	volumeDir = "/v"
	groupDir  = "/v/g"
)

var identity = format.Identity{Store: uuid.UUID{1}, Group: uuid.UUID{2}, Name: "g"}

// run runs one seed.
func run(t *testing.T, seed uint64, cfg config) *result {
	out := new(result)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed, cfg)
		w.simulate()
		if len(w.violations) > 0 {
			out.events = w.events.list
		}
		out.violations, out.fired, out.history, out.calls = w.violations, w.fired, w.history, len(w.history)
	})
	if len(out.violations) == 0 {
		out.violations = append(out.violations, judge(out.history)...)
	}
	return out
}

func newWorld(seed uint64, cfg config) *world {
	w := &world{
		cfg: cfg, seed: seed, random: rand.New(rand.NewPCG(seed, 1)),
		at: map[uint64]*machine{}, lost: map[uint64]bool{}, leads: map[uint64]uint64{}, partitioned: map[[2]int]bool{},
		fired:   map[string]int{},
		volumes: map[uuid.UUID]placement.VolumeRecord{},
	}
	w.begun, w.tracing = time.Now(), os.Getenv("SHEAF_SIM_TRACE") != ""
	w.ledger, w.etcd, w.open = newLedger(w), newEtcd(w), map[uuid.UUID]*openView{}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for i := range cfg.machines {
		w.machines = append(w.machines, &machine{world: w, number: i, disk: vfstest.NewMem(), volume: uuid.UUID{3, byte(i)},
			busy: map[*vfstest.Mem]bool{}})
	}
	return w
}

// simulate runs the simulation: the start, the faults, the healing, and the checks of the final state.
func (w *world) simulate() {
	defer w.wait.Wait()
	defer w.cancel()
	w.create()
	w.fire("a run with " + map[int]string{1: "one copy", 3: "three", 5: "five"}[w.cfg.copies])
	for i := range w.cfg.clients {
		w.calling.Add(1)
		w.wait.Go(func() {
			defer w.calling.Add(-1)
			w.client(i)
		})
	}
	w.wait.Go(w.churn)
	w.wait.Go(w.reuse)
	w.wait.Go(w.watchShards)
	w.wait.Go(w.runRepairs)
	w.wait.Go(w.runScrubs)
	w.wait.Go(w.watchFailed)
	w.wait.Go(w.runVolumeSteps)
	w.runHistory()
	operator := newOperator(w)
	w.wait.Go(operator.work)
	w.nemesis(operator)
	w.heal()
	if w.ctx.Err() == nil {
		w.converge()
	}
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	w.cancel()
	for _, m := range w.machines {
		m.halt()
	}
	w.wait.Wait()
	if len(w.violations) == 0 {
		w.verifyDisks()
	}
}

// violate records a violation and ends the run.
func (w *world) violate(o oracle, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordViolation(o, fmt.Sprintf(format, args...))
}

// recordViolation does the same as violate. The caller holds mu.
func (w *world) recordViolation(o oracle, what string) {
	if len(w.violations) < 10 {
		w.violations = append(w.violations, violation{o, what})
	}
	w.cancel()
}

// fire counts the occurrence of a fault.
func (w *world) fire(fault string) {
	w.trace("%s", fault)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fired[fault]++
}

// trace records an event if SHEAF_SIM_TRACE is set. The events help to find the cause of a violation.
func (w *world) trace(format string, args ...any) {
	if !w.tracing {
		return
	}
	w.events.Lock()
	defer w.events.Unlock()
	w.events.list = append(w.events.list, fmt.Sprintf("%10v ", time.Since(w.begun))+fmt.Sprintf(format, args...))
}

// sleep waits for d. It returns false if the run ends before d has passed.
func (w *world) sleep(d time.Duration) bool {
	select {
	case <-w.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// processes returns the running processes, in a fixed order.
func (w *world) processes() (all []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.process != nil {
			all = append(all, m.process)
		}
	}
	return all
}

// leader returns a process that leads and serves, or nil if there is none. If several processes claim to lead, it
// chooses the one with the highest term.
func (w *world) leader() (leader *process) {
	term := uint64(0)
	for _, p := range w.processes() {
		if s := p.replica.Status(); s.Leader && s.Term > term {
			leader, term = p, s.Term
		}
	}
	return leader
}

// informOfRestart tells the other replicas that a process has restarted.
func (w *world) informOfRestart(raftID uint64) {
	for _, p := range w.processes() {
		if p.raftID != raftID {
			w.inform(p, raftID, false)
			w.inform(p, raftID, true)
		}
	}
}
