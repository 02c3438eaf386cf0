package chaos

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/status/finding"
)

// span is the time of one fault. It begins before the fault is injected, and ends when the fault is healed and the
// store is whole again.
type span struct {
	kind        string
	victim      string
	begin, end  int64
	led         []string // groups that the victim led before the fault
	evidence    string   // shows that the fault took effect
	failed      int      // number of failed calls
	gaps, gapsL []time.Duration
}

// nemesis causes one fault after another. Only a stop of etcd overlaps other faults.
type nemesis struct {
	*store
	load   *load
	random *rand.Rand
	spans  []*span
	deck   []*fault
	copied int    // number of twins that were started on a copy of a volume
	rounds uint64 // number of ballast rounds so far
	signs  statusReports
	looks  findingStats
	// etcdStopped is true while all members of etcd are stopped.
	etcdStopped bool
}

// fault describes one kind of fault.
type fault struct {
	name string
	etcd bool // the fault needs a running etcd, for example because a shard must become a leader
	disk bool // the fault needs disks on loop devices
	bad  bool // the fault damages data on a disk for a while, so readers may receive errors about damaged data
	// run causes the fault on a shard, checks that it takes effect, and heals it. It returns the evidence in words.
	run func(n *nemesis, victim *server) (evidence string, err error)
	// victim chooses the shard for the fault. If it is nil, any shard that leads a group may be chosen.
	victim func(n *nemesis) *server
}

var faults = []*fault{
	{name: "kill", etcd: true, run: (*nemesis).kill},
	{name: "stop", run: (*nemesis).stop},
	{name: "pause", run: (*nemesis).pause},
	{name: "cut-deaf", run: func(n *nemesis, v *server) (string, error) { return n.isolate(v, deaf) }},
	{name: "cut-mute", run: func(n *nemesis, v *server) (string, error) { return n.isolate(v, mute) }},
	{name: "cut", run: func(n *nemesis, v *server) (string, error) { return n.isolate(v, silent) }},
	{name: "slow-disk", disk: true, run: (*nemesis).slowDown, victim: slowDiskShard},
	{name: "full-disk", disk: true, run: (*nemesis).fillUp, victim: func(n *nemesis) *server {
		return n.shards[filledDisk]
	}},
	{name: "disk-error", etcd: true, disk: true, run: (*nemesis).failDisk, victim: slowDiskShard},
	{name: "twin", etcd: true, run: (*nemesis).startTwin},
	{name: "twin-copy", etcd: true, run: (*nemesis).startTwinOnCopy},
	{name: "gateway-stop", run: (*nemesis).stopGateway, victim: anyGateway},
	{name: "gateway-kill", etcd: true, run: (*nemesis).killGateway, victim: anyGateway},
	{name: "overload", etcd: true, disk: true, run: (*nemesis).overload, victim: slowDiskShard},
	{name: "overload-kill", etcd: true, run: (*nemesis).overloadAndKill},
	{name: "drain", etcd: true, run: (*nemesis).drain},
	{name: "stalled-readers", etcd: true, run: (*nemesis).stallReaders},
	{name: "damaged-copy", etcd: true, bad: true, run: (*nemesis).damageCopy},
	{name: "zeroed-disk", etcd: true, disk: true, bad: true, run: (*nemesis).zeroDisk, victim: loopDeviceShard},
}

// slowDiskShard returns the shard whose disk can be made slow or made to fail.
func slowDiskShard(n *nemesis) *server { return n.shards[slowedDisk] }

// loopDeviceShard returns a shard whose disk is a loop device without slowdisk.
func loopDeviceShard(n *nemesis) *server {
	for {
		if i := n.random.IntN(len(n.shards)); i != slowedDisk {
			return n.shards[i]
		}
	}
}

func anyGateway(n *nemesis) *server { return n.gateways[n.random.IntN(len(n.gateways))] }

// etcdStop is the name of the fault that overlaps the others.
const etcdStop = "etcd-stop"

// selectFaults returns the faults that a list names, or all faults if the list is empty. The second result tells
// whether etcdStop is among them.
func selectFaults(list string) ([]*fault, bool, error) {
	if list == "" {
		return faults, true, nil
	}
	var out []*fault
	etcd := false
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(faults, func(f *fault) bool { return f.name == name })
		switch {
		case name == etcdStop:
			etcd = true
		case i < 0:
			return nil, false, fmt.Errorf("-faults: there is no %q; there are %s, %s", name, strings.Join(names(faults), ", "),
				etcdStop)
		default:
			out = append(out, faults[i])
		}
	}
	return out, etcd, nil
}

func names(all []*fault) (out []string) {
	for _, f := range all {
		out = append(out, f.name)
	}
	return out
}

// injectFault injects a single fault, heals it, and waits until the store is whole again.
func (n *nemesis) injectFault(f *fault) error {
	all, err := n.survey()
	if err != nil {
		return err
	}
	var victim *server
	if f.victim != nil {
		victim = f.victim(n)
	} else {
		victim = n.anyLeader(all)
	}
	s := &span{kind: f.name, victim: victim.name, led: groupsLedBy(all, victim), begin: n.load.now()}
	n.t.Logf("%7.1fs %s of %s, which leads %d groups", time.Duration(s.begin).Seconds(), f.name, victim.name, len(s.led))
	if f.bad {
		n.load.damagedUntil.Store(math.MaxInt64)
	}
	if s.evidence, err = f.run(n, victim); err != nil {
		return fmt.Errorf("%s of %s: %w", f.name, victim.name, err)
	}
	if err := n.settle(); err != nil {
		return fmt.Errorf("after %s of %s: %w", f.name, victim.name, err)
	}
	if err := n.awaitFindingsGone(); err != nil {
		return fmt.Errorf("after %s of %s: %w", f.name, victim.name, err)
	}
	s.end = n.load.now()
	if f.bad {
		n.load.damagedUntil.Store(s.end)
	}
	n.spans = append(n.spans, s)
	n.t.Logf("%7.1fs it is over: %s", time.Duration(s.end).Seconds(), s.evidence)
	return n.awaitCalls()
}

// anyLeader returns a shard that leads a group.
func (n *nemesis) anyLeader(all map[string][]replica) *server {
	var some []*server
	for _, h := range n.shards {
		if len(groupsLedBy(all, h)) > 0 {
			some = append(some, h)
		}
	}
	if len(some) == 0 {
		some = n.shards
	}
	return some[n.random.IntN(len(some))]
}

// awaitCalls waits until the clients have made a few more calls. No fault is active, so all of these calls should
// succeed.
func (n *nemesis) awaitCalls() error {
	before := n.load.history.count()
	return await("calls go on", time.Minute, func() error {
		if v := n.load.history.violations(); v > 0 {
			return fmt.Errorf("%w: the clients saw %d impossible answers", errHopeless, v)
		}
		if now := n.load.history.count(); now < before+200 {
			return fmt.Errorf("%d calls were answered since", now-before)
		}
		return nil
	})
}

// next returns the next fault of a shuffled deck, so that each allowed kind occurs once before any occurs again.
func (n *nemesis) next(from []*fault) *fault {
	if len(n.deck) == 0 {
		n.deck = slices.Clone(from)
		n.random.Shuffle(len(n.deck), func(i, j int) { n.deck[i], n.deck[j] = n.deck[j], n.deck[i] })
	}
	f := n.deck[0]
	n.deck = n.deck[1:]
	return f
}

// injectFaults injects every kind of fault once. It then injects more faults until the time of the run is over and
// enough calls have been made.
func (n *nemesis) injectFaults() error {
	some, etcd, err := selectFaults(n.cfg.faults)
	if err != nil {
		return err
	}
	some = slices.DeleteFunc(slices.Clone(some), func(f *fault) bool { return f.disk && !n.cfg.disks })
	if err := n.awaitCalls(); err != nil {
		return err
	}
	// The faults that need etcd come first, and so does the full disk. A full disk takes effect only on a leader, and
	// without etcd no shard becomes a group's leader.
	for _, f := range some {
		if f.etcd || f.name == "full-disk" {
			if err := n.injectFault(f); err != nil {
				return err
			}
		}
	}
	if etcd && n.cfg.etcdStop > 0 {
		if err := n.runWithoutEtcd(some); err != nil {
			return err
		}
	}
	for _, f := range some {
		if n.fired(f.name) == 0 {
			if err := n.injectFault(f); err != nil {
				return err
			}
		}
	}
	n.deck = nil
	for len(some) > 0 && (time.Duration(n.load.now()) < n.cfg.duration || n.load.calls.Load() < n.cfg.calls) {
		if err := n.injectFault(n.next(some)); err != nil {
			return err
		}
	}
	return n.settle()
}

func (n *nemesis) fired(kind string) (times int) {
	for _, s := range n.spans {
		if s.kind == kind {
			times++
		}
	}
	return times
}

// runWithoutEtcd kills every member of etcd and continues with all faults that a store must survive without etcd. The
// last of these kills a shard, which cannot serve again without etcd. Then runWithoutEtcd starts etcd again.
func (n *nemesis) runWithoutEtcd(some []*fault) error {
	s := &span{kind: etcdStop, victim: "all", begin: n.load.now()}
	for g := range n.cfg.groups {
		s.led = append(s.led, fmt.Sprint(g))
	}
	for _, e := range n.etcds {
		e.kill()
		if !e.killed() {
			return fmt.Errorf("%s was not killed: %v", e.name, e.cmd.ProcessState)
		}
	}
	stopped := time.Now()
	n.t.Logf("%7.1fs etcd is stopped for %v", time.Duration(s.begin).Seconds(), n.cfg.etcdStop)
	n.etcdStopped = true
	if err := n.expectFinding(stopped, "store", finding.StoreProblem); err != nil {
		return err
	}
	n.looks.open = nil // this finding remains, because etcd remains stopped
	before := n.load.history.count()
	some = slices.DeleteFunc(slices.Clone(some), func(f *fault) bool { return f.etcd || f.name == "full-disk" })
	n.deck = nil
	for time.Since(stopped) < n.cfg.etcdStop {
		if len(some) == 0 {
			time.Sleep(time.Second)
			continue
		}
		if err := n.injectFault(n.next(some)); err != nil {
			return fmt.Errorf("while etcd is stopped: %w", err)
		}
	}
	if err := n.killWithoutEtcd(); err != nil {
		return err
	}
	answered := n.load.history.count() - before
	for _, e := range n.etcds {
		if e.alive() {
			return fmt.Errorf("%s runs, it should be stopped", e.name)
		}
		if err := e.start(); err != nil {
			return err
		}
	}
	away := time.Since(stopped)
	for _, e := range n.etcds {
		if err := await(e.name, 2*time.Minute, e.ready); err != nil {
			return err
		}
	}
	if err := n.settle(); err != nil {
		return fmt.Errorf("after the stop of etcd: %w", err)
	}
	n.etcdStopped = false
	n.looks.open = append(n.looks.open, expected{finding.StoreProblem, "store"})
	if err := n.awaitFindingsGone(); err != nil {
		return fmt.Errorf("after the stop of etcd: %w", err)
	}
	s.end, s.evidence = n.load.now(), fmt.Sprintf("%d members killed, away for %.0f s, %d calls answered meanwhile",
		len(n.etcds), away.Seconds(), answered)
	n.spans = append(n.spans, s)
	n.t.Logf("%7.1fs etcd is back: %s", time.Duration(s.end).Seconds(), s.evidence)
	return n.awaitCalls()
}
